"""Agents: they subscribe to a mailbox, run turns and tasks, and settle them."""
