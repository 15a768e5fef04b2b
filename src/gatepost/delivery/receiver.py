"""The receiver's side: what comes from another gateway's outbox is taken once, in order, for good.

A whole batch is taken in one transaction with the cursor. A tracked event is accepted into its
agent's mailbox, or refused, or held: a number of its pair is missing, its blob is not here yet, or
the mailbox is full. What is held has no receipt and stops nobody else. An offer is accepted without
engaging anyone until its sender confirms it.
"""

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import UNSET, Struct

from gatepost.delivery.agents import Agents
from gatepost.delivery.frames import Skip
from gatepost.delivery.incidents import Incidents
from gatepost.delivery.node import Node
from gatepost.delivery.sender import Sender, blob
from gatepost.errors import GatepostError, LinkError, SealError
from gatepost.events import (
    KNOWN,
    TRACKED,
    DeadLetter,
    Envelope,
    Kind,
    Receipt,
    Sealed,
    Signal,
    decode,
    decode_payload,
    encode_payload,
    parse_event_id,
)
from gatepost.journal.outbox import Draft
from gatepost.journal.tx import Tx
from gatepost.mailbox import Dispatcher, Mail
from gatepost.wire import EventInfo

_SEEN = "SELECT state FROM inbox WHERE source = ? AND event_id = ?"
_INBOX = "INSERT OR REPLACE INTO inbox VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, NULL, ?)"
_STATE = "UPDATE inbox SET state = ? WHERE source = ? AND event_id = ?"
_PAIR = """
SELECT incarnation, next, held, offered FROM inbox_pair
WHERE source = ? AND sender = ? AND mailbox = ?
"""
_SAVE_PAIR = "INSERT OR REPLACE INTO inbox_pair VALUES (?, ?, ?, ?, ?, ?, ?)"
_HOLD = "INSERT OR IGNORE INTO held VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
_NEXT_HELD = """
SELECT pair_seq, event_id, seq, body, why FROM held
WHERE source = ? AND sender = ? AND mailbox = ? ORDER BY pair_seq LIMIT 1
"""
_UNHOLD = "DELETE FROM held WHERE source = ? AND sender = ? AND mailbox = ? AND pair_seq = ?"
_DROP_HELD = """
UPDATE held SET event_id = NULL, digest = NULL, body = NULL, why = 'gone'
WHERE source = ? AND sender = ? AND mailbox = ? AND pair_seq = ?
"""
_FULL_MAILBOXES = "SELECT DISTINCT mailbox FROM held WHERE why = 'full'"
_HELD_IN = "SELECT DISTINCT source, sender FROM held WHERE why = 'full' AND mailbox = ?"
_HELD_FOR = "SELECT source, sender, mailbox, body FROM held WHERE digest = ?"
_KEEP_BLOB = "INSERT OR IGNORE INTO blob VALUES (?, ?, ?, ?)"
_WANTED = "SELECT DISTINCT digest, source FROM held WHERE digest IS NOT NULL"
_MAIL_STATE = """
SELECT m.state, d.reason, m.id FROM mail m JOIN mailbox b ON b.id = m.mailbox
LEFT JOIN dead_letter d ON d.id = m.id WHERE b.name = ? AND m.msg_id = ?
"""
_LOOK_UP = 200
_ROOM_IN = "SELECT waiting FROM mailbox WHERE name = ?"
_OUTCOMES = {3: "ok", 4: "dead_letter", 5: "expired"}

_DRAFTED = [name for name in Draft.__struct_fields__ if name != "everybody"]

PairKey = tuple[str, str, str]  # source, sender, mailbox


class Pair(Struct):
    incarnation: str
    next: int
    held: int = 0
    offered: int = 0
    changed: bool = False


class Batch(Struct, frozen=True):
    """Events of one outbox, all that were for us up to `upto`. `now` is the emitter's clock."""

    source: str
    incarnation: str
    first_seq: int
    upto: int
    now: int
    events: list[bytes]


class Receiver:
    """`keys` gives a member's public key; `want_blob` hears of blobs that have to be fetched."""

    def __init__(
        self,
        node: Node,
        agents: Agents,
        sender: Sender,
        incidents: Incidents,
        want_blob: Callable[[str, str], None],
    ) -> None:
        self._node = node
        self._agents = agents
        self._sender = sender
        self._incidents = incidents
        self._want_blob = want_blob
        self.dispatcher: Dispatcher
        self._full: set[str] | None = None
        self.duplicates = 0
        self.unknown_kinds = 0
        self.taken = 0

    # -- what comes over a link

    def take(self, tx: Tx, batch: Batch) -> int:
        """Take a batch in; returns how far this outbox is read now. All of it or nothing."""
        cursor = Cursor.of(tx, batch.source, batch.incarnation, batch.first_seq)
        taking = _Taking(self, tx, batch.source, batch.incarnation, batch.now)
        events = [(decode(body), body) for body in batch.events]
        new = [each for each in events if self._belongs(each[0], batch, cursor)]
        taking.look_up([envelope for envelope, _ in new if envelope.kind in TRACKED])
        for envelope, body in new:
            taking.handle(envelope, body)
        taking.end()
        cursor.seq = max(cursor.seq, batch.upto)
        cursor.save(tx)
        self.taken += len(batch.events)
        return cursor.seq

    def _belongs(self, envelope: Envelope, batch: Batch, cursor: "Cursor") -> bool:
        """Whether it is new; raises if it is not what should come next."""
        if envelope.source_node_id != batch.source:
            raise LinkError(
                f"an event of {envelope.source_node_id} in the outbox of {batch.source}"
            )
        for_all = envelope.to_node_id is None
        if not for_all and envelope.to_node_id != self._node.id:
            raise LinkError(f"{batch.source} sent an event that is for {envelope.to_node_id}")
        last = cursor.last_all if for_all else cursor.last_to
        if envelope.seq <= (cursor.seq if last == ANYTHING else last):
            self.duplicates += 1
            return False
        if not cursor.follows(envelope.prev_seq_to, last):
            raise LinkError(
                f"events {last + 1} to {envelope.seq - 1} of {batch.source} were left out:"
                f" the next should follow {last}, this follows {envelope.prev_seq_to}"
            )
        if for_all:
            cursor.last_all = envelope.seq
        else:
            cursor.last_to = envelope.seq
        return True

    def skip(self, tx: Tx, told: Skip) -> None:
        """What there was for us up to here is gone; what comes next starts anew."""
        cursor = Cursor.of(tx, told.source, told.life, told.first_seq)
        if told.upto > cursor.seq:
            cursor.seq, cursor.last_to, cursor.last_all = told.upto, ANYTHING, ANYTHING
            cursor.save(tx)
            subject = f"{told.source}/{told.upto}"
            self._incidents.raise_(tx, "skipped", subject, f"nothing before this: {told.why}")

    def own(self, tx: Tx, draft: Draft) -> None:
        """An event of this gateway for itself: taken in the transaction that appends it."""
        envelope = Envelope(
            seq=1,
            source_node_id=self._node.id,
            created_at=tx.now,
            **{name: getattr(draft, name) for name in _DRAFTED},
        )
        taking = _Taking(self, tx, self._node.id, self._node.incarnation, tx.now)
        taking.handle(envelope, b"")
        taking.end()

    # -- what makes held events acceptable

    def blob_came(self, tx: Tx, digest: str) -> None:
        """A blob was fetched and verified: keep what opens it, and accept what waited for it."""
        for source, sender, mailbox, body in tx.rows(_HELD_FOR, (digest,)):
            ref = decode(body).payload_ref
            if ref is not None:
                key = self._node.sealer.unwrap(ref.keys, self._sender.key_of(source))
                tx.run(_KEEP_BLOB, (digest, key, ref.size, tx.now))
            self._release(tx, (source, sender, mailbox))

    def wanted_blobs(self, tx: Tx) -> list[tuple[str, str]]:
        """(digest, source) of what has to be fetched before something can be accepted."""
        return [(row[0], row[1]) for row in tx.rows(_WANTED)]

    def before_commit(self, tx: Tx) -> None:
        """Where a full mailbox has room again, let in what was held."""
        if self._full is None:
            self._full = {row[0] for row in tx.rows(_FULL_MAILBOXES)}
        for mailbox in list(self._full):
            if self.has_room(tx, mailbox):
                for source, sender in tx.rows(_HELD_IN, (mailbox,)):
                    self._release(tx, (source, sender, mailbox))
                if not tx.rows(_HELD_IN, (mailbox,)):
                    self._full.discard(mailbox)

    def rolled_back(self) -> None:
        self._full = None

    def filled(self, mailbox: str) -> None:
        if self._full is not None:
            self._full.add(mailbox)

    def has_room(self, tx: Tx, mailbox: str) -> bool:
        row = tx.one(_ROOM_IN, (mailbox,))
        return row is None or row[0] < self.dispatcher.policy.max_pending

    def _release(self, tx: Tx, key: PairKey) -> None:
        source = key[0]
        incarnation = (tx.one(_PAIR, key) or [""])[0]
        taking = _Taking(self, tx, source, incarnation, tx.now)
        taking.release(key, again=True)
        taking.end()

    # -- receipts

    def receipt(self, tx: Tx, by: str, source: str, ref: str, corr_id: str, said: Receipt) -> None:
        """Append a receipt; if it is for ourselves it counts at once."""
        tx.append(
            Draft(
                event_id=self._node.event_ids.next(),
                kind=Kind.ACK,
                source_agent_id=by,
                to_node_id=source,
                corr_id=corr_id,
                ref_event_id=ref,
                payload=_PAYLOADS.get(said) or encode_payload(said),
            )
        )
        if source == self._node.id:
            self._sender.receipt(tx, source, ref, said)


# What comes next may follow anything.
ANYTHING = -1
ACCEPTED = Receipt(status="accepted")
PROCESSED = Receipt(status="processed", outcome="ok")
_PAYLOADS = {said: encode_payload(said) for said in (ACCEPTED, PROCESSED)}


class Cursor(Struct):
    """How far one life of one outbox is read.

    Who reads an outbox for the first time has not missed what was said to everybody before.
    """

    source: str
    incarnation: str
    first_seq: int
    seq: int
    last_to: int = 0
    last_all: int = ANYTHING

    def follows(self, previous: int, last: int) -> bool:
        """Whether an event that names `previous` is the next after `last`."""
        if last == ANYTHING:
            return True
        if last == 0 and self.first_seq > 1:
            return previous < self.first_seq
        return previous == last

    @classmethod
    def of(cls, tx: Tx, source: str, incarnation: str, first_seq: int) -> "Cursor":
        query = "SELECT first_seq, seq, last_to, last_all FROM cursor"
        row = tx.one(f"{query} WHERE source = ? AND incarnation = ?", (source, incarnation))
        if row is None:
            return cls(source, incarnation, first_seq, first_seq - 1)
        return cls(source, incarnation, *row)

    def save(self, tx: Tx) -> None:
        row = (self.source, self.incarnation, self.first_seq, self.seq, self.last_to, self.last_all)
        tx.run("INSERT OR REPLACE INTO cursor VALUES (?, ?, ?, ?, ?, ?, ?)", (*row, tx.now))


class _Taking:
    """One transaction's worth of events from one source. Mail is put away in runs, at the end."""

    def __init__(self, receiver: Receiver, tx: Tx, source: str, incarnation: str, now: int) -> None:
        self._r = receiver
        self._tx = tx
        self._source = source
        self._incarnation = incarnation
        self._now = now
        self._pairs: dict[PairKey, Pair] = {}
        self._runs: dict[tuple[str, str], list[tuple[Envelope, Mail]]] = {}
        self._hosts: dict[str, bool] = {}
        self._unseen: set[bytes] = set()
        self._room: dict[str, int] = {}

    def look_up(self, envelopes: list[Envelope]) -> None:
        """Find out, for many at once, which of these events were never seen before."""
        ids = [parse_event_id(envelope.event_id) for envelope in envelopes]
        for start in range(0, len(ids), _LOOK_UP):
            some = ids[start : start + _LOOK_UP]
            marks = ", ".join("?" * len(some))
            query = f"SELECT event_id FROM inbox WHERE source = ? AND event_id IN ({marks})"
            seen = {row[0] for row in self._tx.rows(query, (self._source, *some))}
            self._unseen |= set(some) - seen
        if len(set(ids)) < len(ids):
            # One that comes twice in a batch is not new the second time.
            self._unseen -= {id for id in ids if ids.count(id) > 1}

    # -- by kind

    def handle(self, envelope: Envelope, body: bytes) -> None:
        if envelope.kind == Kind.ACK:
            self._ack(envelope)
        elif envelope.kind in TRACKED:
            self._tracked(envelope, body)
        else:
            self.flush()
            self._other(envelope)

    def _ack(self, envelope: Envelope) -> None:
        try:
            said = decode_payload(envelope, Receipt)
        except GatepostError as error:
            self._strange(envelope, error)
            return
        if envelope.ref_event_id is not None:
            self._r._sender.receipt(self._tx, self._source, envelope.ref_event_id, said)

    def _other(self, envelope: Envelope) -> None:
        try:
            if envelope.kind == Kind.SIGNAL:
                self._signal(envelope, decode_payload(envelope, Signal))
            elif envelope.kind == Kind.DEAD_LETTER:
                self._given_up(envelope, decode_payload(envelope, DeadLetter))
            elif envelope.kind not in KNOWN:
                self._r.unknown_kinds += 1
        except GatepostError as error:
            self._strange(envelope, error)

    def _strange(self, envelope: Envelope, error: GatepostError) -> None:
        subject = f"{self._source}/{envelope.seq}"
        self._r._incidents.raise_(self._tx, "unreadable_event", subject, error.message)

    # -- tracked events

    def _tracked(self, envelope: Envelope, body: bytes) -> None:
        id = parse_event_id(envelope.event_id)
        seen = None if id in self._unseen else self._tx.one(_SEEN, (self._source, id))
        if seen is not None and seen[0] not in ("refused", "withdrawn"):
            self._r.duplicates += 1
            self.flush()
            self._answer_again(envelope, seen[0])
        elif envelope.payload is UNSET and envelope.payload_ref is None:
            # A retry of something we do not have, so we need all of it.
            self._receipt(envelope, Receipt(status="refused", reason="resend"))
        elif envelope.to_agent_id is None:
            self._refuse(envelope, "no_agent")
        else:
            self._in_order(envelope, body)

    def _in_order(self, envelope: Envelope, body: bytes) -> None:
        key = self._key(envelope)
        pair = self._pair(key, envelope.pair_base)
        number = envelope.pair_seq
        if number > pair.next:
            self._hold(key, pair, envelope, body, "order")
        elif pair.offered and not envelope.offer:
            self._hold(key, pair, envelope, body, "offer")
        else:
            self._try(key, pair, envelope, body)
            if pair.held:
                self.release(key)

    def _try(self, key: PairKey, pair: Pair, envelope: Envelope, body: bytes) -> bool:
        """Accept it, refuse it, or hold it for want of something. Whether it is dealt with."""
        why = self._why_not(envelope)
        if why in ("full", "blob"):
            self._hold(key, pair, envelope, body, why)
            return False
        if envelope.pair_seq >= pair.next:
            pair.next, pair.changed = envelope.pair_seq + 1, True
        if why:
            self._refuse(envelope, why)
        elif envelope.offer:
            self._offer(pair, envelope, body)
        else:
            self._accept(envelope)
        return True

    def _why_not(self, envelope: Envelope) -> str:
        agent = envelope.to_agent_id or ""
        if envelope.expires_at is not None and envelope.expires_at <= self._now:
            return "expired"
        if envelope.kind != Kind.REPLY and not self._hosted(agent):
            home = self._r._sender.directory.agents.get(agent)
            moved = home is not None and home.owner not in (None, self._r._node.id)
            return "moved" if moved else "no_agent"
        if envelope.payload_ref is not None and not self._has_blob(envelope):
            return "blob"
        return "" if self._has_room(agent) else "full"

    def _hosted(self, agent: str) -> bool:
        if agent not in self._hosts:
            self._hosts[agent] = self._r._agents.known(self._tx, agent)
        return self._hosts[agent]

    def _has_room(self, mailbox: str) -> bool:
        if mailbox not in self._room:
            row = self._tx.one(_ROOM_IN, (mailbox,))
            self._room[mailbox] = self._r.dispatcher.policy.max_pending - (row[0] if row else 0)
        return self._room[mailbox] > 0

    def _has_blob(self, envelope: Envelope) -> bool:
        ref = envelope.payload_ref
        query = "SELECT 1 FROM blob WHERE digest = ?"
        if ref is None or self._tx.one(query, (ref.digest,)):
            return True
        self._tx.effect(lambda: self._r._want_blob(ref.digest, self._source))
        return False

    def _offer(self, pair: Pair, envelope: Envelope, body: bytes) -> None:
        id = parse_event_id(envelope.event_id)
        row = (self._source, id, envelope.seq, body)
        self._tx.run("INSERT OR REPLACE INTO offered VALUES (?, ?, ?, ?)", row)
        self._note(envelope, "offered")
        pair.offered += 1
        pair.changed = True
        self._receipt(envelope, ACCEPTED)

    def _accept(self, envelope: Envelope) -> None:
        try:
            payload = self._open(envelope)
        except GatepostError as error:
            self._refuse(envelope, f"unreadable: {error.message}")
            return
        if envelope.kind == Kind.REPLY and not self._to_mailbox(envelope, payload):
            self._note(envelope, "accepted")
            self._receipt(envelope, ACCEPTED)
            self._receipt(envelope, PROCESSED)
            return
        agent = envelope.to_agent_id or ""
        self._room[agent] = self._room.get(agent, 1) - 1
        run = self._runs.setdefault((agent, envelope.source_agent_id), [])
        run.append((envelope, self._mail(envelope, payload)))

    def _open(self, envelope: Envelope) -> bytes:
        node, source = self._r._node, envelope.source_node_id
        key = self._r._sender.key_of(source)
        if (ref := envelope.payload_ref) is not None:
            # Who names a blob must be able to open it.
            if node.sealer.unwrap(ref.keys, key) != blob(self._tx, ref.digest)[0]:
                raise SealError("its blob is another's")
            return b"null"
        sealed = decode_payload(envelope, Sealed)
        return node.sealer.open(
            sealed, sealed_by=key, event_id=envelope.event_id, source_node_id=source
        )

    def _to_mailbox(self, envelope: Envelope, payload: bytes) -> bool:
        """Let a reply end what it answers; whether it is mail besides."""
        ref, agent = envelope.ref_event_id, envelope.to_agent_id or ""
        if ref is None:
            return self._hosted(agent)
        self._r._sender.replied(self._tx, self._source, ref, payload)
        query = "SELECT replies_to FROM delivery WHERE event_id = ?"
        row = self._tx.one(query, (parse_event_id(ref),))
        return (row is None or row[0] == "mailbox") and self._hosted(agent)

    def _mail(self, envelope: Envelope, payload: bytes) -> Mail:
        ref = envelope.payload_ref
        info = EventInfo(
            envelope.event_id,
            envelope.kind,
            envelope.corr_id or envelope.event_id,
            envelope.ref_event_id,
            envelope.trace.traceparent if envelope.trace else None,
            ref.digest if ref else None,
            ref.size if ref else None,
            self._source,
        )
        ttl = None if envelope.expires_at is None else max(1, envelope.expires_at - self._now)
        return Mail(
            envelope.event_id,
            payload,
            created_at=envelope.created_at,
            ttl=ttl,
            meta=msgspec.json.encode(info),
            priority=envelope.priority,
        )

    def _refuse(self, envelope: Envelope, reason: str) -> None:
        self._note(envelope, "refused", reason)
        self._receipt(envelope, Receipt(status="refused", reason=reason[:1000]))

    def _note(self, envelope: Envelope, state: str, reason: str | None = None) -> None:
        self._tx.run(_INBOX, self._inbox_row(envelope, state, reason))

    def _inbox_row(self, envelope: Envelope, state: str, reason: str | None) -> tuple[Any, ...]:
        return (
            self._source,
            parse_event_id(envelope.event_id),
            state,
            envelope.seq,
            envelope.to_agent_id or "",
            envelope.source_agent_id,
            envelope.corr_id or envelope.event_id,
            envelope.pair_seq,
            self._tx.now,
            reason,
        )

    def _receipt(self, envelope: Envelope, said: Receipt) -> None:
        by = envelope.to_agent_id or "gateway"
        corr = envelope.corr_id or envelope.event_id
        self._r.receipt(self._tx, by, self._source, envelope.event_id, corr, said)

    def _answer_again(self, envelope: Envelope, state: str) -> None:
        """Say once more what became of something we know."""
        if state == "offered":
            self._receipt(envelope, ACCEPTED)
        elif state == "accepted":
            self._receipt(envelope, ACCEPTED)
            self._say_processed(envelope, envelope.to_agent_id or "", envelope.event_id)

    def _say_processed(self, envelope: Envelope, mailbox: str, event_id: str) -> None:
        row = self._tx.one(_MAIL_STATE, (mailbox, event_id))
        if row is None or row[0] not in _OUTCOMES:
            return
        outcome: Any = _OUTCOMES[row[0]]
        said = Receipt(status="processed", outcome=outcome, reason=row[1] or None)
        corr = envelope.corr_id or event_id
        self._r.receipt(self._tx, mailbox, self._source, event_id, corr, said)

    # -- holding, and letting go

    def _hold(self, key: PairKey, pair: Pair, envelope: Envelope, body: bytes, why: str) -> None:
        if not body:
            body = msgspec.json.encode(envelope)
        digest = envelope.payload_ref.digest if why == "blob" and envelope.payload_ref else None
        id = parse_event_id(envelope.event_id)
        self._tx.run(_HOLD, (*key, envelope.pair_seq, id, envelope.seq, why, digest, body))
        if self._tx.changes():
            pair.held, pair.changed = pair.held + 1, True
            self._note(envelope, "held", why)
        if why == "full":
            self._r.filled(key[2])

    def release(self, key: PairKey, again: bool = False) -> None:
        """Go on with what is held of a pair, as far as it goes."""
        pair = self._pair(key, 1)
        while pair.held and (row := self._tx.one(_NEXT_HELD, key)) is not None:
            number, id, _, body, _ = row
            if number > pair.next:
                return
            if id is None:
                pair.next = max(pair.next, number + 1)
                self._unhold(key, pair, number)
                continue
            envelope = decode(body)
            why = self._why_not(envelope)
            if why in ("full", "blob") or (pair.offered and not envelope.offer):
                if why == "full":
                    self._r.filled(key[2])
                return
            self._unhold(key, pair, number)
            self._try(key, pair, envelope, body)

    def _unhold(self, key: PairKey, pair: Pair, number: int) -> None:
        self._tx.run(_UNHOLD, (*key, number))
        pair.held, pair.changed = pair.held - 1, True

    def _skip(self, key: PairKey, number: int) -> None:
        """This number of a pair will not come any more."""
        pair = self._pair(key, 1)
        if number < pair.next or number == 0:
            return
        if number == pair.next and not pair.held:
            pair.next, pair.changed = number + 1, True
            return
        self._tx.run(_DROP_HELD, (*key, number))
        if not self._tx.changes():
            self._tx.run(_HOLD, (*key, number, None, 0, "gone", None, None))
            pair.held, pair.changed = pair.held + 1, True
        self.release(key)

    # -- what senders say besides

    def _signal(self, envelope: Envelope, said: Signal) -> None:
        ref = envelope.ref_event_id
        if said.signal == "settled" and said.from_agent and said.to_agent:
            self._settled((self._source, said.from_agent, said.to_agent), said.through)
        elif ref is None:
            return
        elif said.signal == "confirm":
            self._confirmed(parse_event_id(ref))
        elif said.signal == "withdraw":
            self._withdrawn(parse_event_id(ref))
        elif said.signal == "status_request":
            self._asked(envelope, ref)

    def _settled(self, key: PairKey, through: int) -> None:
        """Of the numbers up to `through`, those we do not hold never come to us."""
        pair = self._pair(key, 1)
        while pair.held and (row := self._tx.one(_NEXT_HELD, key)) and row[0] <= through:
            if pair.next < row[0]:
                pair.next, pair.changed = row[0], True
            before = pair.held
            self.release(key)
            if pair.held == before:
                return
        if pair.next <= through and not pair.held:
            pair.next, pair.changed = through + 1, True

    def _confirmed(self, id: bytes) -> None:
        """The offer is ours to engage."""
        query = "DELETE FROM offered WHERE source = ? AND event_id = ? RETURNING body"
        row = self._tx.one(query, (self._source, id))
        if row is None:
            return
        envelope = decode(row[0])
        self._decided(envelope)
        self._accept_confirmed(envelope)
        self.flush()
        self.release(self._key(envelope))

    def _accept_confirmed(self, envelope: Envelope) -> None:
        try:
            payload = self._open(envelope)
        except GatepostError as error:
            self._refuse(envelope, f"unreadable: {error.message}")
            return
        self._enqueue(envelope.to_agent_id or "", envelope.source_agent_id, envelope, payload)

    def _enqueue(self, mailbox: str, sender: str, envelope: Envelope, payload: bytes) -> None:
        (ack,) = self._r.dispatcher.enqueue(
            self._tx, mailbox, sender, [self._mail(envelope, payload)], over=True
        )
        if ack.error is None and ack.queued:
            self._note(envelope, "accepted")
            self._use_blob(envelope)
        else:
            self._refuse(envelope, "its id was used for another message")

    def _decided(self, envelope: Envelope) -> None:
        pair = self._pair(self._key(envelope), 1)
        pair.offered, pair.changed = max(0, pair.offered - 1), True

    def _withdrawn(self, id: bytes) -> None:
        """The sender gave it to somebody else. What was accepted for good stays ours."""
        query = "DELETE FROM offered WHERE source = ? AND event_id = ? RETURNING body"
        row = self._tx.one(query, (self._source, id))
        if row is not None:
            envelope = decode(row[0])
            self._decided(envelope)
            self._tx.run(_STATE, ("withdrawn", self._source, id))
            self.release(self._key(envelope))
            return
        self._forget_held(id)

    def _given_up(self, envelope: Envelope, said: DeadLetter) -> None:
        """The sender waits no more. What was accepted for good will be engaged all the same."""
        if envelope.ref_event_id is None:
            return
        id = parse_event_id(envelope.ref_event_id)
        if not self._forget_held(id):
            self._withdrawn(id)
        if envelope.to_agent_id is not None:
            key = (self._source, envelope.source_agent_id, envelope.to_agent_id)
            self._skip(key, said.pair_seq)

    def _forget_held(self, id: bytes) -> bool:
        query = "SELECT sender, mailbox, pair_seq FROM inbox WHERE source = ? AND event_id = ?"
        row = self._tx.one(f"{query} AND state = 'held'", (self._source, id))
        if row is None:
            return False
        self._tx.run(_STATE, ("withdrawn", self._source, id))
        self._skip((self._source, row[0], row[1]), row[2])
        return True

    def _asked(self, envelope: Envelope, ref: str) -> None:
        query = "SELECT state, mailbox, reason FROM inbox WHERE source = ? AND event_id = ?"
        row = self._tx.one(query, (self._source, parse_event_id(ref)))
        if row is None:
            said = Receipt(status="refused", reason="unknown: it is not in this journal")
            self._r.receipt(self._tx, "gateway", self._source, ref, ref, said)
        elif row[0] == "accepted":
            self._say_processed(envelope, row[1], ref)

    # -- the end

    def flush(self) -> None:
        """Put the mail away, and say so."""
        runs, self._runs = self._runs, {}
        for (mailbox, sender), run in runs.items():
            mails = [mail for _, mail in run]
            acks = self._r.dispatcher.enqueue(self._tx, mailbox, sender, mails, over=True)
            taken = []
            for (envelope, _), ack in zip(run, acks, strict=True):
                if ack.queued:
                    taken.append(self._inbox_row(envelope, "accepted", None))
                    self._use_blob(envelope)
                    self._receipt(envelope, ACCEPTED)
                else:
                    self._refuse(envelope, "its id was used for another message")
            self._tx.many(_INBOX, taken)

    def _use_blob(self, envelope: Envelope) -> None:
        if envelope.payload_ref is not None:
            row = self._tx.one(_MAIL_STATE, (envelope.to_agent_id, envelope.event_id))
            if row is not None:
                use = (envelope.payload_ref.digest, row[2])
                self._tx.run("INSERT OR IGNORE INTO blob_use VALUES (?, ?)", use)

    def end(self) -> None:
        self.flush()
        rows = [
            (*key, pair.incarnation, pair.next, pair.held, pair.offered)
            for key, pair in self._pairs.items()
            if pair.changed
        ]
        self._tx.many(_SAVE_PAIR, rows)

    def _key(self, envelope: Envelope) -> PairKey:
        return self._source, envelope.source_agent_id, envelope.to_agent_id or ""

    def _pair(self, key: PairKey, base: int) -> Pair:
        pair = self._pairs.get(key)
        if pair is None:
            row = self._tx.one(_PAIR, key)
            pair = self._pairs[key] = Pair(*row) if row else Pair(self._incarnation, 1)
        if pair.incarnation != self._incarnation:
            pair.incarnation, pair.next, pair.changed = self._incarnation, base, True
        if base > pair.next:
            pair.next, pair.changed = base, True
        return pair
