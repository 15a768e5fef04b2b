"""Verifies a whole archive: every promise of the protocol against every event."""
