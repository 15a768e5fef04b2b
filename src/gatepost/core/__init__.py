"""One gateway without its network, and what its services share."""
