"""Links between gateways, without their sockets: outboxes, relays and blobs over one connection."""
