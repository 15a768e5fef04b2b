"""The local API: one set of operations over HTTP, WebSocket, Unix socket and drop folder."""
