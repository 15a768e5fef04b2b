"""The inbox in the journal: what was taken from other outboxes, how far, and what is held.

The modules here own these tables, and decide nothing: `gatepost.delivery.accept` does.
"""
