"""The MCP server of a gateway, and what connects MCP clients to it."""
