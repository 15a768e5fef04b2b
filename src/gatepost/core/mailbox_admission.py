"""The rule for new mailboxes: each agent has one, and the operator may make a limited number more.

The mailbox protocol has no registration: clients put mail into a mailbox and take it out. So the
operator's clients create a mailbox by naming it, up to a limit. An external agent can create only
its own.
"""

from gatepost.delivery.agents import Agents
from gatepost.errors import TooManyMailboxes, UnknownAgent
from gatepost.journal import Tx
from gatepost.mailbox.counts import count_mailboxes
from gatepost.mailbox.enqueue import find_mailbox


class MailboxAdmission:
    """For the writer's thread only. A mailbox that is in the journal stays there."""

    def __init__(self, agents: Agents, max_mailboxes: int) -> None:
        self._agents = agents
        self.max_mailboxes = max_mailboxes
        self._known: set[str] = set()

    def require_capacity(self, tx: Tx, name: str) -> None:
        """Raise TooManyMailboxes if a new mailbox would be one too many."""
        if self.is_known(tx, name):
            return
        count = count_mailboxes(tx)
        if count >= self.max_mailboxes:
            raise TooManyMailboxes(
                f"this gateway has {count} mailboxes; register the agent with"
                f" `gatepost agent add {name}`, or raise limits.max_mailboxes"
            )

    def require_known(self, tx: Tx, name: str) -> None:
        """Raise UnknownAgent unless there is a mailbox or an agent of this name."""
        if not self.is_known(tx, name):
            raise UnknownAgent(
                f"no agent {name!r} on this gateway; `send` reaches agents of other gateways too"
            )

    def is_known(self, tx: Tx, name: str) -> bool:
        if name in self._known:
            return True
        if find_mailbox(tx, name):
            # Only after it was found, because the transaction that creates it may be rolled back.
            tx.add_effect(lambda: self._known.add(name))
            return True
        return self._agents.is_registered(tx, name)
