"""The gateway's own archive: written beside the traffic, and read for messages it has pruned."""
