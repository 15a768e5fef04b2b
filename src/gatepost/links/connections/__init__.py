"""The live connections between gateways: one WebSocket carries the room and both outboxes."""
