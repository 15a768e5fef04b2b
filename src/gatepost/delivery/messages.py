"""Messages between agents, wherever they live: sent once, receipted twice.

To an agent of this gateway, `send` is one transaction: event, mail, delivery, and the `accepted`
receipt, for owner and sender are the same. To any other, the event and the delivery are one
transaction here, and the rest is the other gateway's. When a turn ends, the `reply` and the
`processed` receipt are appended in the transaction that settles the mail.
"""

from collections.abc import Callable, Mapping
from functools import partial
from hashlib import blake2b
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, Raw, UnsetType

from gatepost.delivery import fanout
from gatepost.delivery.agents import Agents
from gatepost.delivery.handover import Handover, Settled
from gatepost.delivery.incidents import Incidents
from gatepost.delivery.node import Node
from gatepost.delivery.patience import Patience
from gatepost.delivery.receiver import ACCEPTED, PROCESSED, Receiver
from gatepost.delivery.sender import Ended, Outgoing, Sender, blob
from gatepost.errors import (
    GatepostError,
    IdempotencyConflict,
    InvalidRequest,
    InvalidTargets,
    NoRoute,
    UnknownMessage,
)
from gatepost.events import (
    EventKind,
    PayloadRef,
    Receipt,
    Trace,
    check_digest,
    encode_payload,
    format_event_id,
    parse_event_id,
)
from gatepost.journal.outbox import EventDraft
from gatepost.journal.transaction import Tx
from gatepost.journal.writer import JobOutcome
from gatepost.mailbox import ClosedMail, Dispatcher, NewMail, Settlement
from gatepost.mailbox.dead_letters import DeadLetterFilter, replay_dead_letters
from gatepost.mailbox.enqueue import find_mailbox, pair_of_mail
from gatepost.routing import Route, RoutingDirectory, decide_route
from gatepost.wire import DeadLetter, EnqueueAck, EventInfo, Failure, NewSend, Sent

_SENT = """
SELECT event_id, corr_id, state, node, outcome, reason, accepted_at, processed_at, reply
FROM delivery WHERE event_id = ?
"""
_MAIL_OF = """
SELECT m.id FROM mail m JOIN mailbox b ON b.id = m.mailbox WHERE b.name = ? AND m.msg_id = ?
"""
_KNOWN = "SELECT from_agent, to_agent, fingerprint FROM delivery WHERE event_id = ?"
_META = "SELECT meta FROM body WHERE id = ?"
_PAIR = "SELECT p.sender, b.name FROM pair p JOIN mailbox b ON b.id = p.mailbox WHERE p.id = ?"
_PAIRS_CACHED = 10_000
_NOTHING = b"null"

T = TypeVar("T")
Woken = Callable[[Any, GatepostError | None], None]
Replies = Mapping[str, Raw]

_decode_info = msgspec.json.Decoder(EventInfo).decode


class Messages:
    """All of it runs in the writer's thread."""

    def __init__(
        self,
        node: Node,
        agents: Agents,
        patience: Patience,
        want_blob: Callable[[str, str], None] = lambda digest, source: None,
    ) -> None:
        self._node = node
        self._agents = agents
        self._ttl = patience.ttl
        self.incidents = Incidents(node.id)
        self.sender = Sender(node, patience, self.incidents, self._route, self._ended, self._own)
        self.receiver = Receiver(node, agents, self.sender, self.incidents, want_blob)
        self.transfers = self.receiver.transfers
        self.handover = Handover(node, agents, self.sender, self.incidents, self._way, self._tell)
        self._waiting: dict[str, list[tuple[str, Woken]]] = {}
        self._pairs: dict[int, tuple[str, str]] = {}
        # Called when agents came or went, after that is on disk.
        self.on_agents: Callable[[], None] = lambda: None
        self._woken: list[JobOutcome] = []

    @property
    def dispatcher(self) -> Dispatcher:
        return self.receiver.dispatcher

    @dispatcher.setter
    def dispatcher(self, dispatcher: Dispatcher) -> None:
        self.receiver.dispatcher = self.handover.dispatcher = dispatcher

    # -- operations

    def send(self, tx: Tx, new: NewSend, fingerprint: bytes) -> Sent:
        """Send one message, or return what became of it if it was sent before."""
        if not isinstance(new.to_agents, UnsetType):
            return self._send_copies(tx, new, fingerprint)
        known = self._known(tx, new, fingerprint)
        if known is not None:
            return self.status(tx, known)
        outgoing = self._outgoing(new, fingerprint)
        node = self._send(tx, outgoing)
        if not isinstance(new.idempotency_key, UnsetType):
            id = parse_event_id(outgoing.event_id)
            row = (new.from_agent, new.idempotency_key, fingerprint, id, tx.now)
            tx.execute("INSERT INTO idempotency VALUES (?, ?, ?, ?, ?)", row)
        if node not in (None, self._node.id):
            return Sent(outgoing.event_id, outgoing.corr_id, "emitted", node)
        return self.status(tx, outgoing.event_id)

    def _send(self, tx: Tx, out: Outgoing) -> str | None:
        """Where it went. What nobody can take is a dead letter at once."""
        try:
            way = self._way(tx, out.to_agent)
        except NoRoute as error:
            self.sender.undeliverable(tx, out, "no_route", error.message)
            return None
        self._emit(tx, out, way)
        return way.node

    def send_again(self, tx: Tx, out: Outgoing, node: str | None) -> None:
        """Send what was given up at `node`. An answer goes to nobody else."""
        if out.kind == EventKind.REPLY and node is not None:
            self._emit(tx, out, Route(node, "reply"))
        else:
            self._emit(tx, out, self._way(tx, out.to_agent))

    def status(self, tx: Tx, event_id: str) -> Sent:
        row = tx.fetch_one(_SENT, (parse_event_id(event_id),))
        if row is None:
            raise UnknownMessage(f"no message {event_id} was sent from this gateway")
        sent = Sent(format_event_id(row[0]), *row[1:-1])
        sent.reply = UNSET if row[-1] is None else Raw(row[-1])
        return sent

    def wait(self, tx: Tx, event_id: str, woken: Woken, until: str = "processed") -> Sent:
        """The status now; if the message is not that far yet, `woken` gets it when it is."""
        sent = self.status(tx, event_id)
        if not is_reached(sent, until):
            tx.add_effect(partial(self._park, sent.event_id, [(until, woken)]))
        return sent

    def stop_waiting(self, tx: Tx, event_id: str, woken: Woken) -> None:
        waiting = [each for each in self._waiting.pop(event_id, []) if each[1] is not woken]
        if waiting:
            self._waiting[event_id] = waiting

    def ack(
        self, tx: Tx, mailbox: str, receipts: list[str], msg_ids: list[str], replies: Replies
    ) -> Settlement:
        settlement = self.dispatcher.ack(tx, mailbox, receipts, msg_ids)
        self.close(tx, settlement.closed, replies)
        return settlement

    def nack(
        self, tx: Tx, mailbox: str, receipts: list[str], msg_ids: list[str], reason: str
    ) -> Settlement:
        settlement = self.dispatcher.nack(tx, mailbox, receipts, msg_ids, reason)
        self.close(tx, settlement.closed)
        return settlement

    def replay(
        self, tx: Tx, mailbox: str, wanted: DeadLetterFilter, limit: int, actor: str
    ) -> list[EnqueueAck]:
        """Send dead letters again: an event as a new event caused by the old one."""
        id = find_mailbox(tx, mailbox)
        return replay_dead_letters(tx, id, wanted, limit, self._resend, actor) if id else []

    def close(
        self, tx: Tx, closed: list[ClosedMail], replies: Replies = MappingProxyType({})
    ) -> None:
        """Tell the senders of settled mail what became of it."""
        for mail in closed:
            self._close(tx, mail, replies.get(mail.lease_handle))

    def room_changed(self, tx: Tx, directory: RoutingDirectory) -> None:
        self.sender.room_changed(tx, directory)
        self.handover.room_changed()

    # -- the commit group

    def before_commit(self, tx: Tx) -> None:
        self.sender.tick(tx)
        self.receiver.before_commit(tx)
        self.handover.before_commit(tx)

    def after_commit(self) -> list[JobOutcome]:
        woken, self._woken = self._woken, []
        if self._agents.news:
            self._agents.news = False
            woken.append((lambda value, error: self.on_agents(), None, None))
        return woken

    def rolled_back(self) -> None:
        self._woken.clear()
        self._pairs.clear()
        self._agents.changed()
        self.sender.look_at_the_clock()
        self.receiver.rolled_back()
        self.handover.rolled_back()

    def next_due(self, tx: Tx) -> int | None:
        return self.sender.next_due()

    # -- inside

    def _send_copies(self, tx: Tx, new: NewSend, fingerprint: bytes) -> Sent:
        """A copy for each, or an error in its place; InvalidTargets if that is all there is."""
        whole = self._node.event_ids.next_id() if new.event_id is UNSET else str(new.event_id)
        to = fanout.targets(tx, new, self.sender.directory, self._agents)
        each = fanout.copies(new, whole, fingerprint, to)
        sent = [self._send_copy(tx, copy, mark) for copy, mark in each]
        failures = [copy.error for copy in sent if copy.error is not None]
        if len(failures) == len(sent):
            raise InvalidTargets(f"it could be sent to none of them: {failures[0].message}")
        (first, *_) = (copy for copy in sent if copy.error is None)
        return Sent(whole, first.corr_id, copies=sent)

    def _send_copy(self, tx: Tx, copy: NewSend, fingerprint: bytes) -> Sent:
        mark = tx.begin_operation()
        try:
            sent = self.send(tx, copy, fingerprint)
        except GatepostError as error:
            tx.undo_operation(mark)
            sent = Sent(str(copy.event_id), error=Failure.from_error(error, copy.to_agent))
        else:
            tx.keep_operation()
        sent.to_agent = copy.to_agent
        return sent

    def _known(self, tx: Tx, new: NewSend, fingerprint: bytes) -> str | None:
        """The event an earlier, identical call made."""
        if not isinstance(new.idempotency_key, UnsetType):
            query = "SELECT fingerprint, event_id FROM idempotency WHERE agent = ? AND key = ?"
            row = tx.fetch_one(query, (new.from_agent, new.idempotency_key))
            if row is not None and row[0] != fingerprint:
                raise IdempotencyConflict("this idempotency key was used with another message")
            if row is not None:
                return format_event_id(row[1])
        if isinstance(new.event_id, UnsetType):
            return None
        row = tx.fetch_one(_KNOWN, (parse_event_id(new.event_id),))
        if row is None:
            return None
        if row[:2] != (new.from_agent, new.to_agent) or row[2] not in (None, fingerprint):
            raise IdempotencyConflict(f"event {new.event_id} was another message")
        return new.event_id

    def _outgoing(self, new: NewSend, fingerprint: bytes) -> Outgoing:
        event_id = self._node.event_ids.next_id() if new.event_id is UNSET else str(new.event_id)
        parse_event_id(event_id)
        return Outgoing(
            event_id,
            EventKind.MESSAGE,
            new.from_agent,
            new.to_agent,
            event_id if isinstance(new.corr_id, UnsetType) else new.corr_id,
            _inline(new),
            digest=_given(new.payload_ref),
            ttl=None if isinstance(new.ttl_secs, UnsetType) else int(new.ttl_secs * 1000),
            traceparent=_given(new.traceparent),
            replies_to=new.replies,
            fingerprint=fingerprint,
            priority=_given(new.priority),
        )

    def _route(self, tx: Tx, agent: str, refused: frozenset[str]) -> Route:
        me, directory = self._node.id, self.sender.directory
        hosted = self._agents.known(tx, agent)
        return decide_route(directory, me, agent, hosted=hosted, refused=refused)

    def _way(self, tx: Tx, agent: str) -> Route:
        return self._route(tx, agent, frozenset())

    def _emit(self, tx: Tx, out: Outgoing, way: Route) -> int:
        """Returns how much waits in the mailbox, if it is one of ours."""
        pair = (out.from_agent, out.to_agent)
        if way.node == self._node.id and self.sender.pairs.is_home(tx, pair, way.node):
            return self._emit_here(tx, out, way)
        self.sender.emit(tx, out, way)
        return 0

    def _emit_here(self, tx: Tx, out: Outgoing, way: Route) -> int:
        """Event, mail, delivery record and first receipt: all or nothing."""
        kept = blob(tx, out.digest) if out.digest else None
        pending = self._deliver(tx, out, way, kept)
        place = self.sender.pairs.next(tx, (out.from_agent, out.to_agent), way.node)
        expires = tx.now + (self._ttl if out.ttl is None else out.ttl)
        tx.append_event(self._event(out, kept, place.number, place.base, expires))
        due = self.sender.breach_at(tx)
        self.sender.open(tx, out, "accepted", way, place.number, expires, due, None)
        self._receipt(tx, out.to_agent, out.event_id, out.corr_id, ACCEPTED)
        return pending

    def _deliver(self, tx: Tx, out: Outgoing, way: Route, kept: tuple[bytes, int] | None) -> int:
        priority = way.priority if out.priority is None else out.priority
        info = EventInfo(
            out.event_id,
            out.kind,
            out.corr_id,
            out.ref_event_id,
            out.traceparent,
            out.digest,
            kept and kept[1],
            priority=priority,
        )
        mail = NewMail(
            out.event_id,
            out.payload,
            ttl=out.ttl,
            meta=msgspec.json.encode(info),
            priority=priority,
        )
        (ack,) = self.dispatcher.enqueue(tx, out.to_agent, out.from_agent, [mail])
        if ack.error is not None:
            raise ack.error.to_error()
        if not ack.queued:
            raise IdempotencyConflict(f"{out.event_id} is already in the mailbox")
        if out.digest:
            (mail_id,) = tx.fetch_all(_MAIL_OF, (out.to_agent, out.event_id))[0]
            tx.execute("INSERT OR IGNORE INTO blob_use VALUES (?, ?)", (out.digest, mail_id))
        return ack.pending

    def _event(
        self, out: Outgoing, kept: tuple[bytes, int] | None, number: int, base: int, expires: int
    ) -> EventDraft:
        return EventDraft(
            event_id=out.event_id,
            kind=out.kind,
            source_agent_id=out.from_agent,
            to_node_id=self._node.id,
            to_agent_id=out.to_agent,
            pair_seq=number,
            pair_base=base,
            corr_id=out.corr_id,
            ref_event_id=out.ref_event_id,
            causation_id=out.causation_id,
            expires_at=expires,
            payload=UNSET if kept else self._seal(out.payload, out.event_id),
            payload_ref=self._ref(out.digest, kept) if kept else None,
            trace=Trace(route_decision="local", traceparent=out.traceparent),
        )

    def _seal(self, payload: bytes, event_id: str) -> Raw:
        node = self._node
        sealed, _ = node.sealer.encrypt(
            payload, [node.key.public], event_id=event_id, source_node_id=node.id
        )
        return encode_payload(sealed)

    def _ref(self, digest: str | None, kept: tuple[bytes, int]) -> PayloadRef:
        keys = self._node.sealer.wrap_key(kept[0], [self._node.key.public])
        return PayloadRef(digest or "", kept[1], keys)

    def _receipt(self, tx: Tx, by: str, ref: str, corr_id: str, receipt: Receipt) -> None:
        """One that is for ourselves and changes nothing we do not know."""
        tx.append_event(
            EventDraft(
                event_id=self._node.event_ids.next_id(),
                kind=EventKind.ACK,
                source_agent_id=by,
                to_node_id=self._node.id,
                corr_id=corr_id,
                ref_event_id=ref,
                payload=encode_payload(receipt),
            )
        )

    def _own(self, tx: Tx, draft: EventDraft) -> None:
        self.receiver.own(tx, draft)

    def _close(self, tx: Tx, mail: ClosedMail, reply: Raw | None) -> None:
        meta = mail.meta or (tx.fetch_one(_META, (mail.mail_id,)) or (None,))[0]
        if meta is None:
            return
        from_agent, to_agent = self._pair_of(tx, pair_of_mail(mail.mail_id))
        answer = None if reply is None else bytes(reply)
        end = Settled(_decode_info(meta), (from_agent, to_agent), mail.outcome, mail.reason, answer)
        self._tell(tx, end)

    def _tell(self, tx: Tx, end: Settled) -> None:
        """The second receipt, and the reply before it."""
        info, (from_agent, to_agent) = end.info, end.ends
        source = info.source_node or self._node.id
        if end.reply is not None:
            self._reply(tx, info, source, (to_agent, from_agent), end.reply)
        said = PROCESSED
        if end.outcome != "ok" or end.reason:
            said = Receipt(status="processed", outcome=end.outcome, reason=end.reason or None)
        self.receiver.receipt(tx, to_agent, source, info.event_id, info.corr_id, said)

    def _pair_of(self, tx: Tx, pair: int) -> tuple[str, str]:
        """(sender, mailbox) of a pair, whose id never comes back for another."""
        found = self._pairs.get(pair)
        if found is None:
            ((sender, mailbox),) = tx.fetch_all(_PAIR, (pair,))
            if len(self._pairs) >= _PAIRS_CACHED:
                self._pairs.clear()
            found = self._pairs[pair] = (sender, mailbox)
        return found

    def _reply(
        self, tx: Tx, info: EventInfo, source: str, ends: tuple[str, str], answer: bytes
    ) -> None:
        """The answer as an event of its own: mail for the sender, or settled at once."""
        from_agent, to_agent = ends
        out = Outgoing(
            self._node.event_ids.next_id(),
            EventKind.REPLY,
            from_agent,
            to_agent,
            info.corr_id,
            answer,
            ref_event_id=info.event_id,
            traceparent=info.traceparent,
        )
        if source != self._node.id:
            self._reply_to(tx, out, source)
            return
        ended = self.sender.replied(tx, source, info.event_id, answer)
        wanted = ended is not None and ended.replies_to == "mailbox"
        way = Route(source, "local")
        if wanted and self._agents.known(tx, to_agent):
            self._emit(tx, out, way)
            return
        place = self.sender.pairs.next(tx, (from_agent, to_agent), source)
        tx.append_event(self._event(out, None, place.number, place.base, tx.now + self._ttl))
        self._receipt(tx, to_agent, out.event_id, info.corr_id, ACCEPTED)
        self._receipt(tx, to_agent, out.event_id, info.corr_id, PROCESSED)

    def _reply_to(self, tx: Tx, out: Outgoing, node: str) -> None:
        try:
            self.sender.emit(tx, out, Route(node, "reply"))
        except NoRoute as error:
            self.incidents.raise_(tx, "reply_lost", out.event_id, error.message)

    def _resend(self, tx: Tx, letter: DeadLetter, meta: bytes | None) -> EnqueueAck:
        id = self._node.event_ids.next_id()
        payload = _NOTHING if isinstance(letter.payload, UnsetType) else bytes(letter.payload)
        if meta is None:
            (ack,) = self.dispatcher.enqueue(tx, letter.to, letter.from_, [NewMail(id, payload)])
            return ack
        info = _decode_info(meta)
        out = Outgoing(id, info.kind, letter.from_, letter.to, info.corr_id, payload)
        out.digest, out.traceparent = info.payload_ref, info.traceparent
        out.ref_event_id, out.causation_id = info.ref_event_id, info.event_id
        mark = tx.begin_operation()
        try:
            pending = self._emit(tx, out, self._route(tx, out.to_agent, frozenset()))
        except GatepostError as error:
            tx.undo_operation(mark)
            return EnqueueAck(id, False, 0, Failure.from_error(error, letter.msg_id))
        tx.keep_operation()
        return EnqueueAck(id, True, pending)

    # -- who waits

    def _ended(self, tx: Tx, ended: Ended) -> None:
        """A receipt counted: tell whoever waits for it."""
        if ended.outcome:
            self.handover.ended(tx, ended)
        if ended.event_id in self._waiting:
            tx.add_effect(partial(self._wake, tx, self.status(tx, ended.event_id)))

    def _park(self, event_id: str, waiting: list[tuple[str, Woken]]) -> None:
        self._waiting.setdefault(event_id, []).extend(waiting)

    def _wake(self, tx: Tx, sent: Sent) -> None:
        waiting = self._waiting.pop(sent.event_id, [])
        ready = [each for each in waiting if is_reached(sent, each[0])]
        if still := [each for each in waiting if each not in ready]:
            self._waiting[sent.event_id] = still
        self._woken += [(woken, sent, None) for _, woken in ready]
        tx.on_rollback(partial(self._park, sent.event_id, ready))


def is_reached(sent: Sent, until: str) -> bool:
    """Whether a message is as far as somebody waits for, or will never get further."""
    return sent.processed_at is not None or (until == "accepted" and sent.accepted_at is not None)


def fingerprint(new: NewSend) -> bytes:
    """What tells a repeated call from another one under the same idempotency key."""
    mark = blake2b(digest_size=16)
    for part in (new.to_agent.encode(), bytes(_given(new.payload) or b""), _given(new.payload_ref)):
        data = part.encode() if isinstance(part, str) else part or b""
        mark.update(len(data).to_bytes(8) + data)
    return mark.digest()


def _inline(new: NewSend) -> bytes:
    return _NOTHING if isinstance(new.payload, UnsetType) else bytes(new.payload)


def _given(value: T | UnsetType) -> T | None:
    return None if isinstance(value, UnsetType) else value


def check(new: NewSend) -> None:
    """What a decoder cannot see: a message has a payload or refers to one, and is for somebody."""
    if bool(new.to_agent) != isinstance(new.to_agents, UnsetType):
        raise InvalidRequest("a message needs either `to_agent` or `to_agents`")
    if isinstance(new.payload, UnsetType) == isinstance(new.payload_ref, UnsetType):
        raise InvalidRequest("a message needs either `payload` or `payload_ref`")
    if not isinstance(new.payload_ref, UnsetType):
        check_digest(new.payload_ref)
