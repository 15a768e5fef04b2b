"""The MCP server, which runs in the gateway. Only `protocol` and what it imports need the SDK."""
