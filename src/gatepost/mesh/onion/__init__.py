"""Onion services: their keys and addresses, and the descriptor that several gateways share."""
