"""Reads archived events again: for a reader that was cut off, and to trace events that were pruned.

Only segments that a signed manifest lists are read. Every call is bounded in bytes, and a search in
time too.
"""

from collections.abc import Callable, Iterator
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from gatepost.archive import manifest
from gatepost.archive.archive_store import ArchiveStore
from gatepost.archive.manifest import ArchiveManifest, ArchiveSegment
from gatepost.archive.segment_table import read_segment_table
from gatepost.errors import ArchiveError

# A page of events for one reader: some frames, and little memory.
PAGE_BYTES: Final = 8 * 1024 * 1024
# A search reads the id columns of segments of at most this size altogether.
SEARCH_BYTES: Final = 1024 * 1024 * 1024
# An event may have been committed by a clock that was set back since its id was made.
_CLOCK_SLACK_MS: Final = 3_600_000
_MAX_FOUND: Final = 200

_PAGE_COLUMNS: Final = ["seq", "to_node", "body"]
_ID_COLUMNS: Final = ["event_id", "ref_id"]
_FOUND_COLUMNS: Final = [
    *("seq", "event_id", "ref_id", "kind", "source_agent", "to_node", "to_agent", "created_at"),
    *("attempt", "corr_id", "causation_id", "status", "outcome", "reason", "signal"),
    *("route_decision", "body"),
]


class ArchivedStretch(Struct, frozen=True):
    """(seq, event) of one reader up to `upto`. `missing`: events were archived without bodies."""

    upto: int
    rows: list[tuple[int, bytes]]
    missing: bool = False


class FoundEvent(Struct, frozen=True):
    """One archived event. `body` is None if the archive keeps no bodies."""

    seq: int
    event_id: bytes
    ref_id: bytes | None
    kind: str
    source_agent: str
    to_node: str | None
    to_agent: str | None
    created_at: int
    attempt: int
    corr_id: str | None
    causation_id: bytes | None
    status: str | None
    outcome: str | None
    reason: str | None
    signal: str | None
    route_decision: str | None
    body: bytes | None


class ArchiveFindings(Struct, frozen=True):
    """Found events in the order of the outbox; `complete` if no segment was left out."""

    events: list[FoundEvent]
    complete: bool = True


class SegmentReader:
    """One node's part of an archive, for reading."""

    def __init__(self, store: ArchiveStore, node: str, public_key: bytes) -> None:
        self._store = store
        self._node = node
        self._public_key = public_key

    def read_stretch(self, incarnation: str, to: str, after: int, upto: int) -> ArchivedStretch:
        """The first events for node `to` in (after, upto] of an incarnation: a page at most."""
        missing_through = after
        for segment in self._segments_after(incarnation, after, upto):
            if segment.first > missing_through + 1:
                return ArchivedStretch(segment.first - 1, [], missing=True)
            rows = self._read_rows(segment, to, after, upto)
            if rows is None:
                missing_through = min(segment.last, upto)
                continue
            if missing_through > after:
                break
            return _first_page(rows, min(segment.last, upto))
        else:
            # No segment holds the rest.
            missing_through = upto
        return ArchivedStretch(missing_through, [], missing=True)

    def find_events(self, event_id: bytes, is_late: Callable[[], bool]) -> ArchiveFindings:
        """An event and the events that refer to it; `is_late` says when to stop the search."""
        found: list[FoundEvent] = []
        size = 0
        for segment in self._segments_near(int.from_bytes(event_id[:6], "big")):
            size += segment.bytes
            if size > SEARCH_BYTES or is_late() or len(found) >= _MAX_FOUND:
                return ArchiveFindings(_in_order(found), complete=False)
            found += self._search_segment(segment, event_id)
        return ArchiveFindings(_in_order(found))

    def _segments_after(self, incarnation: str, after: int, upto: int) -> Iterator[ArchiveSegment]:
        for segment in self._load_manifest().segments:
            if segment.incarnation == incarnation and segment.last > after:
                if segment.first > upto:
                    return
                yield segment

    def _segments_near(self, created_at: int) -> list[ArchiveSegment]:
        """Segments from the time of an event on, in their order; then earlier ones, latest first.

        What refers to an event was committed after it.
        """
        segments = self._load_manifest().segments
        later = [s for s in segments if s.max_created_at >= created_at - _CLOCK_SLACK_MS]
        earlier = [s for s in reversed(segments) if s.max_created_at < created_at - _CLOCK_SLACK_MS]
        return [*later, *earlier]

    def _load_manifest(self) -> ArchiveManifest:
        listed = manifest.read_manifest(self._store, self._node)
        if listed is None:
            return ArchiveManifest(node=self._node, public_key=self._public_key)
        if listed.public_key != self._public_key or not manifest.is_manifest_signed(listed):
            where = self._store.full_path(manifest.manifest_path(self._node))
            raise ArchiveError(f"{where} was not signed by this node; restore it from a copy")
        return listed

    def _read_rows(
        self, segment: ArchiveSegment, to: str, after: int, upto: int
    ) -> pa.Table | None:
        """The rows for a node; None if they were archived without bodies."""
        events = read_segment_table(self._read_verified(segment), _PAGE_COLUMNS, segment.path)
        seqs = events.column("seq")
        wanted = pc.and_(pc.greater(seqs, after), pc.less_equal(seqs, upto))
        rows = events.filter(pc.and_(wanted, pc.equal(events.column("to_node"), to)))
        return None if rows.column("body").null_count else rows

    def _read_verified(self, segment: ArchiveSegment) -> pa.BufferReader:
        """The content of a segment. Its events go out as ours, so it must be the listed file."""
        return pa.BufferReader(manifest.read_verified_segment(self._store, self._node, segment))

    def _search_segment(self, segment: ArchiveSegment, event_id: bytes) -> list[FoundEvent]:
        path = self._store.full_path(f"{manifest.node_folder(self._node)}/{segment.path}")
        try:
            with self._store.filesystem.open_input_file(path) as file:
                ids = read_segment_table(file, _ID_COLUMNS, segment.path)
                own, about = (pc.equal(ids.column(name), event_id) for name in _ID_COLUMNS)
                mask = pc.or_kleene(own, about).fill_null(False)
                if not pc.any(mask).as_py():
                    return []
                file.seek(0)
                rows = read_segment_table(file, _FOUND_COLUMNS, segment.path).filter(mask)
        except OSError as error:
            raise ArchiveError(f"{path} cannot be read: {error}") from None
        return [FoundEvent(**row) for row in rows.slice(0, _MAX_FOUND).to_pylist()]


def _first_page(rows: pa.Table, upto: int) -> ArchivedStretch:
    """As many rows as fit into a page, but one at least."""
    page: list[tuple[int, bytes]] = []
    size = 0
    for seq, body in zip(rows.column("seq"), rows.column("body"), strict=True):
        if page and size + len(body.as_buffer()) > PAGE_BYTES:
            return ArchivedStretch(page[-1][0], page)
        page.append((seq.as_py(), body.as_py()))
        size += len(page[-1][1])
    return ArchivedStretch(upto, page)


def _in_order(found: list[FoundEvent]) -> list[FoundEvent]:
    return sorted(found, key=lambda event: (event.created_at, event.seq))
