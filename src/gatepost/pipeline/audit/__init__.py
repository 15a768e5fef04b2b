"""Full verification of an archive: every promise of the protocol, every event."""
