"""The parts that run in processes of MCP clients: the stdio server, the hooks and the installer.

A client starts the server and the hooks again and again, and a server that is not ready at once
misses the first turn. So `command`, `stdio_bridge`, `hook` and `gateway_socket` import little of
the standard library and nothing else; a test measures it.
"""
