"""The hub in the gateway: sessions of tasks, its HTTP API, and the files it follows."""
