"""Other gateways: dialling, joining, connections, links, and this gateway's replica of the room."""
