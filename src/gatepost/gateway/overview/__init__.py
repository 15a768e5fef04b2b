"""The room at a glance, for its operator: the ledger of all gateways, needs, changes, messages."""
