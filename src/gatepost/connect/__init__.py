"""Finding a gateway and talking to it: endpoint, session, calls, and why they fail."""
