"""Outboxes of others, as a relay stores them: whole groups, checked, for as long as somebody reads.

A replica starts where the reader furthest behind is. Should one come from further behind, it starts
again from there. All of this runs in the writer's thread.
"""

from collections.abc import Iterable, Mapping, Sequence

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
from gatepost.journal.tx import Tx

_FIND = "SELECT lives, incarnation, start, seq, chain FROM relayed WHERE source = ?"
_NEW = "INSERT OR IGNORE INTO relayed (source) VALUES (?)"
_RESET = """
UPDATE relayed SET incarnation = ?, start = ?, seq = ?, chain = NULL WHERE source = ?
"""
_REACHED = """
UPDATE relayed SET incarnation = ?, seq = ?, chain = ?
WHERE source = ? AND incarnation = ? AND seq = ? AND chain IS ?
"""
_ROW = "INSERT OR REPLACE INTO replica VALUES (?, ?, ?, ?, ?, ?)"
_HEAD = "INSERT OR REPLACE INTO replica_head VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
_FOR = f"""
SELECT seq, body FROM replica WHERE to_node IN (?, '{EVERYBODY}') AND source = ?
AND incarnation = ? AND seq > ? AND seq <= ? ORDER BY seq LIMIT {FRAME_EVENTS}
"""
_GROUP = """
SELECT first_seq, last_seq, previous, chain, signature FROM replica_head
WHERE source = ? AND incarnation = ? AND last_seq >= ? ORDER BY last_seq LIMIT 1
"""
_DIGESTS = """
SELECT digest FROM replica WHERE source = ? AND incarnation = ? AND seq BETWEEN ? AND ?
ORDER BY seq
"""
_READER = "INSERT OR REPLACE INTO relay_reader VALUES (?, ?, ?, ?, ?)"
_MOVED = """
UPDATE relay_reader SET positions = ?, through = ?, at = ? WHERE source = ? AND reader = ?
"""
_READERS = "SELECT positions, through FROM relay_reader WHERE source = ?"
_FORKED = "UPDATE relay_reader SET through = min(through, ?) WHERE source = ?"
_READ_BY = "SELECT source FROM relay_reader WHERE reader = ?"
_UNREAD = "DELETE FROM relay_reader WHERE source = ? AND reader = ?"
_GONE_READERS = "DELETE FROM relay_reader WHERE at < ?"
_UNWANTED = """
SELECT source FROM relayed r WHERE NOT EXISTS
    (SELECT 1 FROM relay_reader x WHERE x.source = r.source)
"""
_DROP = "DELETE FROM {} WHERE source = ?"
_OTHER_LIVES = """
DELETE FROM {} WHERE source = ?1 AND incarnation NOT IN (SELECT value FROM json_each(?2))
"""
_CUT_HEADS = "DELETE FROM replica_head WHERE source = ? AND incarnation = ? AND last_seq > ?"
_CUT_ROWS = "DELETE FROM replica WHERE source = ? AND incarnation = ? AND seq > ?"
_OLDEST = """
SELECT last_seq FROM replica_head WHERE source = ?1 AND incarnation = ?2
AND (last_seq <= ?3 OR at < ?4) ORDER BY last_seq DESC LIMIT 1
"""
_PRUNE_HEADS = "DELETE FROM replica_head WHERE source = ? AND incarnation = ? AND last_seq <= ?"
_PRUNE_ROWS = "DELETE FROM replica WHERE source = ? AND incarnation = ? AND seq <= ?"
_STARTS = "UPDATE relayed SET start = max(start, ?) WHERE source = ?"
_CHAIN_AT = "SELECT chain FROM replica_head WHERE source = ? AND incarnation = ? AND last_seq = ?"

_incarnations_decoder = msgspec.msgpack.Decoder(IncarnationsFrame)
_positions_decoder = msgspec.msgpack.Decoder(list[Position])

# seq, for whom, event, digest
ReplicaRow = tuple[int, str | None, bytes, bytes]


class ReplicaPosition(Struct, frozen=True):
    """How far an outbox is kept and checked. Without a chain: from where it is asked for."""

    incarnation: str
    seq: int
    chain: bytes | None


class ReplicaState(Struct, frozen=True):
    """What there is of one outbox."""

    incarnations: IncarnationsFrame | None
    start: int
    position: ReplicaPosition


class ReaderProgress(Struct, frozen=True):
    """How far a reader has taken an outbox, and up to where there is nothing more for it."""

    positions: list[Position]
    through: int


class ReplicaExcerpt(Struct, frozen=True):
    """The next frame's worth for one reader; `complete` if there is no more.

    `last` is the last event in it, and up to `upto` there is no other.
    """

    incarnation: Incarnation
    upto: int
    complete: bool
    last: int
    events: list[bytes]
    groups: list[CommitGroup]


def find_replica(tx: Tx, source: str) -> ReplicaState | None:
    row = tx.one(_FIND, (source,))
    if row is None:
        return None
    lives, incarnation, start, seq, chain = row
    return ReplicaState(
        None if lives is None else _incarnations_decoder.decode(lives),
        start,
        ReplicaPosition(incarnation, seq, chain),
    )


def replicated_sources(tx: Tx) -> set[str]:
    return {row[0] for row in tx.rows("SELECT source FROM relayed")}


# -- readers


def save_reader(
    tx: Tx, reader: str, wants: Iterable[str], positions: Sequence[Position]
) -> dict[str, tuple[ReplicaState, int]]:
    """This is what a reader wants from now on, and from where.

    Returns what there is of it, and up to where there is nothing for the reader in it.
    """
    found: dict[str, tuple[ReplicaState, int]] = {}
    wanted = dict.fromkeys(wants)
    for (source,) in tx.rows(_READ_BY, (reader,)):
        if source not in wanted:
            tx.run(_UNREAD, (source, reader))
    for source in wanted:
        mine = [each for each in positions if each[0] == source]
        tx.run(_NEW, (source,))
        kept = find_replica(tx, source)
        if kept is not None:
            through = _reader_through(tx, source, reader, mine, kept)
            row = (source, reader, msgspec.msgpack.encode(mine), through, tx.now)
            tx.run(_READER, row)
            found[source] = kept, through
    return found


def _reader_through(
    tx: Tx, source: str, reader: str, now: Sequence[Position], kept: ReplicaState
) -> int:
    """What we know of a reader that comes back, unless it has gone back."""
    row = tx.one(f"{_READERS} AND reader = ?", (source, reader))
    if row is None or kept.incarnations is None:
        return 0
    lives = kept.incarnations.incarnations
    then = position_after(lives, _positions_decoder.decode(row[0]), source)
    return int(row[1]) if position_after(lives, now, source) >= then else 0


def _lowest_needed(tx: Tx, source: str, lives: Sequence[Incarnation]) -> int | None:
    """Where the reader furthest behind is; None if there is none."""
    rows = tx.rows(_READERS, (source,))
    places = (
        max(position_after(lives, _positions_decoder.decode(row[0]), source), row[1])
        for row in rows
    )
    return min(places, default=None)


def begin_following(tx: Tx, source: str, lives: Sequence[Incarnation]) -> ReplicaPosition | None:
    """Where to go on following, now that the source has these lives; None: nobody wants it."""
    kept = find_replica(tx, source)
    needed = _lowest_needed(tx, source, lives)
    if kept is None or needed is None:
        return None
    place = _cut_to_fork(tx, source, lives, kept.position)
    if place is not None and kept.start <= needed:
        return place
    _delete_rows(tx, source)
    incarnation = incarnation_at(lives, needed)[0]
    tx.run(_RESET, (incarnation, needed, needed, source))
    return ReplicaPosition(incarnation, needed, None)


def _cut_to_fork(
    tx: Tx, source: str, lives: Sequence[Incarnation], place: ReplicaPosition
) -> ReplicaPosition | None:
    """Give up what a restored source does not know any more; None if that is all there is."""
    life = next((each for each in lives if each[0] == place.incarnation), None)
    if life is None:
        return None
    end = last_seq_of(lives, life)
    if place.seq <= end:
        return place
    row = tx.one(_CHAIN_AT, (source, life[0], end))
    if row is None:
        return None
    for sql in (_CUT_HEADS, _CUT_ROWS):
        tx.run(sql, (source, life[0], end))
    cut = ReplicaPosition(life[0], end, row[0])
    advance_replica(tx, source, place, cut)
    return cut


# -- storing and serving


def save_incarnations(tx: Tx, lives: IncarnationsFrame) -> None:
    """The source says so itself. What was read behind its last fork was of another line."""
    kept = find_replica(tx, lives.source)
    if (
        kept is not None
        and kept.incarnations is not None
        and kept.incarnations.incarnations != lives.incarnations
    ):
        tx.run(_FORKED, (lives.incarnations[-1][1] - 1, lives.source))
    tx.run("UPDATE relayed SET lives = ? WHERE source = ?", (encode_frame(lives), lives.source))
    names = msgspec.json.encode([life for life, _ in lives.incarnations]).decode()
    for table in ("replica", "replica_head"):
        tx.run(_OTHER_LIVES.format(table), (lives.source, names))


def advance_replica(tx: Tx, source: str, before: ReplicaPosition, now: ReplicaPosition) -> bool:
    """Move from one place to the next, unless the replica was started again in between."""
    tx.run(
        _REACHED,
        (now.incarnation, now.seq, now.chain, source, before.incarnation, before.seq, before.chain),
    )
    return bool(tx.changes())


def store_rows(
    tx: Tx, source: str, life: str, rows: Sequence[ReplicaRow], groups: Sequence[CommitGroup]
) -> None:
    """Rows that no group covers yet are served to nobody, and may be written again."""
    tx.many(_ROW, [(source, life, *row) for row in rows])
    tx.many(
        _HEAD,
        [
            (source, life, each.last, each.first, each.previous, each.chain, each.signature, tx.now)
            for each in groups
        ],
    )


def read_excerpt(
    tx: Tx, source: str, reader: str, lives: Sequence[Incarnation], position: int
) -> ReplicaExcerpt | None:
    """What comes after `position` for a reader, with proof; None if that is not kept any more."""
    life, end = next_stretch(lives, position)
    kept = find_replica(tx, source)
    if kept is None or position < kept.start:
        return None
    reach = kept.position.seq
    rows = tx.rows(_FOR, (reader, source, life[0], position, min(end, reach)))
    events: list[bytes] = []
    groups: list[CommitGroup] = []
    size, last = 0, position
    for seq, body in rows:
        group = None if groups and seq <= groups[-1].last else _read_group(tx, source, life[0], seq)
        size += len(body) + (len(group.digests) if group else 0)
        if events and size > FRAME_BYTES:
            return ReplicaExcerpt(life, last, False, last, events, groups)
        groups += [group] if group else []
        events.append(body)
        last = seq
    upto = last if len(rows) == FRAME_EVENTS else max(position, min(end, reach))
    return ReplicaExcerpt(life, upto, upto >= reach, last, events, groups)


def _read_group(tx: Tx, source: str, life: str, seq: int) -> CommitGroup:
    ((first, last, previous, chain, signature),) = tx.rows(_GROUP, (source, life, seq))
    digests = b"".join(row[0] for row in tx.rows(_DIGESTS, (source, life, first, last)))
    return CommitGroup(first, last, previous, chain, signature, digests)


# -- forgetting


def prune_replicas(tx: Tx, moved: Mapping[tuple[str, str], ReaderProgress], keep: int) -> set[str]:
    """Forget what all its readers have taken, or what is older than `keep` ms.

    `moved` is where the readers are that are connected now. Returns the sources that nobody reads
    any more.
    """
    for (source, reader), at in moved.items():
        positions = msgspec.msgpack.encode(at.positions)
        tx.run(_MOVED, (positions, at.through, tx.now, source, reader))
    tx.run(_GONE_READERS, (tx.now - keep,))
    unwanted = {row[0] for row in tx.rows(_UNWANTED)}
    for source in unwanted:
        _delete_rows(tx, source)
        tx.run(_DROP.format("relayed"), (source,))
    for source in replicated_sources(tx):
        _prune_source(tx, source, tx.now - keep)
    return unwanted


def _prune_source(tx: Tx, source: str, before: int) -> None:
    kept = find_replica(tx, source)
    if kept is None or kept.incarnations is None:
        return
    lives = kept.incarnations.incarnations
    floor = _lowest_needed(tx, source, lives) or 0
    for life in lives:
        row = tx.one(_OLDEST, (source, life[0], min(floor, last_seq_of(lives, life)), before))
        if row is not None:
            tx.run(_PRUNE_HEADS, (source, life[0], row[0]))
            tx.run(_PRUNE_ROWS, (source, life[0], row[0]))
            tx.run(_STARTS, (row[0], source))


def _delete_rows(tx: Tx, source: str) -> None:
    for table in ("replica", "replica_head"):
        tx.run(_DROP.format(table), (source,))
