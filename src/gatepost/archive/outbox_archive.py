"""Archiving of the outbox: committed ranges become segments, and archived rows may be pruned.

The segment file is written first, then the manifest that lists it, each atomically. A file left by
a crash is not in the manifest, so it is not part of the archive, and the next start deletes it.

A quiet outbox produces many small segments. Adjacent small segments are merged: one file with the
same events, chains and signatures replaces them in the manifest.
"""

import re
from collections.abc import Iterator
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct
from msgspec.structs import replace

from gatepost.archive import manifest, segment_encoding
from gatepost.archive.archive_store import ArchiveStore
from gatepost.archive.manifest import ArchiveManifest, ArchiveSegment
from gatepost.archive.segment_encoding import OutboxRow, SignedGroup
from gatepost.errors import ArchiveError, ChainError
from gatepost.events import NodeKey, event_digest, extend_chain, genesis_chain
from gatepost.journal import Tx, outbox_reads
from gatepost.journal.incarnations import load_incarnations

# Event bodies can be large: a segment ends early rather than exhaust the memory.
MAX_SEGMENT_BYTES: Final = 256 * 1024 * 1024

_NO_END = 1 << 62
# This many adjacent small segments are worth a merge. A segment is small if this many of its size
# fit into one segment. An event is thus rewritten only when its segment grows about eightfold.
_MERGE_COUNT: Final = 8
# Replaced files stay this long for readers that already listed them; in ms.
_REPLACED_GRACE_MS: Final = 3_600_000
# A segment file, or the temporary file of an unfinished segment or manifest.
_SEGMENT_FILE = re.compile(
    r"/\.(?P<temporary>[^/]+)\.tmp$|/(?P<first>\d{20})-(?P<last>\d{20})(\.[^/]+)?\.parquet$"
)

# The highest seq that one consumer of the outbox allows to prune; None if it sets no limit.


class JournalIncarnation(Struct, frozen=True):
    """One incarnation of the journal: the seqs from `first` up to, but excluding, `end`."""

    id: str
    first: int
    end: int


class ArchivePolicy(Struct, frozen=True):
    """A segment is due at `max_rows` rows, or when its oldest event is `max_age` ms old."""

    max_rows: int
    max_age: int
    bodies: bool


class PlannedSegment(Struct):
    """The commit groups of the next segment, and whether it is due."""

    incarnation: JournalIncarnation
    groups: list[SignedGroup]
    due: bool


def journal_incarnations(tx: Tx, current: str) -> list[JournalIncarnation]:
    """The incarnations whose events are in this journal, oldest first."""
    known = load_incarnations(tx)
    if current not in dict(known):
        known.append((current, known[-1][1] if known else 1))
    ends = [*(first for _, first in known[1:]), _NO_END]
    return [
        JournalIncarnation(id, first, end) for (id, first), end in zip(known, ends, strict=True)
    ]


def find_archived_through(current: ArchiveManifest, known: list[JournalIncarnation]) -> int:
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


class OutboxArchive:
    """One gateway's part of the archive. Only this gateway writes it."""

    def __init__(
        self, store: ArchiveStore, node: str, incarnation: str, key: NodeKey, policy: ArchivePolicy
    ) -> None:
        self.store = store
        self._node = node
        self._incarnation = incarnation
        self._key = key
        self._policy = policy
        self._manifest: ArchiveManifest | None = None
        # (time of the merge, path) of each merged segment file.
        self._replaced: list[tuple[int, str]] = []

    def load_manifest(self, tx: Tx) -> ArchiveManifest:
        """The manifest in the store. The first call also deletes files left by a crash."""
        if self._manifest is None:
            current = self._open_manifest()
            self._delete_leftovers(tx, current)
            self._manifest = current
        return self._manifest

    def archived_through(self, tx: Tx) -> int:
        return find_archived_through(
            self.load_manifest(tx), journal_incarnations(tx, self._incarnation)
        )

    def archive_segment(self, tx: Tx) -> ArchiveSegment | None:
        """Archive the next segment if one is due. Call it until it returns None."""
        current = self.load_manifest(tx)
        planned = self._plan_segment(tx, current)
        if planned is None or not planned.due:
            return None
        # If a later step fails, the manifest must be read again from the store.
        self._manifest = None
        segment = self._write_segment(tx, current, planned)
        grown = manifest.append_segment(current, segment, planned.incarnation.first)
        grown = manifest.sign_manifest(grown, self._key)
        manifest.write_manifest(self.store, grown)
        self._manifest = grown
        return segment

    def merge_small_segments(self, tx: Tx) -> ArchiveSegment | None:
        """Merge one run of small segments if there is one. Call it until it returns None."""
        self._delete_replaced(tx.now)
        current = self.load_manifest(tx)
        parts = next(_small_runs(current, self._policy.max_rows), None)
        if parts is None:
            return None
        events = pa.concat_tables(self._read_segment(part) for part in parts)
        self._manifest = None
        content = segment_encoding.encode_parquet(events)
        whole = segment_encoding.describe_segment(
            events, content, parts[0].first, parts[-1].last, tx.now
        )
        whole = self._store_segment(current, whole, content)
        merged = manifest.sign_manifest(manifest.replace_segments(current, parts, whole), self._key)
        manifest.write_manifest(self.store, merged)
        self._manifest = merged
        self._replaced += [(tx.now, part.path) for part in parts]
        return whole

    def _delete_replaced(self, now: int) -> None:
        """Delete the files replaced longer ago than the grace period."""
        while self._replaced and self._replaced[0][0] <= now - _REPLACED_GRACE_MS:
            self.store.delete_file(f"{manifest.node_folder(self._node)}/{self._replaced[0][1]}")
            del self._replaced[0]

    def _read_segment(self, segment: ArchiveSegment) -> pa.Table:
        """Read the events of a segment; raise ArchiveError if the file has changed."""
        content = manifest.read_verified_segment(self.store, self._node, segment)
        return pq.read_table(pa.BufferReader(content))

    def _open_manifest(self) -> ArchiveManifest:
        current = manifest.read_manifest(self.store, self._node)
        if current is None:
            return ArchiveManifest(node=self._node, public_key=self._key.public)
        if current.public_key != self._key.public or not manifest.is_manifest_signed(current):
            where = self.store.full_path(manifest.manifest_path(self._node))
            raise ArchiveError(
                f"{where} was not signed by this node; restore it from a copy,"
                " or set archive.uri to an empty folder"
            )
        return current

    def _delete_leftovers(self, tx: Tx, current: ArchiveManifest) -> None:
        """Delete files that the manifest does not list, if their events exist elsewhere."""
        folder = manifest.node_folder(self._node)
        known = {f"{folder}/{segment.path}" for segment in current.segments}
        for name in self.store.list_files(folder):
            leftover = _SEGMENT_FILE.search(name)
            if name in known or leftover is None:
                continue
            if leftover["temporary"] is None and not (
                _journal_holds(tx, int(leftover["first"])) or self._is_copy_of_listed(current, name)
            ):
                raise ArchiveError(
                    f"{self.store.full_path(name)} is not in the manifest, and its events are no"
                    " longer in the journal; restore _manifest.json from a copy"
                )
            self.store.delete_file(name)

    def _is_copy_of_listed(self, current: ArchiveManifest, name: str) -> bool:
        """Whether listed segments hold all events of a file: a merge was made or interrupted."""
        try:
            events = pq.read_table(
                pa.BufferReader(self.store.read_file(name) or b""), columns=["incarnation", "seq"]
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

    def _plan_segment(self, tx: Tx, current: ArchiveManifest) -> PlannedSegment | None:
        """Plan the longest run of whole commit groups of one incarnation and one date."""
        known = journal_incarnations(tx, self._incarnation)
        after = find_archived_through(current, known)
        incarnation = next(incarnation for incarnation in known if incarnation.end > after + 1)
        groups: list[SignedGroup] = []
        began = 0
        for first, last, chain, signature, at in outbox_reads.signed_groups(
            tx, after, incarnation.end
        ):
            full = bool(groups) and last - groups[0].first + 1 > self._policy.max_rows
            if full or (
                groups and segment_encoding.utc_date(at) != segment_encoding.utc_date(began)
            ):
                _check_no_gap(current, incarnation, after, groups[0].first)
                return PlannedSegment(incarnation, groups, due=True)
            began = began or at
            groups.append(SignedGroup(first, last, chain, signature))
        if not groups:
            return None
        _check_no_gap(current, incarnation, after, groups[0].first)
        rows = groups[-1].last - groups[0].first + 1
        old = tx.now - began >= self._policy.max_age
        return PlannedSegment(incarnation, groups, due=old or rows >= self._policy.max_rows)

    def _write_segment(
        self, tx: Tx, current: ArchiveManifest, planned: PlannedSegment
    ) -> ArchiveSegment:
        incarnation = planned.incarnation
        rows, groups = _load_rows(tx, planned.groups)
        first, last = groups[0].first, groups[-1].last
        _check_rows(rows, groups, self._chain_before(current, incarnation, first))
        events = segment_encoding.events_table(incarnation.id, rows, groups, self._policy.bodies)
        content = segment_encoding.encode_parquet(events)
        segment = segment_encoding.describe_segment(events, content, first, last, tx.now)
        return self._store_segment(current, segment, content)

    def _store_segment(
        self, current: ArchiveManifest, segment: ArchiveSegment, content: pa.Buffer
    ) -> ArchiveSegment:
        taken = {known.path for known in current.segments} | {path for _, path in self._replaced}
        if segment.path in taken:
            # A restored journal assigns the same seqs again, perhaps on the same day.
            path = segment.path.replace(".parquet", f".{segment.incarnation}.parquet")
            segment = replace(segment, path=path)
        self.store.write_file(f"{manifest.node_folder(self._node)}/{segment.path}", content)
        return segment

    def _chain_before(
        self, current: ArchiveManifest, incarnation: JournalIncarnation, first: int
    ) -> bytes | None:
        """The chain before `first`; None if the events before it were pruned without archiving."""
        if first == incarnation.first:
            return genesis_chain(self._node, incarnation.id)
        chains = {s.last + 1: s.chain for s in current.segments if s.incarnation == incarnation.id}
        return bytes.fromhex(chains[first]) if first in chains else None


def _small_runs(current: ArchiveManifest, max_rows: int) -> Iterator[list[ArchiveSegment]]:
    """Runs of adjacent small segments of one incarnation and date that fit into one segment."""
    run: list[ArchiveSegment] = []
    for segment in current.segments:
        if run and not _fits_run(run, segment, max_rows):
            if len(run) >= _MERGE_COUNT:
                yield run
            run = []
        if segment.rows <= max_rows // _MERGE_COUNT:
            run.append(segment)
    if len(run) >= _MERGE_COUNT:
        yield run


def _fits_run(run: list[ArchiveSegment], segment: ArchiveSegment, max_rows: int) -> bool:
    last, rows = run[-1], sum(part.rows for part in run) + segment.rows
    size = sum(part.bytes for part in run) + segment.bytes
    return (
        segment.incarnation == last.incarnation
        and segment.first == last.last + 1
        and segment.path.partition("/")[0] == last.path.partition("/")[0]
        and segment.rows <= max_rows // _MERGE_COUNT
        and rows <= max_rows
        and size <= MAX_SEGMENT_BYTES
    )


def _journal_holds(tx: Tx, seq: int) -> bool:
    """Whether the journal still has this event and all later ones."""
    oldest = outbox_reads.oldest_seq(tx)
    return oldest is not None and oldest <= seq


def _check_no_gap(
    current: ArchiveManifest, incarnation: JournalIncarnation, after: int, first: int
) -> None:
    """Raise if events are missing after the last segment. A new archive may start anywhere."""
    if first != after + 1 and any(s.incarnation == incarnation.id for s in current.segments):
        raise ArchiveError(
            f"the archive ends at seq {after}, but the journal begins at seq {first}:"
            " restore the archive, or set archive.uri to an empty folder"
        )


def _load_rows(tx: Tx, groups: list[SignedGroup]) -> tuple[list[OutboxRow], list[SignedGroup]]:
    """Load the rows of at least one group, and of more up to MAX_SEGMENT_BYTES."""
    rows: list[OutboxRow] = []
    size, ends = 0, {group.last: count for count, group in enumerate(groups, 1)}
    found: Iterator[OutboxRow] = outbox_reads.rows_between(tx, groups[0].first, groups[-1].last)
    for row in found:
        rows.append(row)
        size += len(row[3])
        if size >= MAX_SEGMENT_BYTES and row[0] in ends:
            return rows, groups[: ends[row[0]]]
    return rows, groups


def _check_rows(rows: list[OutboxRow], groups: list[SignedGroup], chain: bytes | None) -> None:
    """Verify seqs, digests and chain before archiving. An archived segment is permanent."""
    first, last = groups[0].first, groups[-1].last
    span = f"the outbox, seq {first} to {last}"
    if [row[0] for row in rows] != list(range(first, last + 1)):
        raise ChainError(f"{span}: events are missing; restore the journal from a backup")
    if any(event_digest(row[3]) != row[4] for row in rows):
        raise ChainError(f"{span}: an event was changed; restore the journal from a backup")
    if chain is not None and extend_chain(chain, (row[4] for row in rows)) != groups[-1].chain:
        raise ChainError(f"{span}: it does not continue the archived chain")
