"""Who is alive and who leads: heartbeats, gossip, election, bootstrap, and the transports."""
