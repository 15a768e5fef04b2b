"""Held events: taken, and not accepted yet, in the order of their pair.

A row without an event says that its number never comes (`gone`), or that it was accepted here and
has gone on to another gateway (`forwarded`). It keeps its place in the order until every number
before it is dealt with. Unordered events, which have no pair number, are held
under numbers far below all others, the oldest first.
"""

from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from gatepost.delivery.receiver.inbox_pairs import InboxPair, PairKey
from gatepost.delivery.receiver.inbox_states import InboxInput
from gatepost.delivery.receiver.inbox_table import InboxTable
from gatepost.events import Envelope, decode_event, encode_event, parse_event_id
from gatepost.events.envelope import MAX_JSON_INT
from gatepost.journal.transaction import Tx

FORWARDED = "forwarded"

_OF_PAIR = "source = ? AND sender = ? AND mailbox = ? AND origin_node = ?"
_HOLD = """
INSERT OR IGNORE INTO held (source, sender, mailbox, origin_node, pair_seq, event_id, why, digest,
    body)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_HOLD_NUMBER = """
INSERT OR IGNORE INTO held (source, sender, mailbox, origin_node, pair_seq, why)
VALUES (?, ?, ?, ?, ?, ?)
"""
_REMOVE_FORWARDED = f"DELETE FROM held WHERE {_OF_PAIR} AND pair_seq = ? AND why = 'forwarded'"
_IS_NUMBERED = f"pair_seq > {-1 - MAX_JSON_INT}"
_IS_UNORDERED = f"pair_seq <= {-1 - MAX_JSON_INT}"
_SELECT_FIRST = f"""
SELECT pair_seq, event_id, body, why FROM held WHERE {_OF_PAIR} AND {_IS_NUMBERED}
ORDER BY pair_seq LIMIT 1
"""
_SELECT_EVENTS = f"""
SELECT pair_seq, event_id, body FROM held
WHERE {_OF_PAIR} AND {_IS_NUMBERED} AND event_id IS NOT NULL
"""
_SELECT_LAST_UNORDERED = f"SELECT min(pair_seq) FROM held WHERE {_OF_PAIR} AND {_IS_UNORDERED}"
_SELECT_FIRST_UNORDERED = f"""
SELECT pair_seq, event_id, body, why FROM held WHERE {_OF_PAIR} AND {_IS_UNORDERED}
    AND (digest IS NULL OR digest IN (SELECT digest FROM blob)) ORDER BY pair_seq DESC LIMIT 1
"""
_REMOVE_UNORDERED = f"DELETE FROM held WHERE source = ? AND event_id = ? AND {_IS_UNORDERED}"
_REMOVE_ALL_UNORDERED = f"DELETE FROM held WHERE {_IS_UNORDERED}"
_SELECT_EVENT_AT = f"SELECT event_id FROM held WHERE {_OF_PAIR} AND pair_seq = ?"
_REMOVE = f"DELETE FROM held WHERE {_OF_PAIR} AND pair_seq = ?"
_REMOVE_EVENT = f"DELETE FROM held WHERE {_OF_PAIR} AND event_id = ?"
_CHANGE_REASON = f"UPDATE held SET why = ?, digest = ? WHERE {_OF_PAIR} AND pair_seq = ?"
_SHARE_REASON = f"""
UPDATE held SET why = ?, digest = NULL WHERE {_OF_PAIR} AND {_IS_UNORDERED}
    AND digest IN (SELECT digest FROM blob)
"""
# An event of an earlier incarnation that has the same number goes before all numbered ones, and
# behind the events that went there before it: under negative numbers, which rise.
_MOVE_TO_FRONT = f"""
UPDATE held SET pair_seq = (
    SELECT coalesce(max(pair_seq) + 1, {-MAX_JSON_INT}) FROM held
    WHERE {_OF_PAIR} AND {_IS_NUMBERED} AND pair_seq < 0
) WHERE {_OF_PAIR} AND pair_seq = ?
"""
_SELECT_BODY = "SELECT body FROM held WHERE source = ? AND event_id = ?"
_RENEW_BODY = "UPDATE held SET body = ? WHERE source = ? AND event_id = ?"
_SELECT_REASON = "SELECT why, digest FROM held WHERE source = ? AND event_id = ?"
_SELECT_FULL = "SELECT DISTINCT mailbox FROM held WHERE why = 'full'"
# Time that goes by in larger steps was a standstill, or the clock was set.
_LOOK_MS = 5_000
_SELECT_SUSPECT_PAIRS = """
SELECT DISTINCT source, sender, mailbox, origin_node FROM held WHERE why = 'sender'
"""
_SELECT_SUSPECT_SINCE = """
SELECT min(i.at) FROM held h JOIN inbox i ON i.source = h.source AND i.event_id = h.event_id
WHERE h.why = 'sender'
"""
_SELECT_HELD_FOR_CAPACITY = """
SELECT DISTINCT source, sender, mailbox, origin_node FROM held
WHERE why = 'full' AND mailbox = ?
"""
_SELECT_HELD_FOR_BLOB = """
SELECT source, sender, mailbox, origin_node, body FROM held WHERE digest = ?
"""
_SELECT_WANTED_BLOBS = """
SELECT digest, source FROM held WHERE digest IS NOT NULL
UNION
SELECT digest, source FROM task_blob
"""
_SELECT_PAIRS = "SELECT source, sender, mailbox, origin_node FROM inbox_pair WHERE held > 0"
_MAKE_GONE = """
UPDATE held SET event_id = NULL, digest = NULL, body = NULL, why = 'gone'
WHERE event_id IS NOT NULL
"""


class HeldEvent(NamedTuple):
    """`event_id` is None for a number that never comes, or that was forwarded."""

    number: int
    event_id: bytes | None
    body: bytes
    why: str


class FullMailboxes:
    """The mailboxes for whose capacity an event is held; read again after a rollback."""

    def __init__(self) -> None:
        self._names: set[str] | None = None

    def add(self, mailbox: str) -> None:
        if self._names is not None:
            self._names.add(mailbox)

    def discard(self, mailbox: str) -> None:
        if self._names is not None:
            self._names.discard(mailbox)

    def names(self, tx: Tx) -> list[str]:
        return sorted(self._load_names(tx))

    def has_mailbox(self, tx: Tx, mailbox: str) -> bool:
        return mailbox in self._load_names(tx)

    def _load_names(self, tx: Tx) -> set[str]:
        if self._names is None:
            self._names = {row[0] for row in tx.fetch_all(_SELECT_FULL)}
        return self._names

    def rolled_back(self) -> None:
        self._names = None


class SuspectEvents:
    """Events that are held because the room does not say that their sender lives at their source.

    Their grace counts only while this gateway runs and hears of the room: it begins anew after a
    start, after a standstill, and when the clock was set.
    """

    def __init__(self, grace_ms: int) -> None:
        self._grace_ms = grace_ms
        self._since: int | None = None
        self._is_known = False
        self._looked_at: int | None = None
        self._awake_since = 0

    def add(self, now: int) -> None:
        if self._is_known and self._since is None:
            self._since = now

    def next_due(self, tx: Tx) -> int | None:
        """When the first of them has to be decided, or looked at to see that time goes on."""
        self._note_time(tx.now)
        if not self._is_known:
            ((self._since,),) = tx.fetch_all(_SELECT_SUSPECT_SINCE)
            self._is_known = True
        if self._since is None:
            return None
        return min(self._grace_end(self._since, tx.now), tx.now + _LOOK_MS)

    def is_grace_over(self, since: int, now: int) -> bool:
        """Whether an event that is held since then has waited long enough."""
        return now >= self._grace_end(since, now)

    def _grace_end(self, since: int, now: int) -> int:
        start = since if self._awake_since <= since <= now else self._awake_since
        return start + self._grace_ms

    def _note_time(self, now: int) -> None:
        last, self._looked_at = self._looked_at, now
        if last is None or not last <= now <= last + 2 * _LOOK_MS:
            self._awake_since = now

    def take_pairs(self, tx: Tx) -> list[PairKey]:
        """The pairs to look at again."""
        self._is_known = False
        return [PairKey(*row) for row in tx.fetch_all(_SELECT_SUSPECT_PAIRS)]

    def rolled_back(self) -> None:
        self._is_known = False


class HeldEvents:
    """The held events of one source, in one transaction."""

    def __init__(
        self, tx: Tx, inbox: InboxTable, full: FullMailboxes, suspects: SuspectEvents
    ) -> None:
        self._tx = tx
        self._inbox = inbox
        self._full = full
        self._suspects = suspects

    def hold_event(
        self, key: PairKey, pair: InboxPair, envelope: Envelope, body: bytes, why: str
    ) -> None:
        """Keep an event until what it waits for has come.

        That is `order`, `offer`, `full`, `blob` or `sender`.
        """
        if not body:
            body = msgspec.json.encode(envelope)
        id, number = parse_event_id(envelope.event_id), envelope.pair_seq
        self._make_way(key, pair, number, id)
        digest = _missing_digest(envelope, why)
        self._tx.execute(_HOLD, (*key, number, id, why, digest, body))
        if self._tx.changed_rows():
            pair.count_held(1)
            self._inbox.record_event(envelope, InboxInput.HOLD, why)
        self._note_reason(key, why)

    def hold_unordered(self, key: PairKey, envelope: Envelope, body: bytes, why: str) -> None:
        """Keep an event without a pair number: for `full`, `blob` or `sender`."""
        ((last,),) = self._tx.fetch_all(_SELECT_LAST_UNORDERED, key)
        number = (-1 - MAX_JSON_INT if last is None else last) - 1
        id, digest = parse_event_id(envelope.event_id), _missing_digest(envelope, why)
        encoded = body or msgspec.json.encode(envelope)
        self._tx.execute(_HOLD, (*key, number, id, why, digest, encoded))
        self._inbox.record_event(envelope, InboxInput.HOLD, why)
        self._note_reason(key, why)

    def first_unordered(self, key: PairKey) -> HeldEvent | None:
        """The oldest held event of a pair that has no number and waits for no blob."""
        row = self._tx.fetch_one(_SELECT_FIRST_UNORDERED, key)
        return None if row is None else HeldEvent(*row)

    def remove_unordered(self, source: str, event_id: bytes) -> None:
        self._tx.execute(_REMOVE_UNORDERED, (source, event_id))

    def hold_gone_number(self, key: PairKey, pair: InboxPair, number: int) -> None:
        """Note that a number never comes."""
        self._tx.execute(_HOLD_NUMBER, (*key, number, "gone"))
        pair.count_held(self._tx.changed_rows())

    def hold_forwarded_number(self, key: PairKey, pair: InboxPair, number: int) -> None:
        """Let later numbers wait until this one has ended elsewhere."""
        self._tx.execute(_HOLD_NUMBER, (*key, number, FORWARDED))
        pair.count_held(self._tx.changed_rows())

    def end_forwarded_number(self, key: PairKey, pair: InboxPair, number: int) -> None:
        if pair.held:
            self._tx.execute(_REMOVE_FORWARDED, (*key, number))
            pair.count_held(-self._tx.changed_rows())

    def first_held(self, key: PairKey) -> HeldEvent | None:
        row = self._tx.fetch_one(_SELECT_FIRST, key)
        return None if row is None else HeldEvent(*row)

    def keep_waiting(self, key: PairKey, held: HeldEvent, envelope: Envelope, why: str) -> None:
        """Let a held event wait on, perhaps for another reason than before."""
        if why != held.why:
            digest = _missing_digest(envelope, why)
            self._tx.execute(_CHANGE_REASON, (why, digest, *key, held.number))
        self._note_reason(key, why)

    def share_reason(self, key: PairKey, why: str) -> None:
        """Events without order whose blob has come wait for this reason now, as those before."""
        self._tx.execute(_SHARE_REASON, (why, *key))

    def _note_reason(self, key: PairKey, why: str) -> None:
        if why == "full":
            self._full.add(key.mailbox)
        elif why == "sender":
            self._suspects.add(self._tx.now)

    def remove_number(self, key: PairKey, pair: InboxPair, number: int) -> None:
        self._tx.execute(_REMOVE, (*key, number))
        pair.count_held(-1)

    def remove_event(self, key: PairKey, pair: InboxPair, event_id: bytes) -> None:
        """Remove an event wherever it stands: one that made way has another number than its own."""
        self._tx.execute(_REMOVE_EVENT, (*key, event_id))
        pair.count_held(-self._tx.changed_rows())

    def withdraw_offers(self, key: PairKey, pair: InboxPair) -> None:
        """Drop held offers: the new incarnation of their sender does not know of them."""
        for number, id, body in self._tx.fetch_all(_SELECT_EVENTS, key) if pair.held else ():
            if decode_event(body).offer:
                self.remove_number(key, pair, number)
                self._inbox.change_state(id, InboxInput.LAPSE)

    def renew_offer(self, source: str, envelope: Envelope) -> None:
        """A held event comes again, perhaps as another offer of it, or as none any more."""
        id = (source, parse_event_id(envelope.event_id))
        row = self._tx.fetch_one(_SELECT_BODY, id)
        if row is None or (held := decode_event(row[0])).offer == envelope.offer:
            return
        # A retry need not bring the payload, so that of the earlier one stays.
        body = encode_event(replace(held, offer=envelope.offer))
        self._tx.execute(_RENEW_BODY, (body, *id))

    def find_reason(self, source: str, event_id: bytes) -> tuple[str, str | None] | None:
        """What a held event waits for, and the digest of the blob it waits for, if any."""
        row = self._tx.fetch_one(_SELECT_REASON, (source, event_id))
        return None if row is None else (row[0], row[1])

    def _make_way(self, key: PairKey, pair: InboxPair, number: int, id: bytes) -> None:
        """Another event may have this number: one of an earlier incarnation of the outbox.

        That one then goes first. A row that says the number never comes was about that incarnation.
        """
        row = self._tx.fetch_one(_SELECT_EVENT_AT, (*key, number))
        if row is None or row[0] == id:
            return
        if row[0] is None:
            self.remove_number(key, pair, number)
        else:
            self._tx.execute(_MOVE_TO_FRONT, (*key, *key, number))


def _missing_digest(envelope: Envelope, why: str) -> str | None:
    return envelope.payload_ref.digest if why == "blob" and envelope.payload_ref else None


def pairs_held_for_capacity(tx: Tx, mailbox: str) -> list[PairKey]:
    """The pairs with an event that waits until this mailbox has capacity again."""
    return [PairKey(*row) for row in tx.fetch_all(_SELECT_HELD_FOR_CAPACITY, (mailbox,))]


def events_held_for_blob(tx: Tx, digest: str) -> list[tuple[PairKey, Envelope]]:
    rows = tx.fetch_all(_SELECT_HELD_FOR_BLOB, (digest,))
    return [(PairKey(*key), decode_event(body)) for *key, body in rows]


def wanted_blobs(tx: Tx) -> list[tuple[str, str]]:
    """(digest, source) of each blob that a held event or the result of a task waits for."""
    return [(row[0], row[1]) for row in tx.fetch_all(_SELECT_WANTED_BLOBS)]


def drop_all_events(tx: Tx) -> list[PairKey]:
    """In a restored journal: no held number comes from here; returns the pairs that go on."""
    tx.execute(_REMOVE_ALL_UNORDERED)
    tx.execute(_MAKE_GONE)
    return [PairKey(*row) for row in tx.fetch_all(_SELECT_PAIRS)]
