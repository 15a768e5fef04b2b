"""Mail of agents that live elsewhere now: sent on to where they live, and answered for.

When an agent moved, mail that was accepted for it here is not lost: whatever no consumer has in
hand leaves the mailbox and goes on as an event of our own, caused by the one it stands for. That is
one transaction, so a gateway may be killed at any moment. What becomes of our event is what its
original sender is told, reply and all, as if the turn had ended here. Mail that was merely enqueued
here for an agent that lives elsewhere goes the same way; nobody is told of that.
"""

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct, UnsetType

from gatepost.delivery.agents import Agents
from gatepost.delivery.incidents import Incidents
from gatepost.delivery.node import Node
from gatepost.delivery.sender import Ended, Outgoing, Sender
from gatepost.errors import GatepostError
from gatepost.events import EventKind, parse_event_id
from gatepost.journal.transaction import Tx
from gatepost.mailbox import Dispatcher
from gatepost.mailbox.leases import parse_lease_handle
from gatepost.routing import Route
from gatepost.wire import EventInfo, LeasedMessage

# How much of one mailbox a commit group sends on; the next one goes on with the rest.
_PORTION = 256

_WAITING = "SELECT id FROM mailbox WHERE waiting > 0 AND name = ?"
_NAME = "SELECT name FROM mailbox WHERE waiting > 0 AND id = ?"
_EXPIRES = "SELECT expires_at FROM mail WHERE id = ?"
_REMEMBER = "INSERT INTO handover VALUES (?, ?, ?, ?, ?, ?, ?, NULL, NULL)"
_OPEN = "SELECT 1 FROM handover WHERE outcome IS NULL LIMIT 1"
_END = """
UPDATE handover SET outcome = ?, reason = ? WHERE event_id = ? AND outcome IS NULL
RETURNING meta, sender, mailbox
"""
_REPLY = "SELECT reply FROM delivery WHERE event_id = ?"
_BECAME = "SELECT outcome, reason FROM handover WHERE source = ? AND original = ?"

_decode_info = msgspec.json.Decoder(EventInfo).decode

Way = Callable[[Tx, str], Route]


class Settled(Struct, frozen=True):
    """What the sender of mail is to be told. `ends` are its sender and its agent."""

    info: EventInfo
    ends: tuple[str, str]
    outcome: Any
    reason: str | None = None
    reply: bytes | None = None


class Handover:
    """All of it runs in the writer's thread. `tell` tells the sender of mail what became of it."""

    def __init__(
        self,
        node: Node,
        agents: Agents,
        sender: Sender,
        incidents: Incidents,
        way: Way,
        tell: Callable[[Tx, Settled], None],
    ) -> None:
        self._node = node
        self._agents = agents
        self._sender = sender
        self._incidents = incidents
        self._way = way
        self._tell = tell
        self._consumer = f"handover:{node.id}"
        self.dispatcher: Dispatcher
        self._elsewhere: frozenset[str] = frozenset()
        self._look: set[str] = set()
        self._any: bool | None = None
        self.handed_over = 0

    def room_changed(self) -> None:
        """Somebody may have moved."""
        homes = self._sender.directory.agents.items()
        me = self._node.id
        self._elsewhere = frozenset(id for id, home in homes if home.owner not in (None, me))
        self._look = set(self._elsewhere)

    def before_commit(self, tx: Tx) -> None:
        """Send on what waits here in vain."""
        if not self._elsewhere:
            return
        names, self._look = self._look, set()
        names = {name for name in names if tx.fetch_one(_WAITING, (name,))}
        for id in self.dispatcher.ready_mailboxes:
            names.update(row[0] for row in tx.fetch_all(_NAME, (id,)))
        for name in sorted(names & self._elsewhere):
            if not self._agents.stands_by(tx, name):
                self._send_on(tx, name)

    def rolled_back(self) -> None:
        self._look = set(self._elsewhere)
        self._any = None

    def ended(self, tx: Tx, ended: Ended) -> None:
        """A delivery came to its end. If it stood for another, that has ended too."""
        if not self._has_any(tx):
            return
        id = parse_event_id(ended.event_id)
        row = tx.fetch_one(_END, (ended.outcome, ended.reason, id))
        if row is None:
            return
        meta, sender, mailbox = row
        ((reply,),) = tx.fetch_all(_REPLY, (id,))
        self._tell(
            tx,
            Settled(_decode_info(meta), (sender, mailbox), ended.outcome, ended.reason, reply),
        )

    # -- inside

    def _send_on(self, tx: Tx, mailbox: str) -> None:
        try:
            way = self._way(tx, mailbox)
            self._sender.key_of(way.node)
        except GatepostError:
            return
        if way.node == self._node.id:
            return
        for message in self.dispatcher.take_mail_to_forward(tx, mailbox, self._consumer, _PORTION):
            self._try(tx, message, way)

    def _try(self, tx: Tx, message: LeasedMessage, way: Route) -> None:
        """Send it on. What cannot be sent is lost, which its sender is told; nothing else is."""
        raw = message.event
        info = None if isinstance(raw, UnsetType) else _decode_info(raw)
        mark = tx.begin_operation()
        try:
            self._send(tx, message, info, way)
        except GatepostError as error:
            tx.undo_operation(mark)
            self._incidents.raise_(tx, "handover_failed", message.msg_id, error.message)
            if info is not None:
                ends = (message.from_, message.to)
                self._tell(tx, Settled(info, ends, "dead_letter", error.message))
        else:
            tx.keep_operation()
            self.handed_over += 1

    def _send(self, tx: Tx, message: LeasedMessage, info: EventInfo | None, way: Route) -> None:
        out = self._outgoing(tx, message, info)
        if info is not None:
            source = info.source_node or self._node.id
            ids = (parse_event_id(out.event_id), source, parse_event_id(info.event_id))
            meta = msgspec.json.encode(info)
            tx.execute(_REMEMBER, (*ids, message.from_, message.to, meta, tx.now))
            self._any = True
        self._sender.emit(tx, out, way)

    def _outgoing(self, tx: Tx, message: LeasedMessage, info: EventInfo | None) -> Outgoing:
        id = self._node.event_ids.next_id()
        ((expires,),) = tx.fetch_all(_EXPIRES, (parse_lease_handle(message.receipt)[0],))
        out = Outgoing(id, EventKind.MESSAGE, message.from_, message.to, id, bytes(message.payload))
        out.ttl = max(1, expires - tx.now)
        if info is not None:
            out.kind, out.corr_id, out.digest = info.kind, info.corr_id, info.payload_ref
            out.ref_event_id, out.traceparent = info.ref_event_id, info.traceparent
            out.causation_id, out.priority = info.event_id, info.priority
            is_ours = info.source_node in (None, self._node.id)
            out.stands_for = info.event_id if is_ours else None
        return out

    def _has_any(self, tx: Tx) -> bool:
        if self._any is None:
            self._any = tx.fetch_one(_OPEN) is not None
        return self._any


def became(tx: Tx, source: str, original: bytes) -> tuple[str | None, str | None] | None:
    """(outcome, reason) of mail that was handed over, both None as long as it is under way."""
    row = tx.fetch_one(_BECAME, (source, original))
    return None if row is None else (row[0], row[1])
