"""Mailboxes: enqueue, lease, ack, nack and dead letters of each agent's mail."""

from gatepost.mailbox.dispatch import Dispatcher, Waiter
from gatepost.mailbox.enqueue import Mail
from gatepost.mailbox.policy import Policy
from gatepost.mailbox.settle import Closed, Settlement
from gatepost.mailbox.states import TRANSITIONS, Input, State

__all__ = [
    "TRANSITIONS",
    "Closed",
    "Dispatcher",
    "Input",
    "Mail",
    "Policy",
    "Settlement",
    "State",
    "Waiter",
]
