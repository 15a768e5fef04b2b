"""The gateway process: local API, connections to peers, administration and monitoring."""
