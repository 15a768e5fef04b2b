"""Forwarding the mail of agents that live elsewhere now, and answering for it.

When an agent moved, mail that was accepted for it here is not lost: mail that no consumer has in
hand leaves the mailbox and goes on as an event of our own, caused by the one it stands for. That is
one transaction, so a gateway may be killed at any moment. The end of our event is reported to the
original sender, reply and all, as if the turn had ended here. Mail that was merely enqueued here
for an agent that lives elsewhere goes the same way; nobody is told of its end.
"""

import msgspec
from msgspec import UnsetType

from gatepost.delivery.agents import Agents
from gatepost.delivery.decisions import (
    NOTHING,
    Decisions,
    DeliveryEnded,
    ForwardEnded,
    ForwardMail,
    TurnEnded,
)
from gatepost.delivery.incidents import IncidentLog
from gatepost.delivery.local_node import LocalNode
from gatepost.delivery.outgoing import EMPTY_PAYLOAD, OutgoingEvent, TurnReply
from gatepost.delivery.routes import RouteFinder
from gatepost.errors import GatepostError
from gatepost.events import EventKind, parse_event_id
from gatepost.journal.transaction import Tx
from gatepost.mailbox import Dispatcher
from gatepost.mailbox.enqueue import is_unordered
from gatepost.mailbox.leases import FORWARD_READY, FORWARD_WAITING, MailChoice, parse_lease_handle
from gatepost.wire import EventInfo, LeasedMessage

# How much of one mailbox a commit group forwards; the next group goes on with the rest.
_PORTION = 256

_SELECT_WAITING = "SELECT 1 FROM mailbox WHERE waiting > 0 AND name = ?"
_SELECT_NAME = "SELECT name FROM mailbox WHERE waiting > 0 AND id = ?"
_SELECT_TERMS = "SELECT expires_at, not_before, max_retries FROM mail WHERE id = ?"
_RECORD_FORWARD = """
INSERT INTO forwarded (event_id, source, original, sender, mailbox, meta, at)
VALUES (?, ?, ?, ?, ?, ?, ?)
"""
_SELECT_OPEN = "SELECT 1 FROM forwarded WHERE outcome IS NULL LIMIT 1"
_END_FORWARD = """
UPDATE forwarded SET outcome = ?, reason = ? WHERE event_id = ? AND outcome IS NULL
RETURNING meta, sender, mailbox, source, original
"""
_SELECT_REPLY = "SELECT reply, reply_ref FROM delivery WHERE event_id = ?"
_SELECT_OUTCOME = "SELECT outcome, reason FROM forwarded WHERE source = ? AND original = ?"

_decode_info = msgspec.json.Decoder(EventInfo).decode


class MailForwarder:
    """All of it runs in the writer's thread."""

    def __init__(
        self,
        node: LocalNode,
        agents: Agents,
        routes: RouteFinder,
        dispatcher: Dispatcher,
        incidents: IncidentLog,
    ) -> None:
        self._node = node
        self._agents = agents
        self._routes = routes
        self._dispatcher = dispatcher
        self._incidents = incidents
        self._consumer = f"forward:{node.id}"
        # Agents that live at another node, and those of them whose mailbox is to be looked at.
        self._elsewhere: frozenset[str] = frozenset()
        self._unchecked: set[str] = set()
        # Whether any forwarded mail has not ended; None until the journal was asked.
        self._has_open: bool | None = None

    def room_changed(self) -> None:
        """An agent may have moved."""
        homes, here = self._routes.directory.agents.items(), self._node.id
        self._elsewhere = frozenset(id for id, home in homes if home.owner not in (None, here))
        self._unchecked = set(self._elsewhere)

    def rolled_back(self) -> None:
        self._unchecked = set(self._elsewhere)
        self._has_open = None

    def take_stranded_mail(self, tx: Tx) -> Decisions:
        """Take mail out of the mailboxes of agents that live elsewhere."""
        if not self._elsewhere:
            return NOTHING
        unchecked, self._unchecked = self._unchecked, set()
        # Unordered mail that is delayed moves only when the room changes: while two gateways
        # disagree about it, mail must not go to and fro between them.
        takes = {n: FORWARD_WAITING for n in unchecked if tx.fetch_one(_SELECT_WAITING, (n,))}
        for id in self._dispatcher.ready_mailboxes:
            for (name,) in tx.fetch_all(_SELECT_NAME, (id,)):
                takes.setdefault(name, FORWARD_READY)
        stranded = sorted(takes.keys() & self._elsewhere)
        taken = (self._take_from(tx, name, takes[name]) for name in stranded)
        return [decision for each in taken for decision in each]

    def record_forward(self, tx: Tx, forward: ForwardMail) -> None:
        """Remember which event our own stands for, so that its end can be reported."""
        event, info = forward.event, forward.info
        if info is None:
            return
        source = info.source_node or self._node.id
        ids = (parse_event_id(event.event_id), source, parse_event_id(info.event_id))
        tx.execute(_RECORD_FORWARD, (*ids, *event.agents, msgspec.json.encode(info), tx.now))
        self._has_open = True

    def fail_forward(self, tx: Tx, forward: ForwardMail, error: GatepostError) -> Decisions:
        """Mail that cannot be sent on is lost, and its sender is told so."""
        self._incidents.raise_(tx, "forward_failed", forward.msg_id, error.message)
        if forward.info is None:
            return NOTHING
        return (TurnEnded(forward.info, *forward.event.agents, "dead_letter", error.message),)

    def end_forward(self, tx: Tx, ended: DeliveryEnded) -> Decisions:
        """If the delivery that ended stood for another event, that one's turn has ended too."""
        if not self._has_open_forwards(tx):
            return NOTHING
        id = parse_event_id(ended.event_id)
        row = tx.fetch_one(_END_FORWARD, (ended.outcome, ended.reason, id))
        if row is None:
            return NOTHING
        meta, sender, mailbox, source, original = row
        ((payload, digest),) = tx.fetch_all(_SELECT_REPLY, (id,))
        info = _decode_info(meta)
        is_answered = payload is not None or digest is not None
        reply = TurnReply(payload or EMPTY_PAYLOAD, digest) if is_answered else None
        turn = TurnEnded(info, sender, mailbox, ended.outcome, ended.reason, reply)
        return turn, ForwardEnded(source, original)

    def _take_from(self, tx: Tx, mailbox: str, choice: MailChoice) -> Decisions:
        if self._agents.is_standby(tx, mailbox):
            return NOTHING
        try:
            route = self._routes.find_route(tx, mailbox)
            self._routes.public_key(route.node)
        except GatepostError:
            return NOTHING
        if route.node == self._node.id:
            return NOTHING
        decisions = []
        take = self._dispatcher.take_mail_to_forward
        messages = take(tx, mailbox, self._consumer, _PORTION, choice)
        if len(messages) == _PORTION and choice == FORWARD_WAITING:
            self._unchecked.add(mailbox)
        for message in messages:
            raw = message.event
            info = None if isinstance(raw, UnsetType) else _decode_info(raw)
            event = self._outgoing_event(tx, message, info)
            decisions.append(ForwardMail(event, route, message.msg_id, info))
        return decisions

    def _outgoing_event(
        self, tx: Tx, message: LeasedMessage, info: EventInfo | None
    ) -> OutgoingEvent:
        id = self._node.event_ids.next_id()
        mail, _ = parse_lease_handle(message.receipt)
        ((expires, not_before, max_retries),) = tx.fetch_all(_SELECT_TERMS, (mail,))
        payload = bytes(message.payload)
        out = OutgoingEvent(id, EventKind.MESSAGE, message.from_, message.to, id, payload)
        out.ttl = max(1, expires - tx.now)
        out.not_before = not_before if not_before > tx.now else None
        out.order, out.max_retries = "none" if is_unordered(mail) else None, max_retries
        if info is not None:
            out.order = info.order
            out.kind, out.corr_id, out.digest = info.kind, info.corr_id, info.payload_ref
            out.ref_event_id, out.traceparent = info.ref_event_id, info.traceparent
            out.causation_id, out.priority = info.event_id, info.priority
            out.origin_event_id = info.origin_event_id or info.event_id
            out.origin_node = self._origin_of(info)
        return out

    def _origin_of(self, info: EventInfo) -> str:
        """The gateway that numbered the mail first; empty if it is this one."""
        origin = info.origin_node or info.source_node or self._node.id
        return "" if origin == self._node.id else origin

    def _has_open_forwards(self, tx: Tx) -> bool:
        if self._has_open is None:
            self._has_open = tx.fetch_one(_SELECT_OPEN) is not None
        return self._has_open


def forward_outcome(tx: Tx, source: str, original: bytes) -> tuple[str | None, str | None] | None:
    """(outcome, reason) of mail that was forwarded, both None as long as it is under way."""
    row = tx.fetch_one(_SELECT_OUTCOME, (source, original))
    return None if row is None else (row[0], row[1])
