"""Archiving of the outbox: committed ranges become segments, and archived rows may be pruned.

The segment file is written first, then the manifest that lists it, each atomically. A file left by
a crash is not in the manifest, so it is not part of the archive, and the next start deletes it.

A quiet outbox produces many small segments. Adjacent small segments are merged: one file with the
same events, chains and signatures replaces them in the manifest.
"""

import re
from collections.abc import Callable, Iterator
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct
from msgspec.structs import replace

from gatepost.archive import manifest, segments
from gatepost.archive.manifest import Manifest, Segment
from gatepost.archive.segments import Group, Row
from gatepost.archive.store import Store
from gatepost.errors import ArchiveError, ChainError
from gatepost.events import NodeKey, event_digest, extend_chain, genesis_chain
from gatepost.journal import Tx

# Event bodies can be large: a segment ends early rather than exhaust the memory.
MAX_BYTES: Final = 256 * 1024 * 1024

_LIVES = "SELECT id, first_seq FROM incarnation ORDER BY first_seq"
# The latest head stays when its rows are pruned, so heads without rows are left out.
_HEADS = """
SELECT first_seq, last_seq, chain, signature, signed_at FROM head
WHERE last_seq > ? AND last_seq < ? AND first_seq >= (SELECT min(seq) FROM outbox)
ORDER BY last_seq
"""
_ROWS = """
SELECT seq, event_id, ref_id, body, digest FROM outbox WHERE seq BETWEEN ? AND ? ORDER BY seq
"""
_END = 1 << 62
# This many adjacent small segments are worth a merge. A segment is small if this many of its size
# fit into one segment. An event is thus rewritten only when its segment grows about eightfold.
_NEIGHBOURS: Final = 8
# Replaced files stay this long for readers that already listed them; in ms.
_GRACE: Final = 3_600_000
# A segment file, or the temporary file of an unfinished segment or manifest.
_SEGMENT = re.compile(
    r"/\.(?P<temporary>[^/]+)\.tmp$|/(?P<first>\d{20})-(?P<last>\d{20})(\.[^/]+)?\.parquet$"
)

# The highest seq that one consumer of the outbox allows to prune; None if it sets no limit.
Bound = Callable[[Tx], int | None]


class Life(Struct, frozen=True):
    """One incarnation of the journal: the seqs from `first` up to, but excluding, `end`."""

    id: str
    first: int
    end: int


class Policy(Struct, frozen=True):
    """A segment is due at `max_rows` rows, or when its oldest event is `max_age` ms old."""

    max_rows: int
    max_age: int
    bodies: bool


class Planned(Struct):
    """The commit groups of the next segment, and whether it is due."""

    life: Life
    groups: list[Group]
    due: bool


def lives(tx: Tx, current: str) -> list[Life]:
    """The incarnations whose events are in this journal, oldest first."""
    known = [(str(id), int(first)) for id, first in tx.fetch_all(_LIVES)]
    if current not in dict(known):
        known.append((current, known[-1][1] if known else 1))
    ends = [*(first for _, first in known[1:]), _END]
    return [Life(id, first, end) for (id, first), end in zip(known, ends, strict=True)]


def sealed_through(current: Manifest, known: list[Life]) -> int:
    """The seq of this journal up to which all events are archived.

    A restored journal may be older than its archive. Segments that another incarnation archived
    after the backup do not cover the seqs that this incarnation assigns again.
    """
    through = known[0].first - 1
    for incarnation in known:
        last = max((s.last for s in current.segments if s.incarnation == incarnation.id), default=0)
        if last:
            through = min(last, incarnation.end - 1)
    return through


class Archive:
    """One gateway's part of the archive. Only this gateway writes it."""

    def __init__(
        self, store: Store, node: str, incarnation: str, key: NodeKey, policy: Policy
    ) -> None:
        self.store = store
        self._node = node
        self._incarnation = incarnation
        self._key = key
        self._policy = policy
        self._listed: Manifest | None = None
        # (time of the merge, path) of each merged segment file.
        self._replaced: list[tuple[int, str]] = []

    def listed(self, tx: Tx) -> Manifest:
        """The manifest in the store. The first call also deletes files left by a crash."""
        if self._listed is None:
            current = self._open()
            self._sweep(tx, current)
            self._listed = current
        return self._listed

    def sealed_through(self, tx: Tx) -> int:
        return sealed_through(self.listed(tx), lives(tx, self._incarnation))

    def seal(self, tx: Tx) -> Segment | None:
        """Archive the next segment if one is due. Call it until it returns None."""
        current = self.listed(tx)
        planned = self._plan(tx, current)
        if planned is None or not planned.due:
            return None
        # If a step fails from here on, the manifest has to be read again from the store.
        self._listed = None
        segment = self._write(tx, current, planned)
        grown = manifest.extended(current, segment, planned.life.first)
        grown = manifest.sign(grown, self._key)
        manifest.write(self.store, grown)
        self._listed = grown
        return segment

    def compact(self, tx: Tx) -> Segment | None:
        """Merge one run of small segments if there is one. Call it until it returns None."""
        self._forget(tx.now)
        current = self.listed(tx)
        parts = next(_small_runs(current, self._policy.max_rows), None)
        if parts is None:
            return None
        events = pa.concat_tables(self._read(part) for part in parts)
        self._listed = None
        content = segments.to_parquet(events)
        whole = segments.describe(events, content, parts[0].first, parts[-1].last, tx.now)
        whole = self._store_segment(current, whole, content)
        merged = manifest.sign(manifest.merged(current, parts, whole), self._key)
        manifest.write(self.store, merged)
        self._listed = merged
        self._replaced += [(tx.now, part.path) for part in parts]
        return whole

    def _forget(self, now: int) -> None:
        """Delete the files replaced longer ago than the grace period."""
        while self._replaced and self._replaced[0][0] <= now - _GRACE:
            self.store.delete(f"{manifest.folder_of(self._node)}/{self._replaced[0][1]}")
            del self._replaced[0]

    def _read(self, segment: Segment) -> pa.Table:
        """Read the events of a segment; raise ArchiveError if the file has changed."""
        name = f"{manifest.folder_of(self._node)}/{segment.path}"
        content = self.store.read(name)
        if content is None or manifest.digest(content) != segment.sha256:
            where = self.store.path(name)
            raise ArchiveError(f"{where} is not the file that was archived; restore it from a copy")
        return pq.read_table(pa.BufferReader(content))

    def _open(self) -> Manifest:
        current = manifest.read(self.store, self._node)
        if current is None:
            return Manifest(node=self._node, public_key=self._key.public)
        if current.public_key != self._key.public or not manifest.is_signed(current):
            where = self.store.path(manifest.name_of(self._node))
            raise ArchiveError(
                f"{where} was not signed by this node; restore it from a copy,"
                " or set archive.uri to an empty folder"
            )
        return current

    def _sweep(self, tx: Tx, current: Manifest) -> None:
        """Delete files that the manifest does not list, if their events exist elsewhere."""
        folder = manifest.folder_of(self._node)
        known = {f"{folder}/{segment.path}" for segment in current.segments}
        for name in self.store.files(folder):
            leftover = _SEGMENT.search(name)
            if name in known or leftover is None:
                continue
            if leftover["temporary"] is None and not (
                _holds(tx, int(leftover["first"])) or self._is_copy(current, name)
            ):
                raise ArchiveError(
                    f"{self.store.path(name)} is not in the manifest, and its events are no"
                    " longer in the journal; restore _manifest.json from a copy"
                )
            self.store.delete(name)

    def _is_copy(self, current: Manifest, name: str) -> bool:
        """Whether listed segments hold all events of a file: a merge was made or interrupted."""
        try:
            events = pq.read_table(
                pa.BufferReader(self.store.read(name) or b""), columns=["incarnation", "seq"]
            )
        except (pa.ArrowException, OSError, KeyError):
            return False
        if not events.num_rows:
            return False
        incarnation = events.column("incarnation")[0].as_py()
        spans = [(s.first, s.last) for s in current.segments if s.incarnation == incarnation]
        first, last = (int(events.column("seq")[index].as_py()) for index in (0, -1))
        found = sum(max(0, min(end, last) - max(begin, first) + 1) for begin, end in spans)
        return found == last - first + 1

    def _plan(self, tx: Tx, current: Manifest) -> Planned | None:
        """Plan the longest run of whole commit groups of one incarnation and one date."""
        known = lives(tx, self._incarnation)
        after = sealed_through(current, known)
        incarnation = next(incarnation for incarnation in known if incarnation.end > after + 1)
        groups: list[Group] = []
        began = 0
        for first, last, chain, signature, at in tx.iterate_rows(_HEADS, (after, incarnation.end)):
            full = bool(groups) and last - groups[0].first + 1 > self._policy.max_rows
            if full or (groups and segments.day(at) != segments.day(began)):
                _check_start(current, incarnation, after, groups[0].first)
                return Planned(incarnation, groups, due=True)
            began = began or at
            groups.append(Group(first, last, chain, signature))
        if not groups:
            return None
        _check_start(current, incarnation, after, groups[0].first)
        rows = groups[-1].last - groups[0].first + 1
        old = tx.now - began >= self._policy.max_age
        return Planned(incarnation, groups, due=old or rows >= self._policy.max_rows)

    def _write(self, tx: Tx, current: Manifest, planned: Planned) -> Segment:
        incarnation = planned.life
        rows, groups = _rows(tx, planned.groups)
        first, last = groups[0].first, groups[-1].last
        _check(rows, groups, self._chain(current, incarnation, first))
        events = segments.table(incarnation.id, rows, groups, self._policy.bodies)
        content = segments.to_parquet(events)
        segment = segments.describe(events, content, first, last, tx.now)
        return self._store_segment(current, segment, content)

    def _store_segment(self, current: Manifest, segment: Segment, content: pa.Buffer) -> Segment:
        taken = {known.path for known in current.segments} | {path for _, path in self._replaced}
        if segment.path in taken:
            # A restored journal assigns the same seqs again, perhaps on the same day.
            path = segment.path.replace(".parquet", f".{segment.incarnation}.parquet")
            segment = replace(segment, path=path)
        self.store.write(f"{manifest.folder_of(self._node)}/{segment.path}", content)
        return segment

    def _chain(self, current: Manifest, incarnation: Life, first: int) -> bytes | None:
        """The chain before `first`; None if the events before it were pruned without archiving."""
        if first == incarnation.first:
            return genesis_chain(self._node, incarnation.id)
        chains = {s.last + 1: s.chain for s in current.segments if s.incarnation == incarnation.id}
        return bytes.fromhex(chains[first]) if first in chains else None


def _small_runs(current: Manifest, max_rows: int) -> Iterator[list[Segment]]:
    """Runs of adjacent small segments of one incarnation and date that fit into one segment."""
    run: list[Segment] = []
    for segment in current.segments:
        if run and not _joins(run, segment, max_rows):
            if len(run) >= _NEIGHBOURS:
                yield run
            run = []
        if segment.rows <= max_rows // _NEIGHBOURS:
            run.append(segment)
    if len(run) >= _NEIGHBOURS:
        yield run


def _joins(run: list[Segment], segment: Segment, max_rows: int) -> bool:
    last, rows = run[-1], sum(part.rows for part in run) + segment.rows
    size = sum(part.bytes for part in run) + segment.bytes
    return (
        segment.incarnation == last.incarnation
        and segment.first == last.last + 1
        and segment.path.partition("/")[0] == last.path.partition("/")[0]
        and segment.rows <= max_rows // _NEIGHBOURS
        and rows <= max_rows
        and size <= MAX_BYTES
    )


def _holds(tx: Tx, seq: int) -> bool:
    """Whether the journal still has this event and all later ones."""
    row = tx.fetch_one("SELECT min(seq) FROM outbox")
    return row is not None and row[0] is not None and int(row[0]) <= seq


def _check_start(current: Manifest, incarnation: Life, after: int, first: int) -> None:
    """Raise if events are missing after the last segment. A new archive may start anywhere."""
    if first != after + 1 and any(s.incarnation == incarnation.id for s in current.segments):
        raise ArchiveError(
            f"the archive ends at seq {after}, but the journal begins at seq {first}:"
            " restore the archive, or set archive.uri to an empty folder"
        )


def _rows(tx: Tx, groups: list[Group]) -> tuple[list[Row], list[Group]]:
    """Load the rows of at least one group, and of more up to MAX_SEGMENT_BYTES."""
    rows: list[Row] = []
    size, ends = 0, {group.last: count for count, group in enumerate(groups, 1)}
    found: Iterator[Row] = tx.iterate_rows(_ROWS, (groups[0].first, groups[-1].last))
    for row in found:
        rows.append(row)
        size += len(row[3])
        if size >= MAX_BYTES and row[0] in ends:
            return rows, groups[: ends[row[0]]]
    return rows, groups


def _check(rows: list[Row], groups: list[Group], chain: bytes | None) -> None:
    """Verify seqs, digests and chain before archiving. An archived segment is permanent."""
    first, last = groups[0].first, groups[-1].last
    span = f"the outbox, seq {first} to {last}"
    if [row[0] for row in rows] != list(range(first, last + 1)):
        raise ChainError(f"{span}: events are missing; restore the journal from a backup")
    if any(event_digest(row[3]) != row[4] for row in rows):
        raise ChainError(f"{span}: an event was changed; restore the journal from a backup")
    if chain is not None and extend_chain(chain, (row[4] for row in rows)) != groups[-1].chain:
        raise ChainError(f"{span}: it does not continue the archived chain")


def prune(tx: Tx, through: int, *, read: Bound, settled: Bound, limit: int) -> int:
    """Delete outbox rows that are no longer needed; return the number. Call it until it is 0.

    The rows must be archived (up to `through`), read by every active subscriber (`read`), and not
    part of an open delivery (`settled`). Commit groups are deleted whole, with their heads. The
    latest head stays, because the chain continues from it.
    """
    bounds = [bound for bound in (read(tx), settled(tx)) if bound is not None]
    row = tx.fetch_one("SELECT min(seq) FROM outbox")
    if row is None or row[0] is None:
        return 0
    last = _last_group(tx, row[0], min([through, *bounds]), limit)
    if last is None:
        return 0
    tx.execute("DELETE FROM outbox WHERE seq <= ?", (last,))
    deleted = tx.changed_rows()
    tx.execute(
        "DELETE FROM head WHERE last_seq <= ? AND last_seq < (SELECT max(last_seq) FROM head)",
        (last,),
    )
    return deleted


def _last_group(tx: Tx, first: int, through: int, limit: int) -> int | None:
    """The end of the last group to delete now: about `limit` rows, but at least one group."""
    query = "SELECT {} FROM head WHERE last_seq >= ? AND last_seq <= ?"
    some = tx.fetch_one(query.format("max(last_seq)"), (first, min(through, first + limit - 1)))
    if some and some[0] is not None:
        return int(some[0])
    one = tx.fetch_one(query.format("min(last_seq)"), (first, through))
    return int(one[0]) if one and one[0] is not None else None
