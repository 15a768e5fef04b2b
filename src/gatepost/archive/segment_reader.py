"""Reads archived events again: for readers and relays that were cut off, and for traces.

Only segments that a signed manifest lists are read. Every call is bounded in bytes, and a search in
time too.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from msgspec.structs import replace

from gatepost.archive import manifest
from gatepost.archive.archive_store import ArchiveStore
from gatepost.archive.manifest import ArchiveManifest, ArchiveSegment
from gatepost.archive.segment_table import read_segment_table
from gatepost.errors import ArchiveError
from gatepost.events import genesis_chain

# A page of events for one reader: some frames, and little memory.
PAGE_BYTES: Final = 8 * 1024 * 1024
# A search reads the id columns of segments of at most this size altogether.
SEARCH_BYTES: Final = 1024 * 1024 * 1024
# An event may have been committed by a clock that was set back since its id was made.
_CLOCK_SLACK_MS: Final = 3_600_000
_MAX_FOUND: Final = 200

_PAGE_COLUMNS: Final = ["seq", "to_node", "body"]
_GROUP_COLUMNS: Final = ["seq", "body", "group_first", "chain", "signature"]
_ID_COLUMNS: Final = ["event_id", "ref_id"]
_FOUND_COLUMNS: Final = [
    *("seq", "event_id", "ref_id", "kind", "source_agent", "to_node", "to_agent", "created_at"),
    *("attempt", "corr_id", "causation_id", "status", "outcome", "reason", "signal"),
    *("route_decision", "body"),
]


class ArchivedGroup(Struct, frozen=True):
    """The signed head of a commit group, and the chain before it."""

    first: int
    last: int
    previous: bytes
    chain: bytes
    signature: bytes


class ArchivedStretch(Struct, frozen=True):
    """(seq, event) up to `upto`. `missing`: events are not there, or archived without bodies.

    The events for a relay come in whole commit groups.
    """

    upto: int
    rows: list[tuple[int, bytes]]
    missing: bool = False
    groups: list[ArchivedGroup] = []


class EventGroup(Struct, frozen=True):
    """One commit group with its events; `incarnation` is the one it belongs to."""

    incarnation: str
    group: ArchivedGroup
    rows: list[tuple[int, bytes]]


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

        def read_page(segment: ArchiveSegment) -> ArchivedStretch | None:
            rows = self._read_rows(segment, to, after, upto)
            return None if rows is None else _first_page(rows, min(segment.last, upto))

        segments = _segments_between(self._load_manifest(), incarnation, after, upto)
        return _read_first_page(segments, after, upto, read_page)

    def read_groups(self, incarnation: str, after: int, upto: int) -> ArchivedStretch:
        """The first commit groups that reach into (after, upto] of an incarnation: a page."""
        listed = self._load_manifest()

        def read_page(segment: ArchiveSegment) -> ArchivedStretch | None:
            previous = _chain_before(listed, segment)
            return None if previous is None else self._read_group_page(segment, previous, after)

        segments = _segments_between(listed, incarnation, after, upto)
        return _read_first_page(segments, after, upto, read_page)

    def read_group_of(self, seq: int) -> "EventGroup | None":
        """The commit group of an event, with the (seq, event) of all its events, if archived."""
        listed = self._load_manifest()
        for segment in reversed(listed.segments):
            previous = _chain_before(listed, segment)
            if not segment.first <= seq <= segment.last or previous is None:
                continue
            page = self._read_group_page(segment, previous, seq - 1)
            if page is not None and page.groups:
                group = page.groups[0]
                rows = [row for row in page.rows if group.first <= row[0] <= group.last]
                return EventGroup(segment.incarnation, group, rows)
        return None

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

    def _segments_near(self, created_at: int) -> list[ArchiveSegment]:
        """Segments from the time of an event on, in their order; then earlier ones, latest first.

        Events that refer to an event were committed after it.
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

    def _read_group_page(
        self, segment: ArchiveSegment, previous: bytes, after: int
    ) -> ArchivedStretch | None:
        """The groups of a segment from `after` on; None if they were archived without bodies."""
        events = read_segment_table(self._read_verified(segment), _GROUP_COLUMNS, segment.path)
        if events.column("body").null_count:
            return None
        page = ArchivedStretch(segment.last, [])
        group: list[tuple[int, bytes]] = []
        size = 0
        for seq, body, first, chain, signature in zip(
            *(column.to_pylist() for column in events.columns), strict=True
        ):
            group.append((seq, body))
            if signature is None:
                continue
            if seq > after:
                size += sum(len(body) for _, body in group)
                if page.rows and size > PAGE_BYTES:
                    return replace(page, upto=page.rows[-1][0])
                page.rows.extend(group)
                page.groups.append(ArchivedGroup(first, seq, previous, chain, signature))
            group, previous = [], chain
        return page

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


def _segments_between(
    listed: ArchiveManifest, incarnation: str, after: int, upto: int
) -> Iterator[ArchiveSegment]:
    for segment in listed.segments:
        if segment.incarnation == incarnation and segment.last > after:
            if segment.first > upto:
                return
            yield segment


def _read_first_page(
    segments: Iterable[ArchiveSegment],
    after: int,
    upto: int,
    read_page: Callable[[ArchiveSegment], ArchivedStretch | None],
) -> ArchivedStretch:
    """The first readable page. Unreadable events before it are reported first, as missing."""
    missing_through = after
    for segment in segments:
        if segment.first > missing_through + 1:
            return ArchivedStretch(segment.first - 1, [], missing=True)
        page = read_page(segment)
        if page is None:
            missing_through = min(segment.last, upto)
        elif missing_through > after:
            return ArchivedStretch(missing_through, [], missing=True)
        else:
            return page
    # No segment holds the rest.
    return ArchivedStretch(upto, [], missing=True)


def _chain_before(listed: ArchiveManifest, segment: ArchiveSegment) -> bytes | None:
    """The hash chain before a segment; None if the events before it were never archived."""
    started = {(each.id, each.first_seq) for each in listed.incarnations}
    if (segment.incarnation, segment.first) in started:
        return genesis_chain(listed.node, segment.incarnation)
    before = (segment.incarnation, segment.first - 1)
    chains = {(each.incarnation, each.last): each.chain for each in listed.segments}
    return bytes.fromhex(chains[before]) if before in chains else None


def _first_page(rows: pa.Table, upto: int) -> ArchivedStretch:
    """As many rows as fit into a page, but at least one."""
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
