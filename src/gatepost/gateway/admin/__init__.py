"""Routes and tools for the operator: room, routes, external agents, incidents, backup, status."""
