"""Outboxes of others as a relay stores them: whole, checked groups, while any reader needs them.

A replica starts at the position of the reader that is furthest back. When a reader comes from
further back, the replica starts again from there. A replica that becomes too large loses its oldest
events: a reader that still needs them gets them from their source again. This runs in the writer's
thread.

proof.py has the rules of relays and proofs.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec
from msgspec import Struct

from gatepost.delivery.frames import (
    FRAME_BYTES,
    FRAME_EVENTS,
    CommitGroup,
    Incarnation,
    IncarnationsFrame,
    Position,
    encode_frame,
)
from gatepost.delivery.incarnations import incarnation_at, last_seq_of, next_stretch, position_after
from gatepost.journal.outbox import EVERYBODY
from gatepost.journal.transaction import Row, Tx

_SELECT_REPLICA = (
    "SELECT incarnations, incarnation, start, seq, chain FROM relayed WHERE source = ?"
)
_SELECT_KEPT_HEAD = """
SELECT last_seq, at, chain FROM replica_head
WHERE source = ?1 AND incarnation = ?2 AND last_seq >= ?3 ORDER BY last_seq LIMIT 1
"""
_SELECT_CHECKED_HEAD = """
SELECT seq, NULL, chain FROM relayed
WHERE source = ?1 AND incarnation = ?2 AND seq >= ?3 AND chain IS NOT NULL
"""
_SELECT_PROVEN = """
SELECT source, incarnation, seq, chain FROM relayed WHERE seq > 0 AND chain IS NOT NULL
"""
_ADD_REPLICA = "INSERT OR IGNORE INTO relayed (source) VALUES (?)"
_RESET_REPLICA = """
UPDATE relayed SET incarnation = ?, start = ?, seq = ?, chain = NULL WHERE source = ?
"""
_ADVANCE_REPLICA = """
UPDATE relayed SET incarnation = ?, seq = ?, chain = ?
WHERE source = ? AND incarnation = ? AND seq = ? AND chain IS ?
"""
_SAVE_ROW = """
INSERT OR REPLACE INTO replica (source, incarnation, seq, to_node, body, digest)
VALUES (?, ?, ?, ?, ?, ?)
"""
_SAVE_HEAD = """
INSERT OR REPLACE INTO replica_head
    (source, incarnation, last_seq, first_seq, previous, chain, signature, at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)
"""
_SELECT_EVENTS_FOR = f"""
SELECT seq, body FROM replica WHERE to_node IN (?, '{EVERYBODY}') AND source = ?
AND incarnation = ? AND seq > ? AND seq <= ? ORDER BY seq LIMIT {FRAME_EVENTS}
"""
_SELECT_GROUP = """
SELECT first_seq, last_seq, previous, chain, signature FROM replica_head
WHERE source = ? AND incarnation = ? AND last_seq >= ? ORDER BY last_seq LIMIT 1
"""
_SELECT_DIGESTS = """
SELECT digest FROM replica WHERE source = ? AND incarnation = ? AND seq BETWEEN ? AND ?
ORDER BY seq
"""
_SAVE_READER = """
INSERT OR REPLACE INTO relay_reader (source, reader, positions, through, at)
VALUES (?, ?, ?, ?, ?)
"""
_SAVE_PROGRESS = """
UPDATE relay_reader SET positions = ?, through = ?, at = ? WHERE source = ? AND reader = ?
"""
_SELECT_READERS = "SELECT positions, through FROM relay_reader WHERE source = ?"
_SELECT_READER = """
SELECT positions, through FROM relay_reader WHERE source = ? AND reader = ?
"""
_CAP_THROUGH = "UPDATE relay_reader SET through = min(through, ?) WHERE source = ?"
_SELECT_SOURCES_OF = "SELECT source FROM relay_reader WHERE reader = ?"
_DELETE_READER = "DELETE FROM relay_reader WHERE source = ? AND reader = ?"
_DELETE_OLD_READERS = "DELETE FROM relay_reader WHERE at < ?"
_SELECT_UNWANTED = """
SELECT source FROM relayed r WHERE NOT EXISTS
    (SELECT 1 FROM relay_reader x WHERE x.source = r.source)
"""
_DELETE_ROWS = "DELETE FROM replica WHERE source = ?"
_DELETE_HEADS = "DELETE FROM replica_head WHERE source = ?"
_DELETE_REPLICA = "DELETE FROM relayed WHERE source = ?"
_DELETE_OTHER_ROWS = """
DELETE FROM replica
WHERE source = ?1 AND incarnation NOT IN (SELECT value FROM json_each(?2))
"""
_DELETE_OTHER_HEADS = """
DELETE FROM replica_head
WHERE source = ?1 AND incarnation NOT IN (SELECT value FROM json_each(?2))
"""
_CUT_HEADS = "DELETE FROM replica_head WHERE source = ? AND incarnation = ? AND last_seq > ?"
_CUT_ROWS = "DELETE FROM replica WHERE source = ? AND incarnation = ? AND seq > ?"
_SELECT_PRUNABLE = """
SELECT last_seq FROM replica_head WHERE source = ?1 AND incarnation = ?2
AND (last_seq <= ?3 OR at < ?4) ORDER BY last_seq DESC LIMIT 1
"""
_PRUNE_HEADS = "DELETE FROM replica_head WHERE source = ? AND incarnation = ? AND last_seq <= ?"
_PRUNE_ROWS = "DELETE FROM replica WHERE source = ? AND incarnation = ? AND seq <= ?"
_SAVE_INCARNATIONS = "UPDATE relayed SET incarnations = ? WHERE source = ?"
_SAVE_START = "UPDATE relayed SET start = max(start, ?) WHERE source = ?"
_ADD_BYTES = "UPDATE relayed SET bytes = bytes + ? WHERE source = ? RETURNING bytes"
_SUBTRACT_BYTES = """
UPDATE relayed SET bytes = max(0, bytes - (
    SELECT coalesce(sum(length(body)), 0) FROM replica
    WHERE source = ?1 AND incarnation = ?2 AND seq <= ?3
)) WHERE source = ?1
"""
_CLEAR_BYTES = "UPDATE relayed SET bytes = 0 WHERE source = ?"
# Corrects the count, which includes events that came twice or were deleted with an incarnation.
_COUNT_BYTES = """
UPDATE relayed SET bytes = (SELECT coalesce(sum(length(body)), 0) FROM replica WHERE source = ?1)
WHERE source = ?1
"""
# The last group to delete so that the newest events fit.
_SELECT_OVERFLOW = """
SELECT max(last_seq) FROM replica_head WHERE source = ?1 AND incarnation = ?2 AND last_seq <= (
    SELECT max(seq) FROM (
        SELECT seq, sum(length(body)) OVER (ORDER BY seq DESC) AS newer FROM replica
        WHERE source = ?1 AND incarnation = ?2
    ) WHERE newer > ?3
)
"""
_SELECT_CHAIN = (
    "SELECT chain FROM replica_head WHERE source = ? AND incarnation = ? AND last_seq = ?"
)

_incarnations_decoder = msgspec.msgpack.Decoder(IncarnationsFrame)
_positions_decoder = msgspec.msgpack.Decoder(list[Position])

# The most bytes of events that are kept of one source.
MAX_REPLICA_BYTES = 256 << 20

# seq, recipient, event, digest
ReplicaRow = tuple[int, str | None, bytes, bytes]


class ReplicaPosition(Struct, frozen=True):
    """How far an outbox is kept and checked. `chain` is unknown before the first group."""

    incarnation: str
    seq: int
    chain: bytes | None


class ReplicaState(Struct, frozen=True):
    """One kept outbox: events after `start`, up to `position`."""

    incarnations: IncarnationsFrame | None
    start: int
    position: ReplicaPosition


class ReaderProgress(Struct, frozen=True):
    """A reader's position in an outbox; through `through` the replica has nothing more for it."""

    positions: list[Position]
    through: int


class ReplicaExcerpt(Struct, frozen=True):
    """The events of one frame for a reader; `complete` if the replica has no more.

    `last` is the last event in it. Up to `upto` there is no other event for the reader.
    """

    incarnation: Incarnation
    upto: int
    complete: bool
    last: int
    events: list[bytes]
    groups: list[CommitGroup]


def find_replica(tx: Tx, source: str) -> ReplicaState | None:
    row = tx.fetch_one(_SELECT_REPLICA, (source,))
    if row is None:
        return None
    packed, incarnation, start, seq, chain = row
    incarnations = None if packed is None else _incarnations_decoder.decode(packed)
    return ReplicaState(incarnations, start, ReplicaPosition(incarnation, seq, chain))


def replicated_sources(tx: Tx) -> set[str]:
    return {row[0] for row in tx.fetch_all("SELECT source FROM relayed")}


# -- readers


def save_reader(
    tx: Tx,
    reader: str,
    wants: Iterable[str],
    positions: Sequence[Position],
    anew: Collection[str] = (),
) -> dict[str, tuple[ReplicaState, int]]:
    """Note the outboxes that a reader wants from now on, and its positions in them.

    For the outboxes in `anew`, earlier notes are ignored. Returns the state of each replica, and up
    to where it has nothing for the reader.
    """
    found: dict[str, tuple[ReplicaState, int]] = {}
    wanted: dict[str, list[Position]] = {source: [] for source in wants}
    for each in positions:
        if each[0] in wanted:
            wanted[each[0]].append(each)
    for (source,) in tx.fetch_all(_SELECT_SOURCES_OF, (reader,)):
        if source not in wanted or source in anew:
            tx.execute(_DELETE_READER, (source, reader))
    for source, mine in wanted.items():
        tx.execute(_ADD_REPLICA, (source,))
        state = find_replica(tx, source)
        if state is not None:
            through = _reader_through(tx, source, reader, mine, state)
            row = (source, reader, msgspec.msgpack.encode(mine), through, tx.now)
            tx.execute(_SAVE_READER, row)
            found[source] = state, through
    return found


def _reader_through(
    tx: Tx, source: str, reader: str, now: Sequence[Position], state: ReplicaState
) -> int:
    """The noted `through` of a reader; 0 if its position went back."""
    row = tx.fetch_one(_SELECT_READER, (source, reader))
    if row is None or state.incarnations is None:
        return 0
    incarnations = state.incarnations.incarnations
    then = position_after(incarnations, _positions_decoder.decode(row[0]), source)
    return int(row[1]) if position_after(incarnations, now, source) >= then else 0


def save_progress(tx: Tx, progress: Mapping[tuple[str, str], ReaderProgress]) -> None:
    """Save the positions of the connected readers, by (source, reader)."""
    for (source, reader), at in progress.items():
        positions = msgspec.msgpack.encode(at.positions)
        tx.execute(_SAVE_PROGRESS, (positions, at.through, tx.now, source, reader))


def _lowest_needed(tx: Tx, source: str, incarnations: Sequence[Incarnation]) -> int | None:
    """The position of the reader that is furthest back; None if this outbox has no reader."""
    places = (
        max(position_after(incarnations, _positions_decoder.decode(positions), source), through)
        for positions, through in tx.fetch_all(_SELECT_READERS, (source,))
    )
    return min(places, default=None)


def begin_following(
    tx: Tx, source: str, incarnations: Sequence[Incarnation]
) -> ReplicaPosition | None:
    """The position from which to follow a source with these incarnations.

    None if this outbox has no reader. A replica that starts too late for one reader starts again.
    """
    state = find_replica(tx, source)
    needed = _lowest_needed(tx, source, incarnations)
    if state is None or needed is None:
        return None
    position = _cut_to_fork(tx, source, incarnations, state.position)
    if position is not None and state.start <= needed:
        return position
    _delete_rows(tx, source)
    incarnation = incarnation_at(incarnations, needed)[0]
    tx.execute(_RESET_REPLICA, (incarnation, needed, needed, source))
    return ReplicaPosition(incarnation, needed, None)


def _cut_to_fork(
    tx: Tx, source: str, incarnations: Sequence[Incarnation], position: ReplicaPosition
) -> ReplicaPosition | None:
    """Delete events that a restored source has forgotten; None if nothing is left."""
    known = next((each for each in incarnations if each[0] == position.incarnation), None)
    if known is None:
        return None
    end = last_seq_of(incarnations, known)
    if position.seq <= end:
        return position
    row = tx.fetch_one(_SELECT_CHAIN, (source, known[0], end))
    if row is None:
        return None
    for sql in (_CUT_HEADS, _CUT_ROWS):
        tx.execute(sql, (source, known[0], end))
    cut = ReplicaPosition(known[0], end, row[0])
    advance_replica(tx, source, position, cut)
    return cut


# -- storing and serving


def save_incarnations(tx: Tx, frame: IncarnationsFrame) -> None:
    """Note the incarnations that the source signed, and forget events of any other."""
    state = find_replica(tx, frame.source)
    known = None if state is None else state.incarnations
    if known is not None and known.incarnations != frame.incarnations:
        # Positions of readers after the fork refer to deleted events.
        tx.execute(_CAP_THROUGH, (frame.incarnations[-1][1] - 1, frame.source))
    tx.execute(_SAVE_INCARNATIONS, (encode_frame(frame), frame.source))
    names = msgspec.json.encode([name for name, _ in frame.incarnations]).decode()
    for sql in (_DELETE_OTHER_ROWS, _DELETE_OTHER_HEADS):
        tx.execute(sql, (frame.source, names))


def advance_replica(tx: Tx, source: str, before: ReplicaPosition, now: ReplicaPosition) -> bool:
    """Advance the position; False if the replica was started again in between."""
    tx.execute(
        _ADVANCE_REPLICA,
        (now.incarnation, now.seq, now.chain, source, before.incarnation, before.seq, before.chain),
    )
    return bool(tx.changed_rows())


def store_rows(
    tx: Tx,
    source: str,
    incarnation: str,
    rows: Sequence[ReplicaRow],
    groups: Sequence[CommitGroup],
) -> None:
    """Store events and heads. Events without a head are not served, and may come again."""
    tx.execute_many(_SAVE_ROW, [(source, incarnation, *row) for row in rows])
    tx.execute_many(
        _SAVE_HEAD,
        [
            (source, incarnation, g.last, g.first, g.previous, g.chain, g.signature, tx.now)
            for g in groups
        ],
    )
    size = sum(len(row[2]) for row in rows)
    for (total,) in tx.fetch_all(_ADD_BYTES, (size, source)):
        if total > MAX_REPLICA_BYTES:
            _drop_oldest(tx, source, incarnation)


def _drop_oldest(tx: Tx, source: str, incarnation: str) -> None:
    """Forget the oldest groups, until three quarters of the limit are used."""
    names = msgspec.json.encode([incarnation]).decode()
    for sql in (_DELETE_OTHER_ROWS, _DELETE_OTHER_HEADS):
        tx.execute(sql, (source, names))
    query = (source, incarnation, MAX_REPLICA_BYTES * 3 // 4)
    ((last,),) = tx.fetch_all(_SELECT_OVERFLOW, query)
    if last is not None:
        _prune_through(tx, source, incarnation, last)
    tx.execute(_COUNT_BYTES, (source,))


def read_excerpt(
    tx: Tx, source: str, reader: str, incarnations: Sequence[Incarnation], position: int
) -> ReplicaExcerpt | None:
    """The events after `position` for a reader, with proof; None if they are no longer kept."""
    incarnation, end = next_stretch(incarnations, position)
    state = find_replica(tx, source)
    if state is None or position < state.start:
        return None
    reach = state.position.seq
    query = (reader, source, incarnation[0], position, min(end, reach))
    rows = tx.fetch_all(_SELECT_EVENTS_FOR, query)
    events: list[bytes] = []
    groups: list[CommitGroup] = []
    size, last = 0, position
    for seq, body in rows:
        is_covered = bool(groups) and seq <= groups[-1].last
        group = None if is_covered else _read_group(tx, source, incarnation[0], seq)
        size += len(body) + (len(group.digests) if group else 0)
        if events and size > FRAME_BYTES:
            return ReplicaExcerpt(incarnation, last, False, last, events, groups)
        groups += [group] if group else []
        events.append(body)
        last = seq
    upto = last if len(rows) == FRAME_EVENTS else max(position, min(end, reach))
    return ReplicaExcerpt(incarnation, upto, upto >= reach, last, events, groups)


def _read_group(tx: Tx, source: str, incarnation: str, seq: int) -> CommitGroup:
    """The group that holds event `seq`, with the digests of all its events."""
    ((first, last, previous, chain, signature),) = tx.fetch_all(
        _SELECT_GROUP, (source, incarnation, seq)
    )
    rows = tx.fetch_all(_SELECT_DIGESTS, (source, incarnation, first, last))
    digests = b"".join(row[0] for row in rows)
    return CommitGroup(first, last, previous, chain, signature, digests)


# -- forgetting


def prune_replicas(
    tx: Tx, progress: Mapping[tuple[str, str], ReaderProgress], keep_ms: int
) -> set[str]:
    """Forget events that all readers have taken, and those older than `keep_ms`.

    `progress` is where the connected readers are, by (source, reader). A reader that was not
    connected for `keep_ms` is forgotten too. Returns the sources without a reader.
    """
    save_progress(tx, progress)
    tx.execute(_DELETE_OLD_READERS, (tx.now - keep_ms,))
    unwanted = {row[0] for row in tx.fetch_all(_SELECT_UNWANTED)}
    for source in unwanted:
        _delete_rows(tx, source)
        tx.execute(_DELETE_REPLICA, (source,))
    for source in replicated_sources(tx):
        _prune_source(tx, source, tx.now - keep_ms)
    return unwanted


def _prune_source(tx: Tx, source: str, before: int) -> None:
    state = find_replica(tx, source)
    if state is None or state.incarnations is None:
        return
    incarnations = state.incarnations.incarnations
    floor = _lowest_needed(tx, source, incarnations) or 0
    for each in incarnations:
        taken = min(floor, last_seq_of(incarnations, each))
        row = tx.fetch_one(_SELECT_PRUNABLE, (source, each[0], taken, before))
        if row is not None:
            _prune_through(tx, source, each[0], row[0])


def _prune_through(tx: Tx, source: str, incarnation: str, last: int) -> None:
    tx.execute(_SUBTRACT_BYTES, (source, incarnation, last))
    tx.execute(_PRUNE_HEADS, (source, incarnation, last))
    tx.execute(_PRUNE_ROWS, (source, incarnation, last))
    tx.execute(_SAVE_START, (last, source))


def _delete_rows(tx: Tx, source: str) -> None:
    for sql in (_DELETE_ROWS, _DELETE_HEADS, _CLEAR_BYTES):
        tx.execute(sql, (source,))


def find_checked_head(tx: Tx, source: str, incarnation: str, seq: int) -> Row | None:
    """(seq, at, chain) of the nearest head at `seq` or behind it that is kept, or was checked."""
    place = (source, incarnation, seq)
    return tx.fetch_one(_SELECT_KEPT_HEAD, place) or tx.fetch_one(_SELECT_CHECKED_HEAD, place)


def last_replicated_seq(tx: Tx, source: str) -> int:
    """The highest sequence number of an outbox that is kept here for others; 0 if it is not."""
    row = tx.fetch_one("SELECT seq FROM relayed WHERE source = ?", (source,))
    return int(row[0]) if row else 0


def proven_heads(tx: Tx) -> list[Row]:
    """(source, incarnation, seq, chain) of each replica whose chain this gateway has verified."""
    return tx.fetch_all(_SELECT_PROVEN)
