"""Messages between agents of one gateway: sent once, receipted twice.

`send` is one transaction: the event in the outbox, the mail in the mailbox, the delivery record,
and the `accepted` receipt, for owner and sender are the same gateway. When the turn ends, the
`reply` and the `processed` receipt are appended in the transaction that settles the mail.
"""

from collections.abc import Callable, Mapping
from functools import partial
from hashlib import blake2b
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from gatepost.delivery.agents import Agents
from gatepost.delivery.node import Node
from gatepost.errors import (
    GatepostError,
    IdempotencyConflict,
    InvalidRequest,
    UnknownBlob,
    UnknownMessage,
)
from gatepost.events import (
    Kind,
    PayloadRef,
    Receipt,
    Trace,
    check_digest,
    encode_payload,
    format_event_id,
    parse_event_id,
)
from gatepost.journal.outbox import Draft
from gatepost.journal.tx import Tx
from gatepost.journal.writer import Outcome
from gatepost.mailbox import Closed, Dispatcher, Mail, Settlement
from gatepost.mailbox.deadletters import Filter, replay
from gatepost.mailbox.enqueue import find_mailbox
from gatepost.wire import DeadLetter, EnqueueAck, EventInfo, Failure, NewSend, Sent

_PAIR_SEQ = """
INSERT INTO pair_seq VALUES (?, ?, 1)
ON CONFLICT (from_agent, to_agent) DO UPDATE SET last = last + 1 RETURNING last
"""
_OPEN = """
INSERT INTO delivery (event_id, from_agent, to_agent, corr_id, state, emitted_at, accepted_at,
                      replies_to) VALUES (?, ?, ?, ?, 'accepted', ?, ?, ?)
"""
_CLOSE = """
UPDATE delivery SET state = 'processed', outcome = ?, reason = ?, processed_at = ?, reply = ?
WHERE event_id = ? AND processed_at IS NULL RETURNING from_agent, to_agent, corr_id, replies_to
"""
_SENT = """
SELECT event_id, corr_id, state, outcome, reason, accepted_at, processed_at, reply
FROM delivery WHERE event_id = ?
"""
_MAIL_OF = """
SELECT m.id FROM mail m JOIN mailbox b ON b.id = m.mailbox WHERE b.name = ? AND m.msg_id = ?
"""
_PAYLOAD_OF = """
SELECT body.payload FROM mail m JOIN mailbox b ON b.id = m.mailbox JOIN body ON body.id = m.id
WHERE b.name = ? AND m.msg_id = ?
"""
_NOTHING = b"null"

T = TypeVar("T")
Woken = Callable[[Any, GatepostError | None], None]
Replies = Mapping[str, Raw]


class Outgoing(Struct):
    """One event for one agent, whoever asked for it."""

    event_id: str
    kind: str
    from_agent: str
    to_agent: str
    corr_id: str
    payload: bytes
    digest: str | None = None
    ref_event_id: str | None = None
    ttl: int | None = None
    traceparent: str | None = None
    replies_to: str = "caller"
    causation_id: str | None = None


class Messages:
    """All of it runs in the writer's thread."""

    def __init__(self, node: Node, agents: Agents, ttl: int) -> None:
        self._node = node
        self._agents = agents
        self._ttl = ttl
        self.dispatcher: Dispatcher
        self._waiting: dict[str, list[Woken]] = {}
        self._woken: list[Outcome] = []

    # -- operations

    def send(self, tx: Tx, new: NewSend, fingerprint: bytes) -> Sent:
        """Send one message, or return what became of it if it was sent before."""
        known = self._known(tx, new, fingerprint)
        if known is not None:
            return self.status(tx, known)
        self._agents.get(tx, new.to_agent)
        outgoing = self._outgoing(new)
        self._emit(tx, outgoing)
        if not isinstance(new.idempotency_key, UnsetType):
            id = parse_event_id(outgoing.event_id)
            row = (new.from_agent, new.idempotency_key, fingerprint, id, tx.now)
            tx.run("INSERT INTO idempotency VALUES (?, ?, ?, ?, ?)", row)
        return Sent(outgoing.event_id, outgoing.corr_id, "accepted", accepted_at=tx.now)

    def status(self, tx: Tx, event_id: str) -> Sent:
        row = tx.one(_SENT, (parse_event_id(event_id),))
        if row is None:
            raise UnknownMessage(f"no message {event_id} was sent from this gateway")
        sent = Sent(format_event_id(row[0]), *row[1:-1])
        sent.reply = UNSET if row[-1] is None else Raw(row[-1])
        return sent

    def wait(self, tx: Tx, event_id: str, woken: Woken) -> Sent:
        """The status now; if the message is not settled yet, `woken` gets it when it is."""
        sent = self.status(tx, event_id)
        if sent.processed_at is None:
            tx.effect(partial(self._park, sent.event_id, [woken]))
        return sent

    def stop_waiting(self, tx: Tx, event_id: str, woken: Woken) -> None:
        waiting = self._waiting.get(event_id, [])
        if woken in waiting:
            waiting.remove(woken)
        if not waiting:
            self._waiting.pop(event_id, None)

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
        self, tx: Tx, mailbox: str, wanted: Filter, limit: int, actor: str
    ) -> list[EnqueueAck]:
        """Send dead letters again: an event as a new event caused by the old one."""
        id = find_mailbox(tx, mailbox)
        return replay(tx, id, wanted, limit, self._resend, actor) if id else []

    def close(self, tx: Tx, closed: list[Closed], replies: Replies = MappingProxyType({})) -> None:
        """Tell the senders of settled mail what became of it."""
        for mail in closed:
            self._close(tx, mail, replies.get(mail.receipt))

    # -- the commit group

    def before_commit(self, tx: Tx) -> None:
        """Everything was appended by the operations themselves."""

    def after_commit(self) -> list[Outcome]:
        woken, self._woken = self._woken, []
        return woken

    def rolled_back(self) -> None:
        self._woken.clear()

    def next_due(self, tx: Tx) -> int | None:
        return None

    # -- inside

    def _known(self, tx: Tx, new: NewSend, fingerprint: bytes) -> str | None:
        """The event an earlier, identical call made."""
        if not isinstance(new.idempotency_key, UnsetType):
            query = "SELECT fingerprint, event_id FROM idempotency WHERE agent = ? AND key = ?"
            row = tx.one(query, (new.from_agent, new.idempotency_key))
            if row is not None and row[0] != fingerprint:
                raise IdempotencyConflict("this idempotency key was used with another message")
            if row is not None:
                return format_event_id(row[1])
        if isinstance(new.event_id, UnsetType):
            return None
        query = "SELECT from_agent, to_agent FROM delivery WHERE event_id = ?"
        row = tx.one(query, (parse_event_id(new.event_id),))
        if row is None:
            return None
        kept = tx.one(_PAYLOAD_OF, (new.to_agent, new.event_id))
        if row != (new.from_agent, new.to_agent) or kept not in (None, (_inline(new),)):
            raise IdempotencyConflict(f"event {new.event_id} was another message")
        return new.event_id

    def _outgoing(self, new: NewSend) -> Outgoing:
        event_id = self._node.event_ids.next() if new.event_id is UNSET else str(new.event_id)
        parse_event_id(event_id)
        return Outgoing(
            event_id,
            Kind.MESSAGE,
            new.from_agent,
            new.to_agent,
            event_id if isinstance(new.corr_id, UnsetType) else new.corr_id,
            _inline(new),
            digest=_given(new.payload_ref),
            ttl=None if isinstance(new.ttl_secs, UnsetType) else int(new.ttl_secs * 1000),
            traceparent=_given(new.traceparent),
            replies_to=new.replies,
        )

    def _emit(self, tx: Tx, out: Outgoing) -> int:
        """Event, mail, delivery record and first receipt: all or nothing."""
        blob = _blob(tx, out.digest) if out.digest else None
        pending = self._deliver(tx, out, blob)
        tx.append(self._event(tx, out, blob))
        row = (parse_event_id(out.event_id), out.from_agent, out.to_agent, out.corr_id)
        tx.run(_OPEN, (*row, tx.now, tx.now, out.replies_to))
        self._receipt(tx, out.to_agent, out.event_id, out.corr_id, Receipt(status="accepted"))
        return pending

    def _deliver(self, tx: Tx, out: Outgoing, blob: tuple[bytes, int] | None) -> int:
        info = EventInfo(
            out.event_id,
            out.kind,
            out.corr_id,
            out.ref_event_id,
            out.traceparent,
            out.digest,
            blob and blob[1],
        )
        mail = Mail(out.event_id, out.payload, ttl=out.ttl, meta=msgspec.json.encode(info))
        (ack,) = self.dispatcher.enqueue(tx, out.to_agent, out.from_agent, [mail])
        if ack.error is not None:
            raise ack.error.error()
        if not ack.queued:
            raise IdempotencyConflict(f"{out.event_id} is already in the mailbox")
        if out.digest:
            (mail_id,) = tx.rows(_MAIL_OF, (out.to_agent, out.event_id))[0]
            tx.run("INSERT OR IGNORE INTO blob_use VALUES (?, ?)", (out.digest, mail_id))
        return ack.pending

    def _event(self, tx: Tx, out: Outgoing, blob: tuple[bytes, int] | None) -> Draft:
        return Draft(
            event_id=out.event_id,
            kind=out.kind,
            source_agent_id=out.from_agent,
            to_node_id=self._node.id,
            to_agent_id=out.to_agent,
            pair_seq=tx.rows(_PAIR_SEQ, (out.from_agent, out.to_agent))[0][0],
            corr_id=out.corr_id,
            ref_event_id=out.ref_event_id,
            causation_id=out.causation_id,
            expires_at=tx.now + (self._ttl if out.ttl is None else out.ttl),
            payload=UNSET if blob else self._seal(out.payload, out.event_id),
            payload_ref=self._ref(out.digest, blob) if blob else None,
            trace=Trace(route_decision="local", traceparent=out.traceparent),
        )

    def _seal(self, payload: bytes, event_id: str) -> Raw:
        node = self._node
        sealed, _ = node.sealer.seal(
            payload, [node.key.public], event_id=event_id, source_node_id=node.id
        )
        return encode_payload(sealed)

    def _ref(self, digest: str | None, blob: tuple[bytes, int]) -> PayloadRef:
        keys = self._node.sealer.wrap(blob[0], [self._node.key.public])
        return PayloadRef(digest or "", blob[1], keys)

    def _receipt(self, tx: Tx, by: str, ref: str, corr_id: str, receipt: Receipt) -> None:
        tx.append(
            Draft(
                event_id=self._node.event_ids.next(),
                kind=Kind.ACK,
                source_agent_id=by,
                to_node_id=self._node.id,
                corr_id=corr_id,
                ref_event_id=ref,
                payload=encode_payload(receipt),
            )
        )

    def _close(self, tx: Tx, mail: Closed, reply: Raw | None) -> None:
        answer = None if reply is None else bytes(reply)
        id = parse_event_id(mail.msg_id)
        row = tx.one(_CLOSE, (mail.outcome, mail.reason or None, tx.now, answer, id))
        if row is None:
            return
        from_agent, to_agent, corr_id, replies_to = row
        if answer is not None:
            to_mailbox = replies_to == "mailbox" and self._agents.known(tx, from_agent)
            self._reply(tx, mail.msg_id, (to_agent, from_agent, corr_id), answer, to_mailbox)
        receipt = Receipt(status="processed", outcome=mail.outcome, reason=mail.reason or None)
        self._receipt(tx, to_agent, mail.msg_id, corr_id, receipt)
        sent = self.status(tx, mail.msg_id)
        tx.effect(partial(self._wake, tx, sent))

    def _resend(self, tx: Tx, letter: DeadLetter, meta: bytes | None) -> EnqueueAck:
        id = self._node.event_ids.next()
        payload = _NOTHING if isinstance(letter.payload, UnsetType) else bytes(letter.payload)
        if meta is None:
            (ack,) = self.dispatcher.enqueue(tx, letter.to, letter.from_, [Mail(id, payload)])
            return ack
        info = msgspec.json.decode(meta, type=EventInfo)
        out = Outgoing(id, info.kind, letter.from_, letter.to, info.corr_id, payload)
        out.digest, out.traceparent = info.payload_ref, info.traceparent
        out.ref_event_id, out.causation_id = info.ref_event_id, info.event_id
        mark = tx.mark()
        try:
            self._agents.get(tx, letter.to)
            pending = self._emit(tx, out)
        except GatepostError as error:
            tx.undo(mark)
            return EnqueueAck(id, False, 0, Failure.of(error, letter.msg_id))
        tx.keep()
        return EnqueueAck(id, True, pending)

    def _reply(
        self, tx: Tx, ref: str, ends: tuple[str, str, str], answer: bytes, mail: bool
    ) -> None:
        """The answer as an event of its own: mail for the sender, or settled at once."""
        from_agent, to_agent, corr_id = ends
        id = self._node.event_ids.next()
        out = Outgoing(id, Kind.REPLY, from_agent, to_agent, corr_id, answer, ref_event_id=ref)
        if mail:
            self._emit(tx, out)
            return
        tx.append(self._event(tx, out, None))
        self._receipt(tx, to_agent, id, corr_id, Receipt(status="accepted"))
        self._receipt(tx, to_agent, id, corr_id, Receipt(status="processed", outcome="ok"))

    def _park(self, event_id: str, woken: list[Woken]) -> None:
        self._waiting.setdefault(event_id, []).extend(woken)

    def _wake(self, tx: Tx, sent: Sent) -> None:
        if waiting := self._waiting.pop(sent.event_id, None):
            self._woken += [(woken, sent, None) for woken in waiting]
            tx.on_rollback(partial(self._park, sent.event_id, waiting))


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


def _blob(tx: Tx, digest: str) -> tuple[bytes, int]:
    """(content key, size) of an uploaded blob."""
    row = tx.one("SELECT key, size FROM blob WHERE digest = ?", (digest,))
    if row is None:
        raise UnknownBlob(f"no blob {digest} on this gateway; upload it first")
    return row[0], row[1]


def check(new: NewSend) -> None:
    """What a decoder cannot see: a message has a payload or refers to one."""
    if isinstance(new.payload, UnsetType) == isinstance(new.payload_ref, UnsetType):
        raise InvalidRequest("a message needs either `payload` or `payload_ref`")
    if not isinstance(new.payload_ref, UnsetType):
        check_digest(new.payload_ref)
