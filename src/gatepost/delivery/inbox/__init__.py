"""The inbox in the journal: what was taken from other outboxes, how far, and what is held.

These modules own the tables; `gatepost.delivery.accept` makes the decisions.
"""
