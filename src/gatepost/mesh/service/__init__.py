"""The mesh in the process: its socket, its timers, and the parts of the gateway that it informs."""
