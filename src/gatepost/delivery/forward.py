"""Forwarding mail of agents that moved to another gateway, and reporting its end.

When an agent moved, mail that was accepted for it here is not lost: mail that is not leased leaves
the mailbox as a new event of ours, caused by the original event. That is one transaction, so a
gateway may be killed at any moment. The end of our event is reported to the original sender, reply
and all, as if the turn had ended here. Mail that was merely enqueued here for an agent that lives
elsewhere goes the same way, but its end is not reported.

Two gateways may disagree for a moment about where an agent lives, and each send its mail to the
other. When forwarded mail comes back and is forwarded again, the mailbox waits before the next
time: until the agent's home changes, or for a delay that doubles each time.
"""

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import UnsetType
from msgspec.structs import replace

from gatepost.delivery.agents import Agents
from gatepost.delivery.decisions import (
    NOTHING,
    Decisions,
    DeliveryEnded,
    EndAmended,
    ForwardEnded,
    ForwardMail,
    MailOvertaken,
    TurnEnded,
)
from gatepost.delivery.event_mail import decode_info, draft_again
from gatepost.delivery.inbox.inbox_table import IS_TAKEN_SQL
from gatepost.delivery.incidents import IncidentLog
from gatepost.delivery.local_node import LocalNode
from gatepost.delivery.outgoing import EMPTY_PAYLOAD, OutgoingEvent, TurnReply
from gatepost.delivery.routes import RouteFinder
from gatepost.errors import GatepostError
from gatepost.events import Envelope, EventKind, parse_event_id
from gatepost.events.reserved_names import unqualify_sender
from gatepost.journal.transaction import Row, Tx
from gatepost.mailbox import Dispatcher
from gatepost.mailbox.enqueue import is_unordered
from gatepost.mailbox.leases import FORWARD_READY, FORWARD_WAITING, MailChoice, parse_lease_handle
from gatepost.mailbox.lookup import count_waiting, mail_terms, name_if_waiting
from gatepost.routing import Route
from gatepost.wire.operations import EventInfo, LeasedMessage

_FIRST_RETURN_DELAY_MS = 100
_LONGEST_RETURN_DELAY_MS = 10_000

# The most mail of one mailbox that a commit group forwards; the next group forwards more.
_PORTION = 256

_RECORD_FORWARD = """
INSERT INTO forwarded (event_id, source, original, sender, mailbox, meta, at)
VALUES (?, ?, ?, ?, ?, ?, ?)
"""
_SELECT_OPEN = "SELECT 1 FROM forwarded WHERE outcome IS NULL LIMIT 1"
_END_FORWARD = """
UPDATE forwarded SET outcome = ?, reason = ? WHERE event_id = ? AND outcome IS NULL
RETURNING meta, sender, mailbox, source, original
"""
_AMEND_FORWARD = """
UPDATE forwarded SET outcome = ?, reason = ? WHERE event_id = ? AND outcome NOT IN ('ok', 'kept')
RETURNING meta, sender, mailbox, source, original
"""
_SELECT_REPLY = "SELECT reply, reply_ref FROM delivery WHERE event_id = ?"
# This message was sent or forwarded from here, and has not ended.
_SELECT_SENT_BEFORE = """
SELECT 1 FROM delivery WHERE event_id = ?1 AND processed_at IS NULL
UNION ALL SELECT 1 FROM delivery WHERE origin = ?1 AND processed_at IS NULL LIMIT 1
"""
_SELECT_OUTCOME = "SELECT outcome, reason FROM forwarded WHERE source = ? AND original = ?"
_SELECT_FORWARDS = """
SELECT event_id, at FROM forwarded WHERE source = ? AND original = ? ORDER BY event_id
"""
# The original event of another gateway for which our `{event}` was emitted.
ORIGINAL_SQL = "SELECT original FROM forwarded WHERE event_id = {event}"
# Whether the event `{event}` of `{source}` was forwarded and its turn has not ended.
IS_FORWARD_OPEN_SQL = """EXISTS (
    SELECT 1 FROM forwarded f
    WHERE f.source = {source} AND f.original = {event} AND f.outcome IS NULL
)"""
# Keep the outcome of forwarded mail while its event may come again.
_FORGET = f"""
DELETE FROM forwarded WHERE event_id IN (
    SELECT event_id FROM forwarded h WHERE at <= ? AND outcome IS NOT NULL
    AND NOT {IS_TAKEN_SQL.format(source="h.source", event="h.original")} LIMIT ?
)
"""


class ReturnDelays:
    """The mailboxes whose forwarded mail came back, and how long each waits before the next time.

    Only in memory: after a restart the delays begin anew.
    """

    def __init__(self) -> None:
        # Mailbox → its last delay; and the ends of the delays that were not taken yet.
        self._delays: dict[str, int] = {}
        self._ends: dict[str, int] = {}

    def must_wait(self, mailbox: str, now: int) -> bool:
        """Whether a mailbox still waits. Setting the clock back does not prolong the wait."""
        end = self._ends.get(mailbox)
        return end is not None and end - self._delays[mailbox] <= now < end

    def take_ended(self, now: int) -> list[str]:
        """The mailboxes whose delay is over, each once."""
        ended = [mailbox for mailbox in self._ends if not self.must_wait(mailbox, now)]
        for mailbox in ended:
            del self._ends[mailbox]
        return ended

    def begin_delay(self, mailbox: str, now: int) -> None:
        delay = max(2 * self._delays.get(mailbox, 0), _FIRST_RETURN_DELAY_MS)
        self._delays[mailbox] = min(delay, _LONGEST_RETURN_DELAY_MS)
        self._ends[mailbox] = now + self._delays[mailbox]

    def forget(self, mailboxes: Iterable[str]) -> None:
        for mailbox in mailboxes:
            self._delays.pop(mailbox, None)
            self._ends.pop(mailbox, None)

    def next_due(self, now: int) -> int | None:
        due = (min(end, now + self._delays[mailbox]) for mailbox, end in self._ends.items())
        return min(due, default=None)


class MailForwarder:
    """Runs in the writer's thread."""

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
        # Agent → the other node that it lives at; and the agents whose mailbox was not checked yet.
        self._elsewhere: dict[str, str] = {}
        self._unchecked: set[str] = set()
        self._delays = ReturnDelays()
        # Whether any forwarded mail is open; None until it is read from the journal.
        self._has_open: bool | None = None

    def room_changed(self) -> None:
        """An agent may have moved."""
        homes, here = self._routes.directory.agents.items(), self._node.id
        before = self._elsewhere
        self._elsewhere = {id: home.owner for id, home in homes if home.owner not in (None, here)}
        self._delays.forget(id for id, _ in before.items() ^ self._elsewhere.items())
        self._unchecked = set(self._elsewhere)

    def rolled_back(self) -> None:
        self._unchecked = set(self._elsewhere)
        self._has_open = None

    def follow_forwarded(self, tx: Tx, overtaken: MailOvertaken) -> Decisions:
        """Forward mail before its agent, which may still be connected here, can lease it."""
        (mailbox,) = overtaken
        if mailbox not in self._elsewhere:
            return NOTHING
        return self._take_from(tx, mailbox, FORWARD_READY)

    def take_stranded_mail(self, tx: Tx) -> Decisions:
        """Take mail out of the mailboxes of agents that live elsewhere."""
        if not self._elsewhere:
            return NOTHING
        takes = self._choose_mail(tx)
        waiting = {name for name in takes if self._delays.must_wait(name, tx.now)}
        self._unchecked = {name for name in waiting if takes[name] == FORWARD_WAITING}
        stranded = sorted(takes.keys() & self._elsewhere.keys() - waiting)
        taken = (self._take_from(tx, name, takes[name]) for name in stranded)
        return [decision for each in taken for decision in each]

    def next_due(self, tx: Tx) -> int | None:
        """When the first waiting mailbox is due."""
        return self._delays.next_due(tx.now)

    def _choose_mail(self, tx: Tx) -> dict[str, MailChoice]:
        """The mailboxes to look at, and the mail that goes on from each.

        Unordered mail that is delayed moves only when the room changes: while two gateways disagree
        about it, mail must not go to and fro between them.
        """
        takes = {name: FORWARD_WAITING for name in self._unchecked if count_waiting(tx, name)}
        for name in self._delays.take_ended(tx.now):
            takes.setdefault(name, FORWARD_READY)
        for id in self._dispatcher.ready_mailboxes:
            ready = name_if_waiting(tx, id)
            if ready is not None:
                takes.setdefault(ready, FORWARD_READY)
        return takes

    def record_forward(self, tx: Tx, forward: ForwardMail) -> None:
        """Remember the original event of a forwarded one, so that its end can be reported."""
        event, info = forward.event, forward.info
        if info is None:
            return
        source = info.source_node or self._node.id
        ids = (parse_event_id(event.event_id), source, parse_event_id(info.event_id))
        tx.execute(_RECORD_FORWARD, (*ids, *event.agents, msgspec.json.encode(info), tx.now))
        self._has_open = True

    def fail_forward(self, tx: Tx, forward: ForwardMail, error: GatepostError) -> Decisions:
        """Report mail that cannot be forwarded as lost to its sender."""
        self._incidents.raise_(tx, "forward_failed", forward.msg_id, error.message)
        if forward.info is None:
            return NOTHING
        return (TurnEnded(forward.info, *forward.event.agents, "dead_letter", error.message),)

    def end_forward(self, tx: Tx, ended: DeliveryEnded) -> Decisions:
        """If the ended delivery was forwarded mail, end the turn of the original event."""
        if not self._has_open_forwards(tx):
            return NOTHING
        id = parse_event_id(ended.event_id)
        row = tx.fetch_one(_END_FORWARD, (ended.outcome, ended.reason, id))
        if row is None:
            return NOTHING
        source, original = row[3:]
        return self._end_turn(tx, id, ended, row), ForwardEnded(source, original)

    def amend_forward(self, tx: Tx, amended: EndAmended) -> Decisions:
        """Tell the original sender of a turn, after an end without one was reported to it."""
        id = parse_event_id(amended.event_id)
        row = tx.fetch_one(_AMEND_FORWARD, (amended.outcome, amended.reason, id))
        return NOTHING if row is None else (self._end_turn(tx, id, amended, row),)

    def _end_turn(
        self, tx: Tx, id: bytes, ended: DeliveryEnded | EndAmended, row: Row
    ) -> TurnEnded:
        """The end of the forwarded mail that our event `id` carried, for its original sender."""
        meta, sender, mailbox, *_ = row
        ((payload, digest),) = tx.fetch_all(_SELECT_REPLY, (id,))
        info = decode_info(meta)
        is_answered = payload is not None or digest is not None
        reply = TurnReply(payload or EMPTY_PAYLOAD, digest) if is_answered else None
        return TurnEnded(info, sender, mailbox, ended.outcome, ended.reason, reply)

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
        take = self._dispatcher.take_mail_to_forward
        messages = take(tx, mailbox, self._consumer, _PORTION, choice)
        forwards = [self._build_forward(tx, message, route) for message in messages]
        if len(messages) < _PORTION:
            if any(self._was_sent_before(tx, forward.event) for forward in forwards):
                self._delays.begin_delay(mailbox, tx.now)
        elif choice == FORWARD_WAITING:
            self._unchecked.add(mailbox)
        return forwards

    def _build_forward(self, tx: Tx, message: LeasedMessage, route: Route) -> ForwardMail:
        raw = message.event
        info = None if isinstance(raw, UnsetType) else decode_info(raw)
        event = self._outgoing_event(tx, message, info)
        return ForwardMail(event, route, message.msg_id, info)

    def _was_sent_before(self, tx: Tx, event: OutgoingEvent) -> bool:
        """Whether a mail is one that this gateway sent to another before, and that is still open.

        Mail that a sender of this gateway sent to its own mailbox has not been anywhere else.
        """
        origin = event.envelope.origin_event_id
        if origin is None or origin == event.envelope.causation_id:
            return False
        return tx.fetch_one(_SELECT_SENT_BEFORE, (parse_event_id(origin),)) is not None

    def _outgoing_event(
        self, tx: Tx, message: LeasedMessage, info: EventInfo | None
    ) -> OutgoingEvent:
        id = self._node.event_ids.next_id()
        mail, _ = parse_lease_handle(message.receipt)
        expires, not_before, max_retries = mail_terms(tx, mail)
        payload, sender = bytes(message.payload), unqualify_sender(message.from_)
        terms: dict[str, Any] = {
            "expires_at": tx.now + max(1, expires - tx.now),
            "not_before": not_before if not_before > tx.now else None,
            "max_retries": max_retries,
        }
        if info is None:
            envelope = Envelope(
                event_id=id,
                kind=EventKind.MESSAGE,
                source_agent_id=sender,
                to_agent_id=message.to,
                corr_id=id,
                order="none" if is_unordered(mail) else None,
                **terms,
            )
            return OutgoingEvent(envelope, payload)
        envelope = replace(
            draft_again(info, id, sender, message.to),
            origin_event_id=info.origin_event_id or info.event_id,
            origin_node_id=self._origin_of(info),
            **terms,
        )
        return OutgoingEvent(envelope, payload, info.payload_ref, info.priority)

    def _origin_of(self, info: EventInfo) -> str | None:
        """The gateway that numbered the mail first; None if it is this one."""
        origin = info.origin_node or info.source_node
        return None if origin == self._node.id else origin

    def _has_open_forwards(self, tx: Tx) -> bool:
        if self._has_open is None:
            self._has_open = tx.fetch_one(_SELECT_OPEN) is not None
        return self._has_open


def forward_outcome(tx: Tx, source: str, original: bytes) -> tuple[str | None, str | None] | None:
    """(outcome, reason) of forwarded mail; both None while it is open."""
    row = tx.fetch_one(_SELECT_OUTCOME, (source, original))
    return None if row is None else (row[0], row[1])


def find_forwards(tx: Tx, source: str, original: bytes) -> list[tuple[bytes, int]]:
    """(our event, when it was sent) of each time that an event was forwarded, oldest first."""
    return [(row[0], row[1]) for row in tx.fetch_all(_SELECT_FORWARDS, (source, original))]


def forget_forwards(tx: Tx, before: int, batch: int) -> int:
    """Forget mail that was forwarded before that time and has ended; returns how many."""
    tx.execute(_FORGET, (before, batch))
    return tx.changed_rows()
