"""Transports that carry mesh datagrams: UDP, UDP inside WireGuard, and streams through Tor."""
