"""The receiver's side: what comes from another gateway's outbox is taken once, in order, for good.

A whole batch is taken in one transaction with the cursor. A tracked event is accepted into its
agent's mailbox, or refused, or held: a number of its pair is missing, its blob is not here yet, or
the mailbox is full. What is held has no receipt and stops nobody else. An offer is accepted without
engaging anyone until its sender confirms it.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
from msgspec import UNSET, Struct

from gatepost.delivery.agents import Agents
from gatepost.delivery.frames import Position, SkipFrame
from gatepost.delivery.handover import became
from gatepost.delivery.incidents import Incidents
from gatepost.delivery.node import Node
from gatepost.delivery.sender import RESTORED, Sender, blob
from gatepost.delivery.transfers import REFUSED, REQUEST, Transfers
from gatepost.errors import GatepostError, LinkError, SealError
from gatepost.events import (
    KNOWN,
    TRACKED,
    DeadLetter,
    Envelope,
    Kind,
    PayloadRef,
    Receipt,
    Sealed,
    Signal,
    decode,
    decode_payload,
    encode_payload,
    format_event_id,
    parse_event_id,
)
from gatepost.journal.outbox import Draft
from gatepost.journal.tx import Tx
from gatepost.mailbox import Dispatcher, Mail
from gatepost.wire import EventInfo

_SEEN = "SELECT state FROM inbox WHERE source = ? AND event_id = ?"
# In this life; and in those before it, if what was left out may have been the end of one of them.
_GO_BACK = """
UPDATE cursor SET seq = min(seq, max(?, first_seq - 1))
WHERE source = ? AND (incarnation = ? OR (first_seq < ? AND last_to >= 0))
"""
_HEARD = """
SELECT max(CASE WHEN last_to < 0 THEN seq ELSE last_to END) FROM cursor
WHERE source = ? AND first_seq < ?
"""
# Who has read nothing of a life is where it was in the one before.
_POSITIONS = """
SELECT source, incarnation, seq FROM cursor
WHERE source IN (SELECT value FROM json_each(?)) AND (seq >= first_seq OR last_to < 0)
ORDER BY source, first_seq
"""
_INBOX = "INSERT OR REPLACE INTO inbox VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, NULL, ?)"
_LIFE_OF = "SELECT incarnation FROM cursor WHERE source = ? ORDER BY first_seq DESC LIMIT 1"
_OFFERED_OF = """
SELECT o.event_id FROM offered o JOIN inbox i ON i.source = o.source AND i.event_id = o.event_id
WHERE o.source = ? AND i.sender = ? AND i.mailbox = ?
"""
_HELD_OF = """
SELECT pair_seq, event_id, body FROM held
WHERE source = ? AND sender = ? AND mailbox = ? AND event_id IS NOT NULL
"""
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
# One that cannot be accepted after all waits on, for another reason.
_REHOLD = """
UPDATE held SET why = ?, digest = ?
WHERE source = ? AND sender = ? AND mailbox = ? AND pair_seq = ?
"""
# The place of one number may be taken by an event of an earlier life of its outbox, which then
# goes first, or by the word that it never comes, which then was about that life.
_TAKEN = """
SELECT event_id FROM held WHERE source = ? AND sender = ? AND mailbox = ? AND pair_seq = ?
"""
_MAKE_WAY = """
UPDATE held SET pair_seq = -pair_seq
WHERE source = ? AND sender = ? AND mailbox = ? AND pair_seq = ?
"""
_UNDECIDED = """
SELECT source, event_id, mailbox, corr_id FROM inbox WHERE state IN ('held', 'offered')
"""
_DISOWN = """
UPDATE held SET event_id = NULL, digest = NULL, body = NULL, why = 'gone'
WHERE event_id IS NOT NULL
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
    """Events of one outbox, all that were for us up to `upto`. `now` is the emitter's clock.

    What was created before `heard` may have been dealt with in an earlier life of this journal.
    """

    source: str
    incarnation: str
    first_seq: int
    upto: int
    now: int
    events: list[bytes]
    heard: int = 0


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
        self.transfers = Transfers(node, sender)
        self.dispatcher: Dispatcher
        self._full: set[str] | None = None
        self._own: list[Draft] = []
        # After what an event was left out, in which life of whose outbox or before which.
        self._gaps: dict[tuple[str, str], tuple[int, int]] = {}
        self.duplicates = 0
        self.unknown_kinds = 0
        self.blobs = 0
        # Hears of every batch: from whom, what was new in it, and the emitter's clock.
        self.on_taken: Callable[[str, list[tuple[Envelope, bytes]], int], None] = _nobody_counts
        self.taken = 0

    # -- what comes over a link

    def take(self, tx: Tx, batch: Batch) -> int:
        """Take a batch in; returns how far this outbox is read now. All of it or nothing."""
        cursor = Cursor.of(tx, batch.source, batch.incarnation, batch.first_seq)
        taking = _Taking(self, tx, batch.source, batch.incarnation, batch.now, batch.heard)
        events = [(decode(body), body) for body in batch.events]
        new = [each for each in events if self._belongs(each[0], batch, cursor)]
        taking.look_up([envelope for envelope, _ in new if envelope.kind in TRACKED])
        for envelope, body in new:
            taking.handle(envelope, body)
        taking.end()
        cursor.read(batch.upto)
        cursor.save(tx)
        self.taken += len(batch.events)
        self.on_taken(batch.source, new, batch.now)
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
        if not cursor.follows(envelope):
            last = last if last > 0 else cursor.heard
            before = cursor.first_seq if last < cursor.first_seq else 0
            self._gaps[batch.source, batch.incarnation] = (last, before)
            raise LinkError(
                f"events {last + 1} to {envelope.seq - 1} of {batch.source} were left out:"
                f" the next should follow {last}, this follows {envelope.prev_seq_to}"
            )
        if for_all:
            cursor.last_all = envelope.seq
        else:
            cursor.last_to = envelope.seq
        return True

    def skip(self, tx: Tx, told: SkipFrame) -> None:
        """What there was for us up to here is gone; what comes next starts anew."""
        cursor = Cursor.of(tx, told.source, told.incarnation, told.first_seq)
        if told.upto >= cursor.seq:
            cursor.seq, cursor.last_to, cursor.last_all = told.upto, ANYTHING, ANYTHING
            cursor.save(tx)
            subject = f"{told.source}/{told.upto}"
            self._incidents.raise_(tx, "skipped", subject, f"nothing before this: {told.why}")

    def own(self, tx: Tx, draft: Draft) -> None:
        """An event of this gateway for itself: taken in the transaction that appends it.

        One that another brings about waits for it to end, for both may change the same pair.
        """
        self._own.append(draft)
        if len(self._own) > 1:
            return
        try:
            for each in self._own:
                self._take_own(tx, each)
        finally:
            self._own = []

    def _take_own(self, tx: Tx, draft: Draft) -> None:
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
        self.blobs += 1
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
        """Read again from where something was left out, and where a full mailbox has room again,
        let in what was held.
        """
        while self._gaps:
            life, (last, before) = self._gaps.popitem()
            tx.run(_GO_BACK, (last, *life, before))
        if self._full is None:
            self._full = {row[0] for row in tx.rows(_FULL_MAILBOXES)}
        for mailbox in sorted(self._full):
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

    def disown(self, tx: Tx) -> int:
        """In a restored journal: what was taken and not accepted yet may be done. Its sender has
        to decide. Returns how much that is.
        """
        rows = tx.rows(_UNDECIDED)
        for source, id, mailbox, corr_id in rows:
            tx.run(_STATE, ("restored", source, id))
            said = Receipt(status="refused", reason=RESTORED)
            self.receipt(tx, mailbox, source, format_event_id(id), corr_id, said)
        tx.run(_DISOWN)
        tx.run("DELETE FROM offered")
        tx.run("UPDATE inbox_pair SET offered = 0")
        for key in tx.rows("SELECT source, sender, mailbox FROM inbox_pair WHERE held > 0"):
            self._release(tx, (key[0], key[1], key[2]))
        return len(rows)

    def expire(self, tx: Tx, source: str, event_id: bytes) -> None:
        """Let go of something whose sender never said what is to become of it."""
        taking = _Taking(self, tx, source, (tx.one(_LIFE_OF, (source,)) or [""])[0], tx.now)
        taking.expire(event_id)
        taking.end()

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


def positions(tx: Tx, sources: list[str]) -> list[Position]:
    """How far we are in these outboxes, in the words of a link."""
    rows = tx.rows(_POSITIONS, (msgspec.json.encode(sources).decode(),))
    return [(row[0], row[1], row[2]) for row in rows]


class Cursor(Struct):
    """How far one life of one outbox is read.

    Who starts anew, in another life or behind what it was told to skip, has been told of what was
    there for it up to `heard`: if the next event follows a later one, that was left out. Who reads
    an outbox for the first time has not missed what was said to everybody before.
    """

    source: str
    incarnation: str
    first_seq: int
    seq: int
    last_to: int = 0
    last_all: int = ANYTHING
    heard: int = 0

    def follows(self, envelope: Envelope) -> bool:
        """Whether it is the next one for us, or for everybody."""
        previous = envelope.prev_seq_to
        if envelope.to_node_id is None:
            return self.last_all in (ANYTHING, previous)
        return previous == self.last_to if self.last_to > 0 else previous <= self.heard

    def read(self, upto: int) -> None:
        """Everything up to here has come. As long as nothing did, `seq` says what was skipped."""
        if self.last_to != ANYTHING:
            self.seq = max(self.seq, upto)

    @classmethod
    def of(cls, tx: Tx, source: str, incarnation: str, first_seq: int) -> "Cursor":
        query = "SELECT first_seq, seq, last_to, last_all FROM cursor"
        row = tx.one(f"{query} WHERE source = ? AND incarnation = ?", (source, incarnation))
        cursor = cls(source, incarnation, *(row or (first_seq, first_seq - 1)))
        if cursor.last_to == ANYTHING:
            cursor.heard = cursor.seq
        elif not cursor.last_to and first_seq > 1:
            ((heard,),) = tx.rows(_HEARD, (source, first_seq))
            cursor.heard = min(heard or 0, first_seq - 1)
        return cursor

    def save(self, tx: Tx) -> None:
        row = (self.source, self.incarnation, self.first_seq, self.seq, self.last_to, self.last_all)
        tx.run("INSERT OR REPLACE INTO cursor VALUES (?, ?, ?, ?, ?, ?, ?)", (*row, tx.now))


def _nobody_counts(source: str, new: list[tuple[Envelope, bytes]], now: int) -> None:
    """Until somebody does."""


class _Taking:
    """One transaction's worth of events from one source. Mail is put away in runs, at the end."""

    def __init__(
        self, receiver: Receiver, tx: Tx, source: str, incarnation: str, now: int, heard: int = 0
    ) -> None:
        self._r = receiver
        self._heard = heard
        self._tx = tx
        self._source = source
        self._incarnation = incarnation
        self._now = now
        self._pairs: dict[PairKey, Pair] = {}
        self._runs: dict[tuple[str, str], list[tuple[Envelope, Mail]]] = {}
        # What is in a run has no inbox row yet.
        self._in_runs: set[str] = set()
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
        if envelope.event_id in self._in_runs:
            self.flush()
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
        elif envelope.created_at < self._heard:
            # Never held: once it is released, nobody knows that it came before the restore.
            self._refuse(envelope, RESTORED)
        else:
            self._in_order(envelope, body)

    def _in_order(self, envelope: Envelope, body: bytes) -> None:
        key = self._key(envelope)
        number = envelope.pair_seq
        pair = self._pair(key, envelope.pair_base, number)
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
        if why:
            # Its sender decides what becomes of it; until then nothing overtakes it.
            self._refuse(envelope, why)
            return True
        if envelope.pair_seq >= pair.next:
            pair.next, pair.changed = envelope.pair_seq + 1, True
        if envelope.offer:
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
            # If the room calls it ours still, it was ours a moment ago.
            return "no_agent" if home is None or home.owner is None else "moved"
        if envelope.payload_ref is not None and not self._has_blob(envelope):
            return "blob"
        return "" if self._has_room(agent) else "full"

    def _hosted(self, agent: str) -> bool:
        if agent not in self._hosts:
            self._hosts[agent] = self._r._agents.known(self._tx, agent)
        return self._hosts[agent]

    def _takes_mail(self, agent: str) -> bool:
        """Whether it lives here, or else where its mail is sent on to."""
        return self._hosted(agent) or self._r.transfers.owner_elsewhere(agent) is not None

    def _has_room(self, mailbox: str) -> bool:
        if mailbox not in self._room:
            row = self._tx.one(_ROOM_IN, (mailbox,))
            self._room[mailbox] = self._r.dispatcher.policy.max_pending - (row[0] if row else 0)
        return self._room[mailbox] > 0

    def _has_blob(self, envelope: Envelope) -> bool:
        ref = envelope.payload_ref
        query = "SELECT 1 FROM blob WHERE digest = ?"
        if ref is None or self._tx.one(query, (ref.digest,)) or not self._can_open(ref):
            return True
        self._tx.effect(lambda: self._r._want_blob(ref.digest, self._source))
        return False

    def _can_open(self, ref: PayloadRef) -> bool:
        """There is no use in fetching what is not for us; it will be refused."""
        try:
            self._r._node.sealer.unwrap(ref.keys, self._r._sender.key_of(self._source))
        except GatepostError:
            return False
        return True

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
        self._in_runs.add(envelope.event_id)

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
            return self._takes_mail(agent)
        self._r._sender.replied(self._tx, self._source, ref, payload)
        query = "SELECT replies_to FROM delivery WHERE event_id = ?"
        row = self._tx.one(query, (parse_event_id(ref),))
        return (row is None or row[0] == "mailbox") and self._takes_mail(agent)

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
            envelope.priority,
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
        """What of its pair was accepted before it is said first: the sender takes back the rest."""
        self.flush()
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
        if state == "restored":
            self._receipt(envelope, Receipt(status="refused", reason=RESTORED))
        elif state == "held":
            self._want_again(parse_event_id(envelope.event_id))
        elif state == "offered":
            self._receipt(envelope, ACCEPTED)
        elif state == "accepted":
            self._receipt(envelope, ACCEPTED)
            self._say_processed(envelope, envelope.to_agent_id or "", envelope.event_id)

    def _want_again(self, id: bytes) -> None:
        """Its sender asks where it is: perhaps a fetch was given up."""
        query = "SELECT digest FROM held WHERE source = ? AND event_id = ? AND digest IS NOT NULL"
        for (digest,) in self._tx.rows(query, (self._source, id)):
            self._tx.effect(partial(self._r._want_blob, digest, self._source))

    def _say_processed(self, envelope: Envelope, mailbox: str, event_id: str) -> None:
        outcome, reason = self._what_became(mailbox, event_id)
        if outcome is None:
            return
        said = Receipt(status="processed", outcome=outcome, reason=reason or None)
        corr = envelope.corr_id or event_id
        self._r.receipt(self._tx, mailbox, self._source, event_id, corr, said)

    def _what_became(self, mailbox: str, event_id: str) -> tuple[Any, str | None]:
        """(outcome, reason); the outcome is None while the turn has not ended, here or elsewhere"""
        passed_on = became(self._tx, self._source, parse_event_id(event_id))
        if passed_on is not None:
            return passed_on
        row = self._tx.one(_MAIL_STATE, (mailbox, event_id))
        return (None, None) if row is None else (_OUTCOMES.get(row[0]), row[1])

    # -- holding, and letting go

    def _hold(self, key: PairKey, pair: Pair, envelope: Envelope, body: bytes, why: str) -> None:
        if not body:
            body = msgspec.json.encode(envelope)
        digest = envelope.payload_ref.digest if why == "blob" and envelope.payload_ref else None
        id = parse_event_id(envelope.event_id)
        place = (*key, envelope.pair_seq)
        self._make_way(place, pair, id)
        self._tx.run(_HOLD, (*place, id, envelope.seq, why, digest, body))
        if self._tx.changes():
            pair.held, pair.changed = pair.held + 1, True
            self._note(envelope, "held", why)
        if why == "full":
            self._r.filled(key[2])

    def _make_way(self, place: tuple[str, str, str, int], pair: Pair, id: bytes) -> None:
        row = self._tx.one(_TAKEN, place)
        if row is None or row[0] == id:
            return
        if row[0] is None:
            self._tx.run(_UNHOLD, place)
            pair.held, pair.changed = pair.held - 1, True
        else:
            self._tx.run(_MAKE_WAY, place)

    def release(self, key: PairKey, again: bool = False) -> None:
        """Go on with what is held of a pair, as far as it goes."""
        pair = self._pair(key, 1)
        while pair.held and (row := self._tx.one(_NEXT_HELD, key)) is not None:
            number, id, _, body, waits_for = row
            if number > pair.next:
                return
            if id is None:
                pair.next = max(pair.next, number + 1)
                self._unhold(key, pair, number)
                continue
            envelope = decode(body)
            why = self._why_not(envelope)
            if why in ("full", "blob"):
                self._rehold((*key, number), envelope, why, waits_for)
                return
            if pair.offered and not envelope.offer:
                return
            self._unhold(key, pair, number)
            self._try(key, pair, envelope, body)

    def _rehold(
        self, place: tuple[str, str, str, int], envelope: Envelope, why: str, before: str
    ) -> None:
        """It waits on, and whoever can end that has to find it."""
        if why != before:
            digest = envelope.payload_ref.digest if why == "blob" and envelope.payload_ref else None
            self._tx.run(_REHOLD, (why, digest, *place))
        if why == "full":
            self._r.filled(place[2])

    def _unhold(self, key: PairKey, pair: Pair, number: int) -> None:
        self._tx.run(_UNHOLD, (*key, number))
        pair.held, pair.changed = pair.held - 1, True

    def _skip(self, key: PairKey, number: int) -> None:
        """This number of a pair will not come any more."""
        pair = self._pair(key, 1)
        if number == pair.next:
            pair.next, pair.changed = number + 1, True
        elif number > pair.next:
            self._tx.run(_HOLD, (*key, number, None, 0, "gone", None, None))
            pair.held, pair.changed = pair.held + self._tx.changes(), True
        self.release(key)

    # -- what senders say besides

    def _signal(self, envelope: Envelope, said: Signal) -> None:
        ref = envelope.ref_event_id
        if said.signal in (REQUEST, REFUSED):
            self._r.transfers.heard(self._tx, self._source, said)
        elif said.signal == "settled" and said.from_agent and said.to_agent:
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
        if pair.held:
            for number in range(pair.next, through + 1):
                self._tx.run(_HOLD, (*key, number, None, 0, "gone", None, None))
                pair.held += self._tx.changes()
            pair.changed = True
            self.release(key)
        elif pair.next <= through:
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
        """The sender gave it to somebody else. What was accepted for good stays ours.

        Its number is open again: if the pair comes back to us, it waits until that is settled.
        """
        row = self._drop(id)
        if row is not None and row[2]:
            pair = self._pair((self._source, row[0], row[1]), 1)
            pair.next, pair.changed = min(pair.next, row[2]), True

    def _given_up(self, envelope: Envelope, said: DeadLetter) -> None:
        """The sender waits no more. What was accepted for good will be engaged all the same."""
        if envelope.ref_event_id is None:
            return
        self.let_go(parse_event_id(envelope.ref_event_id), "given_up")
        if envelope.to_agent_id is not None:
            key = (self._source, envelope.source_agent_id, envelope.to_agent_id)
            self._skip(key, said.pair_seq)

    def let_go(self, id: bytes, why: str) -> tuple[str, str, int] | None:
        """Drop it, and if it was held or offered say that nobody here was engaged with it."""
        query = "SELECT state, mailbox, corr_id FROM inbox WHERE source = ? AND event_id = ?"
        state, mailbox, corr_id = self._tx.one(query, (self._source, id)) or ("", "", "")
        dropped = self._drop(id)
        if state in ("held", "offered"):
            said = Receipt(status="refused", reason=why)
            ref = format_event_id(id)
            self._r.receipt(self._tx, mailbox, self._source, ref, corr_id, said)
        return dropped

    def expire(self, id: bytes) -> None:
        """Its sender never said what is to become of it."""
        if (dropped := self.let_go(id, "expired")) is not None:
            self._skip((self._source, dropped[0], dropped[1]), dropped[2])

    def _drop(self, id: bytes) -> tuple[str, str, int] | None:
        """Forget an event that was not accepted for good: (sender, mailbox, number)."""
        query = "SELECT state, sender, mailbox, pair_seq FROM inbox"
        row = self._tx.one(f"{query} WHERE source = ? AND event_id = ?", (self._source, id))
        if row is None or row[0] in ("accepted", "restored"):
            return None
        state, sender, mailbox, number = row
        key = (self._source, sender, mailbox)
        pair = self._pair(key, 1)
        if state == "held":
            self._unhold(key, pair, number)
        elif state == "offered":
            query = "DELETE FROM offered WHERE source = ? AND event_id = ?"
            self._tx.run(query, (self._source, id))
            pair.offered, pair.changed = max(0, pair.offered - 1), True
        self._tx.run(_STATE, ("withdrawn", self._source, id))
        return sender, mailbox, number

    def _asked(self, envelope: Envelope, ref: str) -> None:
        query = "SELECT state, mailbox, reason, sender, pair_seq FROM inbox"
        mine = (self._source, parse_event_id(ref))
        row = self._tx.one(f"{query} WHERE source = ? AND event_id = ?", mine)
        if row is None:
            said = Receipt(status="refused", reason="unknown: it is not in this journal")
            self._r.receipt(self._tx, "gateway", self._source, ref, ref, said)
        elif row[0] == "accepted":
            self._say_processed(envelope, row[1], ref)
        elif row[0] == "held":
            # Only a sender that was restored asks about it, and what it waits for never comes.
            self._settled((self._source, row[3], row[1]), row[4] - 1)
        elif row[0] in ("refused", "withdrawn", "restored"):
            reason = {"refused": row[2], "restored": RESTORED}.get(row[0]) or "withdrawn"
            said = Receipt(status="refused", reason=reason)
            self._r.receipt(self._tx, row[1], self._source, ref, ref, said)

    # -- the end

    def flush(self) -> None:
        """Put the mail away, and say so."""
        runs, self._runs = self._runs, {}
        self._in_runs.clear()
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

    def _forget_offers(self, key: PairKey, pair: Pair) -> None:
        """Whoever made them has a new life, and does not know of them: nobody confirms them."""
        for (id,) in self._tx.rows(_OFFERED_OF, key) if pair.offered else ():
            self._tx.run("DELETE FROM offered WHERE source = ? AND event_id = ?", (key[0], id))
            self._tx.run(_STATE, ("withdrawn", key[0], id))
        for number, id, body in self._tx.rows(_HELD_OF, key) if pair.held else ():
            if decode(body).offer:
                self._unhold(key, pair, number)
                self._tx.run(_STATE, ("withdrawn", key[0], id))
        pair.offered, pair.changed = 0, True

    def _pair(self, key: PairKey, base: int, number: int | None = None) -> Pair:
        """`number` is one that came: in a new life of its outbox it may be one that came before."""
        pair = self._pairs.get(key)
        if pair is None:
            row = self._tx.one(_PAIR, key)
            pair = self._pairs[key] = Pair(*row) if row else Pair(self._incarnation, 1)
        if number is not None and pair.incarnation != self._incarnation:
            pair.incarnation, pair.next = self._incarnation, min(pair.next, number)
            self._forget_offers(key, pair)
        if base > pair.next:
            pair.next, pair.changed = base, True
        return pair
