"""Whether an event can be accepted now: the reasons to refuse it, or to hold it for a while."""

from typing import NamedTuple

from gatepost.delivery.abuse import AbuseLog
from gatepost.delivery.agents import Agents
from gatepost.delivery.blob_records import has_blob
from gatepost.delivery.incidents import IncidentLog
from gatepost.delivery.local_node import LocalNode
from gatepost.delivery.outbox_writer import OutboxWriter
from gatepost.delivery.receiver.held_events import FullMailboxes
from gatepost.delivery.routes import RouteFinder
from gatepost.errors import GatepostError
from gatepost.events import Envelope, EventKind, PayloadRef, parse_event_id
from gatepost.journal.transaction import Tx
from gatepost.mailbox import Dispatcher

# An event is held for these, and refused for any other reason.
FULL = "full"
BLOB = "blob"

_SELECT_REPLIES_TO = "SELECT replies_to FROM delivery WHERE event_id = ?"
_SELECT_WAITING = "SELECT waiting FROM mailbox WHERE name = ?"


class ReceiverParts(NamedTuple):
    """The parts of the core that every transaction of the receiver uses."""

    node: LocalNode
    agents: Agents
    routes: RouteFinder
    dispatcher: Dispatcher
    incidents: IncidentLog
    abuse: AbuseLog
    writer: OutboxWriter
    full: FullMailboxes


class AcceptanceCheck:
    """Its answers about agents and mailboxes are kept for one transaction.

    `now` is the emitter's clock.
    """

    def __init__(self, parts: ReceiverParts, tx: Tx, source: str, now: int) -> None:
        self._parts = parts
        self._tx = tx
        self._source = source
        self._now = now
        self._hosted: dict[str, bool] = {}
        self._capacity: dict[str, int] = {}

    def reason_against(self, envelope: Envelope) -> str:
        """Why an event cannot be accepted now; empty if it can."""
        agent = envelope.to_agent_id or ""
        if envelope.expires_at is not None and envelope.expires_at <= self._now:
            return "expired"
        if envelope.kind != EventKind.REPLY and not self.is_hosted(agent):
            home = self._parts.routes.directory.agents.get(agent)
            # If the room still says it lives here, it did a moment ago.
            return "no_agent" if home is None or home.owner is None else "moved"
        if envelope.payload_ref is not None and self._lacks_blob(envelope.payload_ref):
            return BLOB
        if self._has_capacity(agent) or self._needs_no_mailbox(envelope):
            return ""
        return FULL

    def is_hosted(self, agent: str) -> bool:
        if agent not in self._hosted:
            self._hosted[agent] = self._parts.agents.is_registered(self._tx, agent)
        return self._hosted[agent]

    def is_reply_mail(self, reply: Envelope) -> bool:
        """Whether a reply is mail for the agent it answers, and not only kept for the caller."""
        if reply.ref_event_id is not None:
            id = parse_event_id(reply.ref_event_id)
            row = self._tx.fetch_one(_SELECT_REPLIES_TO, (id,))
            if row is not None and row[0] != "mailbox":
                return False
        return self._takes_mail(reply.to_agent_id or "")

    def _needs_no_mailbox(self, envelope: Envelope) -> bool:
        return envelope.kind == EventKind.REPLY and not self.is_reply_mail(envelope)

    def _takes_mail(self, agent: str) -> bool:
        """Whether an agent lives here, or at another node to which its mail is forwarded."""
        return self.is_hosted(agent) or self._parts.routes.remote_owner(agent) is not None

    def use_capacity(self, agent: str) -> None:
        self._capacity[agent] = self._capacity.get(agent, 1) - 1

    def _has_capacity(self, mailbox: str) -> bool:
        if mailbox not in self._capacity:
            self._capacity[mailbox] = mailbox_capacity(self._tx, self._parts.dispatcher, mailbox)
        return self._capacity[mailbox] > 0

    def _lacks_blob(self, ref: PayloadRef) -> bool:
        return not has_blob(self._tx, ref.digest) and self._can_open(ref)

    def _can_open(self, ref: PayloadRef) -> bool:
        """A blob that is not for us is not worth fetching: its event will be refused."""
        try:
            key = self._parts.routes.sender_key(self._source)
            self._parts.node.cipher.unwrap_key(ref.keys, key)
        except GatepostError:
            return False
        return True


def mailbox_capacity(tx: Tx, dispatcher: Dispatcher, mailbox: str) -> int:
    """How many more messages a mailbox takes."""
    row = tx.fetch_one(_SELECT_WAITING, (mailbox,))
    return dispatcher.policy.max_pending - (row[0] if row else 0)
