"""Mailboxes: enqueue, lease, ack, nack and dead letters of each agent's mail."""

from gatepost.mailbox.dispatcher import Dispatcher, Waiter
from gatepost.mailbox.enqueue import NewMail
from gatepost.mailbox.policy import MailboxPolicy
from gatepost.mailbox.settle import ClosedMail, Settlement
from gatepost.mailbox.states import TRANSITIONS, MailInput, MailState

__all__ = [
    "TRANSITIONS",
    "ClosedMail",
    "Dispatcher",
    "MailInput",
    "MailState",
    "MailboxPolicy",
    "NewMail",
    "Settlement",
    "Waiter",
]
