"""Capabilities: what agents can do for others, its contract, and what went wrong with it."""
