"""Decides which rows to read next: pure functions over the segments that manifests list.

A *lane* is one incarnation of one node's outbox. Its sequence numbers have no holes, so a range
of them names the same rows for ever, even after small segments were merged into larger ones.
Offsets are made of them: {node: {incarnation: last seq read}}.

A stream moves all lanes forward together in time. A batch holds the rows of all lanes up to one
moment, the *frontier*. The frontier is the latest one at which the batch stays within its budget.
So no node runs ahead of another by more than one batch; a node that comes back after a week has
the oldest rows and is read first.
"""

import builtins
import heapq
import struct
from array import array
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import date
from itertools import accumulate
from operator import attrgetter, itemgetter
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from gatepost.errors import PipelineError

# Rows of a row group in the archive: reading a part of one decodes all of it.
ROW_GROUP = 128 * 1024

Offsets = dict[str, dict[str, int]]


class LaneKey(NamedTuple):
    node: str
    incarnation: str


class SeqRange(Struct, frozen=True, rename="camel"):
    """The events `first` to `last` of one lane."""

    node: str
    incarnation: str
    first: int
    last: int

    @property
    def lane(self) -> LaneKey:
        return LaneKey(self.node, self.incarnation)


class SetAside(Struct, frozen=True, rename="camel"):
    """A node, or a range of its events, that is not taken in, with the reason.

    `at` is the time of the latest event that was set aside, by the node's clock. If `events` is not
    0, the range was taken in, except for that many of its events. `ended` is when it was repaired;
    None before that.
    """

    node: str
    reason: str
    at: int
    incarnation: str | None = None
    first: int | None = None
    last: int | None = None
    events: int = 0
    ended: int | None = None

    @property
    def key(self) -> tuple[str, str | None, int | None]:
        """The identity of what is set aside, which stays the same."""
        return self.node, self.incarnation, self.first

    @property
    def count(self) -> int:
        """The number of events; 0 if it is unknown, as for a whole node."""
        if self.events or self.first is None or self.last is None:
            return self.events
        return self.last - self.first + 1

    @property
    def sentence(self) -> str:
        """A sentence about what is set aside, and why."""
        if self.first is None:
            return f"{self.node}: its events are not taken in: {self.reason}"
        if not self.events:
            what = f"its events {self.first} to {self.last} are not taken in"
            return f"{self.node}: {what}: {self.reason}"
        counted = "1 event is" if self.events == 1 else f"{self.events} events are"
        among = f"among its events {self.first} to {self.last}"
        return f"{self.node}: {among}, {counted} not counted: {self.reason}"


class FileVersion(NamedTuple):
    """The file of a segment: its digest and size, and when it was archived."""

    sha256: bytes
    bytes: int
    archived_at: int


# SHA-256, bytes, least and greatest `created_at`, and `archived_at`.
_SEGMENT_FACTS = struct.Struct("=32s4q")
_UNPACK_NUMBER = struct.Struct("=q").unpack_from


def _number_at(packed: bytes, place: int) -> int:
    number: int = _UNPACK_NUMBER(packed, 32 + 8 * place)[0]
    return number


class SegmentFile(Struct, frozen=True, gc=False):
    """A file that a manifest lists; times are epoch milliseconds.

    An archive may have millions, all of them in the driver's memory: so most numbers and the digest
    are packed, and a text that follows from other fields is not kept. `odd_path` is the path in the
    node's folder if it is not the usual one.
    """

    node: str
    date: date
    incarnation: str
    first: int
    last: int
    packed: builtins.bytes
    odd_path: str | None = None

    @property
    def sha256(self) -> builtins.bytes:
        return self.packed[:32]

    @property
    def bytes(self) -> int:
        return _number_at(self.packed, 0)

    @property
    def min_created_at(self) -> int:
        return _number_at(self.packed, 1)

    @property
    def max_created_at(self) -> int:
        return _number_at(self.packed, 2)

    @property
    def archived_at(self) -> int:
        return _number_at(self.packed, 3)

    @property
    def path(self) -> str:
        """The path below the archive's root."""
        within = self.odd_path or usual_path(self.date, self.first, self.last)
        return f"node={self.node}/{within}"

    @property
    def lane(self) -> LaneKey:
        return LaneKey(self.node, self.incarnation)

    @property
    def rows(self) -> int:
        return self.last - self.first + 1


def make_segment(
    node: str,
    day: date,
    incarnation: str,
    seqs: tuple[int, int],
    created_at: tuple[int, int],
    file: FileVersion,
    path: str | None = None,
) -> SegmentFile:
    """A segment with the first and last of its numbers, and the extremes of its times."""
    odd = None if path == usual_path(day, *seqs) else path
    packed = _SEGMENT_FACTS.pack(file.sha256, file.bytes, *created_at, file.archived_at)
    return SegmentFile(node, day, incarnation, *seqs, packed, odd)


def usual_path(day: date, first: int, last: int) -> str:
    """Where a gateway puts a segment in its node's folder."""
    return f"date={day}/{first:020}-{last:020}.parquet"


class Slice(Struct, frozen=True, gc=False):
    """The rows `first` to `last`, by sequence number, of one segment."""

    segment: SegmentFile
    first: int
    last: int

    @property
    def rows(self) -> int:
        return self.last - self.first + 1

    @property
    def skipped(self) -> int:
        """Rows of the segment before this slice."""
        return self.first - self.segment.first


class Selection(Struct, frozen=True):
    """The nodes and dates a reader asked for; None means all. Both dates are included."""

    nodes: frozenset[str] | None = None
    since: date | None = None
    until: date | None = None

    def includes(self, segment: SegmentFile) -> bool:
        return (
            (self.nodes is None or segment.node in self.nodes)
            and (self.since is None or segment.date >= self.since)
            and (self.until is None or segment.date <= self.until)
        )


# Reads the `created_at` of each row of a segment. A plan calls it only where it must cut one.
RowTimes = Callable[[SegmentFile], Sequence[int]]


class PendingLane:
    """The unread rows of one lane, in its own order."""

    def __init__(self, slices: Sequence[Slice]) -> None:
        self._slices = slices
        # A clock may go back: a row is due no earlier than the rows before it.
        self._latest_times = array(
            "q", accumulate((piece.segment.max_created_at for piece in slices), max)
        )
        self._row_offsets = array("q", accumulate((piece.rows for piece in slices), initial=0))

    @property
    def rows(self) -> int:
        return self._row_offsets[-1]

    @property
    def last(self) -> int:
        return self._slices[-1].last

    @property
    def earliest(self) -> int:
        return self._slices[0].segment.min_created_at

    @property
    def latest(self) -> int:
        return self._latest_times[-1]

    @property
    def stretches(self) -> Iterator[tuple[int, int, int]]:
        """For each slice when it begins to be due, and the earliest and latest time in it."""
        latest = 0
        for piece, until in zip(self._slices, self._latest_times, strict=True):
            segment = piece.segment
            yield (
                max(latest, segment.min_created_at),
                segment.min_created_at,
                segment.max_created_at,
            )
            latest = until

    def due_bounds(self, moment: int) -> tuple[int, int]:
        """The fewest and the most rows that can be due by `moment`, without reading any."""
        whole = bisect_right(self._latest_times, moment)
        least = self._row_offsets[whole]
        cut = whole < len(self._slices) and self._slices[whole].segment.min_created_at <= moment
        return least, self._row_offsets[whole + 1] if cut else least

    def due_rows(self, moment: int, times: RowTimes) -> int:
        """The exact number of rows due by `moment`."""
        least, most = self.due_bounds(moment)
        if least == most:
            return least
        cut = self._slices[bisect_right(self._latest_times, moment)]
        until = bisect_right(times(cut.segment), moment, hi=cut.skipped + cut.rows)
        return least + max(0, until - cut.skipped)

    def first_due(self, times: RowTimes) -> int:
        """The moment by which the first row is due."""
        piece = self._slices[0]
        return times(piece.segment)[piece.skipped]

    def seq_after(self, rows: int) -> int:
        """The sequence number of the last of the first `rows` rows."""
        index = bisect_right(self._row_offsets, rows - 1) - 1
        return self._slices[index].first + rows - self._row_offsets[index] - 1


def group_by_lane(segments: Iterable[SegmentFile]) -> dict[LaneKey, list[SegmentFile]]:
    """Lanes in a fixed order, each with its segments in sequence."""
    by_lane: dict[LaneKey, list[SegmentFile]] = {}
    for segment in segments:
        by_lane.setdefault(segment.lane, []).append(segment)
    for found in by_lane.values():
        found.sort(key=attrgetter("first"))
    return {key: by_lane[key] for key in sorted(by_lane)}


def pending_lanes(
    segments: Iterable[SegmentFile],
    start: Offsets,
    selection: Selection,
    through: Offsets | None = None,
) -> dict[LaneKey, PendingLane]:
    """The lanes with rows after `start`, and up to `through` if that is given."""
    lanes = {}
    for key, listed in group_by_lane(segments).items():
        after = last_seq(start, key)
        most = max(s.last for s in listed) if through is None else last_seq(through, key)
        wanted = [
            Slice(s, max(s.first, after + 1), min(s.last, most))
            for s in listed
            if s.last > after and s.first <= most and selection.includes(s)
        ]
        if wanted and most > after:
            lanes[key] = PendingLane(wanted)
    return lanes


def last_seq(offsets: Offsets, key: LaneKey) -> int:
    """The position of these offsets in a lane; 0 if the lane is not in them."""
    return offsets.get(key.node, {}).get(key.incarnation, 0)


def advance_offsets(
    lanes: Mapping[LaneKey, PendingLane],
    start: Offsets,
    *,
    times: RowTimes,
    budget: int | None = None,
    until: int | None = None,
    span: int | None = None,
) -> Offsets:
    """The end of a batch that begins at `start`.

    `budget` is the most rows it may have, `until` a moment that no lane may pass yet. With `span`,
    a batch that would be empty ends that many ms after its first row instead.
    """
    if until is not None and span is not None and lanes:
        until = _due_moment(lanes.values(), until, span, times)
    taken = _rows_to_take(lanes, times, budget, until)
    end = {node: dict(seqs) for node, seqs in start.items()}
    for key, rows in taken.items():
        if rows:
            end.setdefault(key.node, {})[key.incarnation] = lanes[key].seq_after(rows)
    # Sorted, because Spark compares offsets as text.
    return {node: dict(sorted(end[node].items())) for node in sorted(end)}


def moment_within(lanes: Iterable[PendingLane], most: int, before: int, after: int) -> int | None:
    """The latest moment by which the due rows cover about `most` ms of time; None if all may.

    A row also covers the time from `before` ms before it to `after` ms after it.
    """
    covered: list[tuple[int, int]] = []
    # Each lane has its stretches in order of time. Sorting all at once would take much memory.
    stretches = heapq.merge(*(lane.stretches for lane in lanes), key=itemgetter(0))
    earliest = None
    for due, first, last in stretches:
        earliest = due if earliest is None else earliest
        covered = _add_stretch(covered, first - before, last + after)
        if sum(end - begin for begin, end in covered) > most + before + after:
            return earliest + most if due == earliest else due - 1
    return None


def _add_stretch(
    covered: Sequence[tuple[int, int]], first: int, last: int
) -> list[tuple[int, int]]:
    """The stretches with one more, none of them touching another."""
    met = [each for each in covered if each[0] <= last and each[1] >= first]
    apart = [each for each in covered if each not in met]
    return [*apart, (min([first, *(a for a, _ in met)]), max([last, *(b for _, b in met)]))]


def _rows_to_take(
    lanes: Mapping[LaneKey, PendingLane], times: RowTimes, budget: int | None, until: int | None
) -> dict[LaneKey, int]:
    if not lanes:
        return {}
    high = max(lane.latest for lane in lanes.values())
    high = high if until is None else min(high, until)
    if budget is None or _fits_budget(lanes.values(), high, times, budget):
        return {key: lane.due_rows(high, times) for key, lane in lanes.items()}
    low = min(lane.earliest for lane in lanes.values()) - 1
    while high - low > 1:
        middle = (low + high) // 2
        if _fits_budget(lanes.values(), middle, times, budget):
            low = middle
        else:
            high = middle
    taken = {key: lane.due_rows(low, times) for key, lane in lanes.items()}
    return _fill_budget(lanes, taken, high, times, budget)


def _due_moment(lanes: Collection[PendingLane], until: int, span: int, times: RowTimes) -> int:
    """`until`, or `span` ms after the first row if no row is due by then.

    The rest of a segment may begin long after the segment does.
    """
    if any(lane.due_rows(until, times) for lane in lanes):
        return until
    return min(lane.first_due(times) for lane in lanes) + span


def _fits_budget(lanes: Iterable[PendingLane], moment: int, times: RowTimes, budget: int) -> bool:
    """Whether at most `budget` rows are due by `moment`; reads rows only if bounds do not tell."""
    bounds = [(lane, *lane.due_bounds(moment)) for lane in lanes]
    if sum(most for _, _, most in bounds) <= budget:
        return True
    if sum(least for _, least, _ in bounds) > budget:
        return False
    return sum(lane.due_rows(moment, times) for lane, _, _ in bounds) <= budget


def _fill_budget(
    lanes: Mapping[LaneKey, PendingLane],
    taken: Mapping[LaneKey, int],
    moment: int,
    times: RowTimes,
    budget: int,
) -> dict[LaneKey, int]:
    """Add part of a millisecond that exceeds the budget as a whole, or it would block for ever."""
    filled, left = dict(taken), budget - sum(taken.values())
    for key, lane in lanes.items():
        more = min(left, lane.due_rows(moment, times) - taken[key])
        filled[key] += more
        left -= more
    return filled


def archived_frontier(segments: Iterable[SegmentFile], now: int, patience: int) -> int | None:
    """The moment up to which every active node has archived; None if no node is active.

    Stopping there keeps a node from running ahead of one that archives a moment later. A node is
    not active if it has archived nothing for `patience`, or is further behind than `patience`.
    """
    newest: dict[str, tuple[int, int]] = {}
    for segment in segments:
        top, archived_at = newest.get(segment.node, (0, 0))
        newest[segment.node] = (
            max(top, segment.max_created_at),
            max(archived_at, segment.archived_at),
        )
    latest = max((top for top, _ in newest.values()), default=0)
    return min(
        (
            top
            for top, archived_at in newest.values()
            if now - archived_at <= patience and latest - top <= patience
        ),
        default=None,
    )


def slices_between(
    segments: Iterable[SegmentFile],
    start: Offsets,
    end: Offsets,
    selection: Selection,
    left_out: Iterable[SeqRange] = (),
) -> list[Slice]:
    """The rows after `start` up to `end`; an error if the archive no longer lists some of them.

    The ranges of `left_out` are not read.
    """
    lanes = group_by_lane(segments)
    holes: dict[LaneKey, list[SeqRange]] = {}
    for each in left_out:
        holes.setdefault(each.lane, []).append(each)
    found: list[Slice] = []
    for key, after, last in _moved_lanes(start, end):
        listed = lanes.get(key, [])
        # The first read of a lane may begin at any number: retention may have removed older ones.
        first = after + 1 if after else min((each.first for each in listed), default=1)
        for begin, until in _without_ranges(first, last, holes.get(key, [])):
            found += _range_slices(key, listed, begin, until)
    return [piece for piece in found if selection.includes(piece.segment)]


def listed_slices(
    segments: Iterable[SegmentFile],
    start: Offsets,
    end: Offsets,
    left_out: Iterable[SeqRange] = (),
) -> Iterator[Slice]:
    """The rows after `start` up to `end` that are listed, each once; the rest is passed over."""
    lanes = group_by_lane(segments)
    holes = list(left_out)
    for key, after, last in _moved_lanes(start, end):
        inside = [each for each in holes if each.lane == key]
        begin = after + 1
        for segment in lanes.get(key, []):
            first, until = max(segment.first, begin), min(segment.last, last)
            yield from (Slice(segment, *part) for part in _without_ranges(first, until, inside))
            begin = max(begin, until + 1)


def slices_of_ranges(segments: Iterable[SegmentFile], ranges: Iterable[SeqRange]) -> list[Slice]:
    """The rows of these ranges; an error if the archive does not list some of them."""
    lanes = group_by_lane(segments)
    return [
        piece
        for each in ranges
        for piece in _range_slices(each.lane, lanes.get(each.lane, []), each.first, each.last)
    ]


def find_holes(
    segments: Iterable[SegmentFile], listed: Iterable[SegmentFile], start: Offsets, end: Offsets
) -> Iterator[tuple[LaneKey, int, int]]:
    """The ranges after `start` up to `end` that no segment holds.

    An outbox begins with its first `listed` segment, whether that can be read or not.
    """
    lanes, every = group_by_lane(segments), group_by_lane(listed)
    for key, after, last in _moved_lanes(start, end):
        inside = [each for each in lanes.get(key, []) if each.last > after and each.first <= last]
        expected = after + 1 if after else min(each.first for each in every[key])
        for segment in inside:
            if segment.first > expected:
                yield key, expected, segment.first - 1
            expected = max(expected, segment.last + 1)
        if expected <= last:
            yield key, expected, last


def split_covered(
    segments: Iterable[SegmentFile], wanted: Iterable[SeqRange]
) -> tuple[list[SeqRange], list[SeqRange]]:
    """The parts of these ranges that segments hold, and the parts that they do not."""
    lanes = group_by_lane(segments)
    covered, missing = [], []
    for each in wanted:
        held = [
            SeqRange(each.node, each.incarnation, max(s.first, each.first), min(s.last, each.last))
            for s in lanes.get(each.lane, [])
            if s.last >= each.first and s.first <= each.last
        ]
        covered += held
        missing += [
            SeqRange(each.node, each.incarnation, first, last)
            for first, last in _without_ranges(each.first, each.last, held)
        ]
    return covered, missing


def _moved_lanes(start: Offsets, end: Offsets) -> Iterator[tuple[LaneKey, int, int]]:
    """(lane, last seq before, last seq after) of every lane that moves on."""
    for node, seqs in end.items():
        for incarnation, last in seqs.items():
            after = start.get(node, {}).get(incarnation, 0)
            if last > after:
                yield LaneKey(node, incarnation), after, last


def _without_ranges(first: int, last: int, ranges: Iterable[SeqRange]) -> Iterator[tuple[int, int]]:
    """The parts of `first` to `last` outside these ranges."""
    for each in sorted(ranges, key=lambda each: each.first):
        if each.last < first or each.first > last:
            continue
        if each.first > first:
            yield first, each.first - 1
        first = each.last + 1
    if first <= last:
        yield first, last


def _range_slices(
    key: LaneKey, segments: Sequence[SegmentFile], first: int, last: int
) -> Iterator[Slice]:
    expected = first
    for segment in segments:
        if segment.last < first or segment.first > last:
            continue
        if segment.first > expected:
            raise _missing_events_error(key, expected, segment.first - 1)
        yield Slice(segment, max(segment.first, expected), min(segment.last, last))
        expected = segment.last + 1
    if expected <= last:
        raise _missing_events_error(key, expected, last)


def _missing_events_error(key: LaneKey, first: int, last: int) -> PipelineError:
    return PipelineError(
        f"the archive no longer lists events {first} to {last} of node {key.node}"
        f" (incarnation {key.incarnation}), which this query has yet to read:"
        " restore them, or start again with a fresh checkpoint"
    )


def pack_slices(slices: Iterable[Slice], parallelism: int, most_rows: int) -> list[list[Slice]]:
    """Shares of about equal size, as many for each core if there are enough rows."""
    slices = list(slices)
    total = sum(piece.rows for piece in slices)
    cores = max(1, parallelism)
    rounds = max(1, -(-total // (most_rows * cores)))
    share = max(ROW_GROUP // 4, -(-total // (rounds * cores)))
    pieces = [part for piece in slices for part in _split_slice(piece, share)]
    bins: list[tuple[int, int, list[Slice]]] = [
        (0, index, []) for index in range(min(len(pieces), -(-total // share)))
    ]
    for part in sorted(pieces, key=lambda p: -p.rows):
        load, index, parts = bins[0]
        parts.append(part)
        heapq.heapreplace(bins, (load + part.rows, index, parts))
    return [
        sorted(parts, key=lambda p: (p.segment.node, p.segment.date, p.first))
        for _, _, parts in sorted(bins, key=lambda b: b[1])
    ]


class RowEstimate(NamedTuple):
    """The approximate number of rows between two moments."""

    since: int
    until: int
    rows: int


def cut_times(stretches: Sequence[RowEstimate], parts: int) -> list[int]:
    """The moments, in order, that divide the rows into about equal parts."""
    if not stretches:
        return []
    since, until, rows = np.array(stretches, np.int64).T
    length = np.maximum(1, until + 1 - since)
    # Each stretch adds its rows evenly: their rate rises where it begins, and falls where it ends.
    edges, place = np.unique(np.concatenate([since, since + length]), return_inverse=True)
    change = np.bincount(place, np.concatenate([rows / length, -rows / length]))
    added = np.cumsum(change)[:-1] * np.diff(edges)
    rows_before = np.concatenate([[0.0], np.cumsum(np.maximum(added, 0))])
    shares = np.arange(1, parts) * (rows.sum() / parts)
    return sorted({int(moment) for moment in np.interp(shares, rows_before, edges)})


def _split_slice(piece: Slice, share: int) -> Iterator[Slice]:
    """Cut at row groups only."""
    step = max(1, round(share / ROW_GROUP)) * ROW_GROUP
    if piece.skipped % ROW_GROUP + piece.rows <= step:
        yield piece
        return
    first = piece.first
    while first <= piece.last:
        group = (first - piece.segment.first) // ROW_GROUP * ROW_GROUP
        last = min(piece.last, piece.segment.first + group + step - 1)
        yield Slice(piece.segment, first, last)
        first = last + 1
