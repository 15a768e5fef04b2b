"""Sealing: committed ranges of the outbox become segments, and only then may the outbox forget.

A segment is written first and listed second, each whole or not at all. Whatever a crash leaves
behind is not in the manifest, so it does not exist, and the next start removes it.

A quiet outbox makes many small segments. Neighbours among them are merged: the same events, chains
and signatures in one file, which takes their place in the manifest.
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
from gatepost.events import NodeKey, event_digest, extend, genesis
from gatepost.journal import Tx

# Sealed bodies can be large: a segment ends early rather than fill the memory.
MAX_BYTES: Final = 256 * 1024 * 1024

_LIVES = "SELECT id, first_seq FROM incarnation ORDER BY first_seq"
# The latest head stays when its rows are pruned.
_HEADS = """
SELECT first_seq, last_seq, chain, signature, signed_at FROM head
WHERE last_seq > ? AND last_seq < ? AND first_seq >= (SELECT min(seq) FROM outbox)
ORDER BY last_seq
"""
_ROWS = """
SELECT seq, event_id, ref_id, body, digest FROM outbox WHERE seq BETWEEN ? AND ? ORDER BY seq
"""
_END = 1 << 62
# So many small neighbours are worth a merge. Small is what leaves room for as many in one segment:
# so an event is written again only when its segment grew eightfold, or nearly so.
_NEIGHBOURS: Final = 8
# What was replaced stays for readers that planned with it; in ms.
_GRACE: Final = 3_600_000
# A segment, or what is left of one, or of a manifest, that was not finished.
_SEGMENT = re.compile(
    r"/\.(?P<temporary>[^/]+)\.tmp$|/(?P<first>\d{20})-(?P<last>\d{20})(\.[^/]+)?\.parquet$"
)

# The highest seq that may go as far as somebody is concerned; None if they do not mind.
Bound = Callable[[Tx], int | None]


class Life(Struct, frozen=True):
    """One incarnation of the journal: the seqs from `first` up to, but without, `end`."""

    id: str
    first: int
    end: int


class Policy(Struct, frozen=True):
    """When a segment is due: at so many rows, or when its oldest event is that old."""

    max_rows: int
    max_age: int
    bodies: bool


class Planned(Struct):
    """The groups of the next segment."""

    life: Life
    groups: list[Group]
    due: bool


def lives(tx: Tx, current: str) -> list[Life]:
    """The incarnations whose events are in this journal, oldest first."""
    known = [(str(id), int(first)) for id, first in tx.rows(_LIVES)]
    if current not in dict(known):
        known.append((current, known[-1][1] if known else 1))
    ends = [*(first for _, first in known[1:]), _END]
    return [Life(id, first, end) for (id, first), end in zip(known, ends, strict=True)]


def sealed_through(listed: Manifest, known: list[Life]) -> int:
    """Up to which seq of this journal everything is sealed.

    A restored journal may be older than its archive: what another life sealed beyond the moment of
    the backup says nothing about the seqs this life gives out anew.
    """
    through = known[0].first - 1
    for life in known:
        last = max((s.last for s in listed.segments if s.incarnation == life.id), default=0)
        if last:
            through = min(last, life.end - 1)
    return through


class Archive:
    """One gateway's part of the archive, and the only one who writes it."""

    def __init__(
        self, store: Store, node: str, incarnation: str, key: NodeKey, policy: Policy
    ) -> None:
        self.store = store
        self._node = node
        self._incarnation = incarnation
        self._key = key
        self._policy = policy
        self._listed: Manifest | None = None
        # What was merged into other segments, and when.
        self._replaced: list[tuple[int, str]] = []

    def listed(self, tx: Tx) -> Manifest:
        """What is sealed, as the store has it. The first look removes what a crash left."""
        if self._listed is None:
            listed = self._open()
            self._sweep(tx, listed)
            self._listed = listed
        return self._listed

    def sealed_through(self, tx: Tx) -> int:
        return sealed_through(self.listed(tx), lives(tx, self._incarnation))

    def seal(self, tx: Tx) -> Segment | None:
        """Seal the next segment if one is due. Again and again, until there is none."""
        listed = self.listed(tx)
        planned = self._plan(tx, listed)
        if planned is None or not planned.due:
            return None
        # If anything fails from here on, only the store knows how far it came.
        self._listed = None
        segment = self._write(tx, listed, planned)
        grown = manifest.extended(listed, segment, planned.life.first)
        grown = manifest.sign(grown, self._key)
        manifest.write(self.store, grown)
        self._listed = grown
        return segment

    def compact(self, tx: Tx) -> Segment | None:
        """Merge one run of small segments if there is one. Again and again, until there is none."""
        self._forget(tx.now)
        listed = self.listed(tx)
        parts = next(_small_runs(listed, self._policy.max_rows), None)
        if parts is None:
            return None
        events = pa.concat_tables(self._read(part) for part in parts)
        self._listed = None
        content = segments.to_parquet(events)
        whole = segments.describe(events, content, parts[0].first, parts[-1].last, tx.now)
        whole = self._store_segment(listed, whole, content)
        merged = manifest.sign(manifest.merged(listed, parts, whole), self._key)
        manifest.write(self.store, merged)
        self._listed = merged
        self._replaced += [(tx.now, part.path) for part in parts]
        return whole

    def _forget(self, now: int) -> None:
        """Remove what was replaced long enough ago."""
        while self._replaced and self._replaced[0][0] <= now - _GRACE:
            self.store.delete(f"{manifest.folder_of(self._node)}/{self._replaced[0][1]}")
            del self._replaced[0]

    def _read(self, segment: Segment) -> pa.Table:
        """The events of a segment, if they are still those that were sealed."""
        name = f"{manifest.folder_of(self._node)}/{segment.path}"
        content = self.store.read(name)
        if content is None or manifest.digest(content) != segment.sha256:
            where = self.store.path(name)
            raise ArchiveError(f"{where} is not what was sealed; restore it from a copy")
        return pq.read_table(pa.BufferReader(content))

    def _open(self) -> Manifest:
        listed = manifest.read(self.store, self._node)
        if listed is None:
            return Manifest(node=self._node, public_key=self._key.public)
        if listed.public_key != self._key.public or not manifest.is_signed(listed):
            where = self.store.path(manifest.name_of(self._node))
            raise ArchiveError(
                f"{where} was not signed by this node; restore it from a copy,"
                " or set archive.uri to an empty folder"
            )
        return listed

    def _sweep(self, tx: Tx, listed: Manifest) -> None:
        """Remove what is not in the manifest, provided that its events are elsewhere."""
        folder = manifest.folder_of(self._node)
        known = {f"{folder}/{segment.path}" for segment in listed.segments}
        for name in self.store.files(folder):
            leftover = _SEGMENT.search(name)
            if name in known or leftover is None:
                continue
            if leftover["temporary"] is None and not (
                _holds(tx, int(leftover["first"])) or self._is_copy(listed, name)
            ):
                raise ArchiveError(
                    f"{self.store.path(name)} is not in the manifest, and its events are no"
                    " longer in the journal; restore _manifest.json from a copy"
                )
            self.store.delete(name)

    def _is_copy(self, listed: Manifest, name: str) -> bool:
        """Whether all events of a file are in listed ones: it was merged, or was to be."""
        try:
            events = pq.read_table(
                pa.BufferReader(self.store.read(name) or b""), columns=["incarnation", "seq"]
            )
        except (pa.ArrowException, OSError, KeyError):
            return False
        if not events.num_rows:
            return False
        life = events.column("incarnation")[0].as_py()
        there = [(s.first, s.last) for s in listed.segments if s.incarnation == life]
        first, last = (int(events.column("seq")[place].as_py()) for place in (0, -1))
        found = sum(max(0, min(end, last) - max(begin, first) + 1) for begin, end in there)
        return found == last - first + 1

    def _plan(self, tx: Tx, listed: Manifest) -> Planned | None:
        """The longest run of whole groups of one life and one date, as far as it may grow."""
        known = lives(tx, self._incarnation)
        after = sealed_through(listed, known)
        life = next(life for life in known if life.end > after + 1)
        groups: list[Group] = []
        began = 0
        for first, last, chain, signature, at in tx.each(_HEADS, (after, life.end)):
            full = bool(groups) and last - groups[0].first + 1 > self._policy.max_rows
            if full or (groups and segments.day(at) != segments.day(began)):
                _check_start(listed, life, after, groups[0].first)
                return Planned(life, groups, due=True)
            began = began or at
            groups.append(Group(first, last, chain, signature))
        if not groups:
            return None
        _check_start(listed, life, after, groups[0].first)
        rows = groups[-1].last - groups[0].first + 1
        old = tx.now - began >= self._policy.max_age
        return Planned(life, groups, due=old or rows >= self._policy.max_rows)

    def _write(self, tx: Tx, listed: Manifest, planned: Planned) -> Segment:
        life = planned.life
        rows, groups = _rows(tx, planned.groups)
        first, last = groups[0].first, groups[-1].last
        _check(rows, groups, self._chain(listed, life, first))
        events = segments.table(life.id, rows, groups, self._policy.bodies)
        content = segments.to_parquet(events)
        segment = segments.describe(events, content, first, last, tx.now)
        return self._store_segment(listed, segment, content)

    def _store_segment(self, listed: Manifest, segment: Segment, content: pa.Buffer) -> Segment:
        taken = {known.path for known in listed.segments} | {path for _, path in self._replaced}
        if segment.path in taken:
            # A restored journal gives out the same seqs again, on the same day perhaps.
            path = segment.path.replace(".parquet", f".{segment.incarnation}.parquet")
            segment = replace(segment, path=path)
        self.store.write(f"{manifest.folder_of(self._node)}/{segment.path}", content)
        return segment

    def _chain(self, listed: Manifest, life: Life, first: int) -> bytes | None:
        """The chain before `first`; None if what lies before it was pruned unsealed."""
        if first == life.first:
            return genesis(self._node, life.id)
        chains = {s.last + 1: s.chain for s in listed.segments if s.incarnation == life.id}
        return bytes.fromhex(chains[first]) if first in chains else None


def _small_runs(listed: Manifest, max_rows: int) -> Iterator[list[Segment]]:
    """Neighbours of one life and one date that are small, as many as fit into one segment."""
    run: list[Segment] = []
    for segment in listed.segments:
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
    """Whether the journal still has this event and all behind it."""
    row = tx.one("SELECT min(seq) FROM outbox")
    return row is not None and row[0] is not None and int(row[0]) <= seq


def _check_start(listed: Manifest, life: Life, after: int, first: int) -> None:
    """A new archive may begin where the journal does; an old one must not miss anything."""
    if first != after + 1 and any(s.incarnation == life.id for s in listed.segments):
        raise ArchiveError(
            f"the archive ends at seq {after}, but the journal begins at seq {first}:"
            " restore the archive, or set archive.uri to an empty folder"
        )


def _rows(tx: Tx, groups: list[Group]) -> tuple[list[Row], list[Group]]:
    """The rows of as many groups as the memory is for, at least one."""
    rows: list[Row] = []
    size, ends = 0, {group.last: place for place, group in enumerate(groups, 1)}
    found: Iterator[Row] = tx.each(_ROWS, (groups[0].first, groups[-1].last))
    for row in found:
        rows.append(row)
        size += len(row[3])
        if size >= MAX_BYTES and row[0] in ends:
            return rows, groups[: ends[row[0]]]
    return rows, groups


def _check(rows: list[Row], groups: list[Group], chain: bytes | None) -> None:
    """What is sealed is for ever, so it had better be right."""
    first, last = groups[0].first, groups[-1].last
    span = f"the outbox, seq {first} to {last}"
    if [row[0] for row in rows] != list(range(first, last + 1)):
        raise ChainError(f"{span}: events are missing; restore the journal from a backup")
    if any(event_digest(row[3]) != row[4] for row in rows):
        raise ChainError(f"{span}: an event was changed; restore the journal from a backup")
    if chain is not None and extend(chain, (row[4] for row in rows)) != groups[-1].chain:
        raise ChainError(f"{span}: it does not continue what was sealed before")


def prune(tx: Tx, through: int, *, read: Bound, settled: Bound, limit: int) -> int:
    """Forget outbox rows nobody needs; returns how many. Again and again, until it is 0.

    They must be sealed (`through`), read by every active subscriber, and of no open delivery.
    Commit groups go whole, with their heads; the latest head stays, for the chain goes on from it.
    """
    bounds = [bound for bound in (read(tx), settled(tx)) if bound is not None]
    row = tx.one("SELECT min(seq) FROM outbox")
    if row is None or row[0] is None:
        return 0
    last = _last_group(tx, row[0], min([through, *bounds]), limit)
    if last is None:
        return 0
    tx.run("DELETE FROM outbox WHERE seq <= ?", (last,))
    gone = tx.changes()
    tx.run(
        "DELETE FROM head WHERE last_seq <= ? AND last_seq < (SELECT max(last_seq) FROM head)",
        (last,),
    )
    return gone


def _last_group(tx: Tx, first: int, through: int, limit: int) -> int | None:
    """Where the last group ends that may go now: about `limit` rows, but at least one group."""
    query = "SELECT {} FROM head WHERE last_seq >= ? AND last_seq <= ?"
    some = tx.one(query.format("max(last_seq)"), (first, min(through, first + limit - 1)))
    if some and some[0] is not None:
        return int(some[0])
    one = tx.one(query.format("min(last_seq)"), (first, through))
    return int(one[0]) if one and one[0] is not None else None
