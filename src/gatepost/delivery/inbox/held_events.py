"""Held events: stored here but not accepted yet, in the order of their pair.

A row without an event says that its number never comes (`gone`), or that it was accepted here and
has gone on to another gateway (`forwarded`). It keeps its place in the order until every number
before it is dealt with. Unordered events, which have no pair number, are held
under numbers far below all others, the oldest first.
"""

from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from gatepost.delivery.blob_records import KNOWN_BLOBS_SQL, awaited_results
from gatepost.delivery.inbox.inbox_pairs import InboxPair, PairKey
from gatepost.delivery.inbox.inbox_states import InboxInput
from gatepost.delivery.inbox.inbox_table import change_state, record_event
from gatepost.events import Envelope, decode_event, encode_event, parse_event_id
from gatepost.events.envelope import MAX_JSON_INT
from gatepost.journal.transaction import Tx

FORWARDED = "forwarded"

# Room updates may arrive after events: wait this long for news of an agent that just moved.
SENDER_GRACE_MS = 15_000

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
    AND why != 'check' AND (digest IS NULL OR digest IN {KNOWN_BLOBS_SQL})
    ORDER BY pair_seq DESC LIMIT 1
"""
_REMOVE_UNORDERED = f"DELETE FROM held WHERE source = ? AND event_id = ? AND {_IS_UNORDERED}"
_REMOVE_ALL_UNORDERED = f"DELETE FROM held WHERE {_IS_UNORDERED}"
_SELECT_EVENT_AT = f"SELECT event_id FROM held WHERE {_OF_PAIR} AND pair_seq = ?"
_REMOVE = f"DELETE FROM held WHERE {_OF_PAIR} AND pair_seq = ?"
_REMOVE_EVENT = f"DELETE FROM held WHERE {_OF_PAIR} AND event_id = ?"
_CHANGE_REASON = f"UPDATE held SET why = ?, digest = ? WHERE {_OF_PAIR} AND pair_seq = ?"
_SHARE_REASON = f"""
UPDATE held SET why = ?, digest = NULL WHERE {_OF_PAIR} AND {_IS_UNORDERED}
    AND digest IN {KNOWN_BLOBS_SQL}
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
# A larger step means that the process was suspended, or that the clock was set.
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
_SELECT_WANTED_BLOBS = "SELECT DISTINCT digest, source FROM held WHERE digest IS NOT NULL"
_SELECT_BODY_WITH_BLOB = "SELECT body FROM held WHERE digest = ? LIMIT 1"
# The blobs that held and offered events refer to.
BLOBS_OF_EVENTS_SQL = """
SELECT ref FROM (
    SELECT CAST(body AS TEXT) ->> '$.payloadRef.digest' AS ref FROM held
    UNION ALL
    SELECT CAST(body AS TEXT) ->> '$.payloadRef.digest' FROM offered
) WHERE ref IS NOT NULL
"""
_SELECT_SOURCES_TO_CHECK = "SELECT DISTINCT source FROM held WHERE why = 'check'"
_SELECT_TO_CHECK = """
SELECT body FROM held WHERE source = ? AND why = 'check' ORDER BY event_id LIMIT ?
"""
_SELECT_HELD_FOR_CHECK = """
SELECT source, sender, mailbox, origin_node, pair_seq, event_id, body, why FROM held
WHERE source = ? AND event_id = ? AND why = 'check'
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

    @property
    def is_numbered(self) -> bool:
        return self.number > -1 - MAX_JSON_INT


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
    """Events that are held until the room confirms that their sender lives at their source.

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
        """When the first event is due for a decision, or the passing of time must be observed."""
        self._note_time(tx.now)
        if not self._is_known:
            ((self._since,),) = tx.fetch_all(_SELECT_SUSPECT_SINCE)
            self._is_known = True
        if self._since is None:
            return None
        return min(self._grace_end(self._since, tx.now), tx.now + _LOOK_MS)

    def is_grace_over(self, since: int, now: int) -> bool:
        """Whether an event held since `since` has waited long enough."""
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


class Holds(NamedTuple):
    """In memory: the held events that wait for capacity, or for news of their sender."""

    full: FullMailboxes
    suspects: SuspectEvents

    def rolled_back(self) -> None:
        self.full.rolled_back()
        self.suspects.rolled_back()


def hold_event(
    tx: Tx, holds: Holds, key: PairKey, pair: InboxPair, envelope: Envelope, body: bytes, why: str
) -> None:
    """Hold an event until its reason to wait is gone.

    That is `order`, `offer`, `full`, `blob`, `sender` or `check`.
    """
    if not body:
        body = msgspec.json.encode(envelope)
    id, number = parse_event_id(envelope.event_id), envelope.pair_seq
    _make_way(tx, key, pair, number, id)
    digest = _missing_digest(envelope, why)
    tx.execute(_HOLD, (*key, number, id, why, digest, body))
    if tx.changed_rows():
        pair.count_held(1)
        record_event(tx, key.source, envelope, InboxInput.HOLD, why)
    _note_reason(tx, holds, key, why)


def hold_unordered(
    tx: Tx, holds: Holds, key: PairKey, envelope: Envelope, body: bytes, why: str
) -> None:
    """Keep an event without a pair number: for `full`, `blob`, `sender` or `check`."""
    ((last,),) = tx.fetch_all(_SELECT_LAST_UNORDERED, key)
    number = (-1 - MAX_JSON_INT if last is None else last) - 1
    id, digest = parse_event_id(envelope.event_id), _missing_digest(envelope, why)
    encoded = body or msgspec.json.encode(envelope)
    tx.execute(_HOLD, (*key, number, id, why, digest, encoded))
    record_event(tx, key.source, envelope, InboxInput.HOLD, why)
    _note_reason(tx, holds, key, why)


def first_unordered(tx: Tx, key: PairKey) -> HeldEvent | None:
    """The oldest event of a pair that has no number, and waits for no blob and no check."""
    row = tx.fetch_one(_SELECT_FIRST_UNORDERED, key)
    return None if row is None else HeldEvent(*row)


def remove_unordered(tx: Tx, source: str, event_id: bytes) -> None:
    tx.execute(_REMOVE_UNORDERED, (source, event_id))


def hold_gone_number(tx: Tx, key: PairKey, pair: InboxPair, number: int) -> None:
    """Note that a number never comes."""
    tx.execute(_HOLD_NUMBER, (*key, number, "gone"))
    pair.count_held(tx.changed_rows())


def hold_forwarded_number(tx: Tx, key: PairKey, pair: InboxPair, number: int) -> None:
    """Let later numbers wait until this one has ended elsewhere."""
    tx.execute(_HOLD_NUMBER, (*key, number, FORWARDED))
    pair.count_held(tx.changed_rows())


def end_forwarded_number(tx: Tx, key: PairKey, pair: InboxPair, number: int) -> None:
    if pair.held:
        tx.execute(_REMOVE_FORWARDED, (*key, number))
        pair.count_held(-tx.changed_rows())


def first_held(tx: Tx, key: PairKey) -> HeldEvent | None:
    row = tx.fetch_one(_SELECT_FIRST, key)
    return None if row is None else HeldEvent(*row)


def keep_waiting(
    tx: Tx, holds: Holds, key: PairKey, held: HeldEvent, envelope: Envelope, why: str
) -> None:
    """Keep holding an event, perhaps for a new reason."""
    if why != held.why:
        digest = _missing_digest(envelope, why)
        tx.execute(_CHANGE_REASON, (why, digest, *key, held.number))
    _note_reason(tx, holds, key, why)


def share_reason(tx: Tx, key: PairKey, why: str) -> None:
    """Unordered events whose blob has come now wait for this reason."""
    tx.execute(_SHARE_REASON, (why, *key))


def _note_reason(tx: Tx, holds: Holds, key: PairKey, why: str) -> None:
    if why == "full":
        holds.full.add(key.mailbox)
    elif why == "sender":
        holds.suspects.add(tx.now)


def remove_number(tx: Tx, key: PairKey, pair: InboxPair, number: int) -> None:
    tx.execute(_REMOVE, (*key, number))
    pair.count_held(-1)


def remove_event(tx: Tx, key: PairKey, pair: InboxPair, event_id: bytes) -> None:
    """Remove an event by its id, because a displaced one is not held under its own number."""
    tx.execute(_REMOVE_EVENT, (*key, event_id))
    pair.count_held(-tx.changed_rows())


def withdraw_held_offers(tx: Tx, key: PairKey, pair: InboxPair) -> None:
    """Drop held offers: the new incarnation of their sender does not know of them."""
    for number, id, body in tx.fetch_all(_SELECT_EVENTS, key) if pair.held else ():
        if decode_event(body).offer:
            remove_number(tx, key, pair, number)
            change_state(tx, key.source, id, InboxInput.LAPSE)


def renew_offer(tx: Tx, source: str, envelope: Envelope) -> None:
    """A held event comes again, perhaps as a new offer, or without an offer."""
    id = (source, parse_event_id(envelope.event_id))
    row = tx.fetch_one(_SELECT_BODY, id)
    if row is None or (held := decode_event(row[0])).offer == envelope.offer:
        return
    # A retry may lack the payload, so keep that of the earlier attempt.
    body = encode_event(replace(held, offer=envelope.offer))
    tx.execute(_RENEW_BODY, (body, *id))


def find_reason(tx: Tx, source: str, event_id: bytes) -> tuple[str, str | None] | None:
    """The reason to hold an event, and the digest of the awaited blob, if any."""
    row = tx.fetch_one(_SELECT_REASON, (source, event_id))
    return None if row is None else (row[0], row[1])


def _make_way(tx: Tx, key: PairKey, pair: InboxPair, number: int, id: bytes) -> None:
    """Move an event of an earlier incarnation with the same number out of the way.

    It then goes first. A row `gone` for the number was about the earlier incarnation.
    """
    row = tx.fetch_one(_SELECT_EVENT_AT, (*key, number))
    if row is None or row[0] == id:
        return
    if row[0] is None:
        remove_number(tx, key, pair, number)
    else:
        tx.execute(_MOVE_TO_FRONT, (*key, *key, number))


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
    of_events = {(row[0], row[1]) for row in tx.fetch_all(_SELECT_WANTED_BLOBS)}
    return sorted(of_events | awaited_results(tx))


def find_event_with_blob(tx: Tx, digest: str) -> Envelope | None:
    """An event that is held and refers to this blob."""
    row = tx.fetch_one(_SELECT_BODY_WITH_BLOB, (digest,))
    return None if row is None else decode_event(row[0])


def sources_to_check(tx: Tx) -> list[str]:
    """The nodes with held events whose contents must be checked."""
    return [row[0] for row in tx.fetch_all(_SELECT_SOURCES_TO_CHECK)]


def find_event_to_check(tx: Tx, source: str, event_id: bytes) -> tuple[PairKey, HeldEvent] | None:
    """An event that is held until its content is checked; None if it is not held for that."""
    row = tx.fetch_one(_SELECT_HELD_FOR_CHECK, (source, event_id))
    return None if row is None else (PairKey(*row[:4]), HeldEvent(*row[4:]))


def events_to_check(tx: Tx, source: str, limit: int) -> list[Envelope]:
    """The oldest events of a node that are held until their contents are checked."""
    return [decode_event(body) for (body,) in tx.fetch_all(_SELECT_TO_CHECK, (source, limit))]


def drop_all_events(tx: Tx) -> list[PairKey]:
    """In a restored journal: drop all held events; returns their pairs."""
    tx.execute(_REMOVE_ALL_UNORDERED)
    tx.execute(_MAKE_GONE)
    return [PairKey(*row) for row in tx.fetch_all(_SELECT_PAIRS)]
