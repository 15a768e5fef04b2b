"""Plans a batch: its range of every outbox, the events left out, and earlier events to add.

A batch in the ledger is repeated until it is done. If a segment of it cannot be read any more, or
the archive no longer lists it, the batch is planned anew without these events, as long as no table
has it: so a faulty segment does not stop the others.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache

from msgspec import Struct
from msgspec.structs import replace

from gatepost.clock import SystemClock
from gatepost.pipeline import read_plan
from gatepost.pipeline.archive_admission import (
    AdmittedArchive,
    ArchiveGate,
    agree_on_time,
    describe_far_ids,
    describe_holes,
)
from gatepost.pipeline.archive_reader import ArchiveReader
from gatepost.pipeline.jobs.batch_ledger import BatchNotes, PipelineBatch
from gatepost.pipeline.objectives import Objectives
from gatepost.pipeline.read_plan import Offsets, SegmentFile, Selection, SeqRange, SetAside, Slice
from gatepost.pipeline.segment_check import SegmentCheck
from gatepost.pipeline.transport import Transport

_ALL_EVENTS = Selection()
_HOUR_MS = 3_600_000
_DAY_MS = 24 * _HOUR_MS
# A batch writes at most this much time, and the time that the ids of its events can reach back.
# So the number of its partitions is bounded, whatever times the events have.
_BATCH_MS = 366 * _DAY_MS


class BatchPlan(Struct, frozen=True):
    """`is_last`: no event that could be taken in is left for a later batch."""

    end: Offsets
    notes: BatchNotes
    is_last: bool


class ArchiveLag(Struct, frozen=True):
    """Archived events that the tables lack, and the age of the oldest."""

    events: int
    ms: int


class BatchPlanner:
    def __init__(
        self, transport: Transport, archive: ArchiveReader, objectives: Objectives
    ) -> None:
        self._transport = transport
        self._archive = archive
        self._gate = ArchiveGate(archive)
        self._objectives = objectives

    def measure_lag(self, taken: Offsets) -> ArchiveLag:
        """How far tables with these events are behind the archive."""
        waiting = [
            each
            for each in self._gate.admit_nodes().segments
            if each.last > _read_through(taken, each)
        ]
        rows = sum(each.last - max(each.first - 1, _read_through(taken, each)) for each in waiting)
        since = min((each.archived_at for each in waiting), default=None)
        return ArchiveLag(rows, 0 if since is None else max(0, SystemClock().now() - since))

    def plan_next(
        self, last: PipelineBatch, max_rows: int | None, through: Offsets | None = None
    ) -> BatchPlan | None:
        """The batch after `last`; None if nothing is new and nothing else was set aside.

        With `through` it ends there at the latest.
        """
        admitted = self._gate.admit_nodes()
        fresh = _segments_to_check(admitted.segments, last)
        found = self._check_segments(fresh, last.left_out)
        plan = self._plan(admitted, found, last, max_rows, through)
        is_news = plan.end != last.end or plan.notes.recovered or plan.notes.aside != last.aside
        return plan if is_news else None

    def _check_segments(
        self, segments: Iterable[SegmentFile], left_out: Iterable[SeqRange]
    ) -> dict[str, SegmentCheck]:
        """Check these segments; those that were left out have to be readable as a batch reads them.

        Otherwise a segment that only a batch cannot read would pass the check again and again.
        """
        doubted: list[SegmentFile] = []
        fresh: list[SegmentFile] = []
        ranges = list(left_out)
        for each in segments:
            (doubted if _holds_any(each, ranges) else fresh).append(each)
        id_age = self._objectives.id_age
        found = self._gate.check_segments(self._transport, fresh, id_age)
        return found | self._gate.try_segments(self._transport, doubted, id_age)

    def plan_again(self, batch: PipelineBatch, last: PipelineBatch) -> BatchPlan | None:
        """The batch without unreadable segments; None if these are not why it failed.

        `last` is the batch before it. No event is added.
        """
        admitted = self._gate.admit_nodes()
        fresh = _segments_to_check(admitted.segments, last)
        found = self._gate.try_segments(self._transport, fresh, self._objectives.id_age)
        plan = self._plan(admitted, found, last, None, batch.end)
        again = (plan.end, plan.notes.left_out, plan.notes.recovered)
        return None if again == (batch.end, batch.left_out, batch.recovered) else plan

    def slices_of(self, batch: PipelineBatch) -> list[Slice]:
        """The rows of a batch; an error if the archive no longer lists some of them."""
        listed = self._gate.admit_nodes().segments
        slices = read_plan.slices_between(
            listed, batch.start, batch.end, _ALL_EVENTS, batch.left_out
        )
        return [*slices, *read_plan.slices_of_ranges(listed, batch.recovered)]

    def _plan(
        self,
        admitted: AdmittedArchive,
        found: Mapping[str, SegmentCheck],
        last: PipelineBatch,
        max_rows: int | None,
        most: Offsets | None = None,
    ) -> BatchPlan:
        right = [each for each in admitted.segments if not _has_fault(found, each)]
        lanes = read_plan.pending_lanes(right, last.end, _ALL_EVENTS, most)
        until = read_plan.moment_within(lanes.values(), _BATCH_MS, self._objectives.id_age, _DAY_MS)
        # A plan looks for the right moment step by step, and at the same few segments each time.
        times = cache(self._archive.row_times)
        end = read_plan.advance_offsets(
            lanes, last.end, times=times, budget=max_rows, until=until, span=_BATCH_MS
        )
        is_last = all(read_plan.last_seq(end, key) >= lane.last for key, lane in lanes.items())
        return BatchPlan(end, self._note_batch(admitted, right, found, last, end), is_last)

    def _note_batch(
        self,
        admitted: AdmittedArchive,
        right: Sequence[SegmentFile],
        found: Mapping[str, SegmentCheck],
        last: PipelineBatch,
        end: Offsets,
    ) -> BatchNotes:
        recovered, still_out = read_plan.split_covered(right, last.left_out)
        holes = [
            *((each.lane, each.first, each.last) for each in still_out),
            *read_plan.find_holes(right, admitted.segments, last.end, end),
        ]
        # Bad segments at the end of an outbox are not holes yet, but are set aside anyway.
        ahead = [
            (each.lane, each.first, each.last)
            for each in admitted.segments
            if _has_fault(found, each) and each.first > _read_through(end, each)
        ]
        as_of = agree_on_time(right, SystemClock().now())
        faults = {path: each.fault for path, each in found.items() if each.fault is not None}
        taken = [each for each in right if _is_taken(each, last, end, recovered)]
        recent = as_of - self._objectives.days * _DAY_MS
        aside = [
            *admitted.aside,
            *describe_holes([*holes, *ahead], admitted.segments, faults),
            *describe_far_ids(taken, found, [each for each in last.aside if each.at >= recent]),
        ]
        return BatchNotes(
            as_of,
            tuple(SeqRange(*key, first, until) for key, first, until in holes),
            tuple(recovered),
            tuple(sorted(aside, key=_aside_order)),
            tuple(sorted(_find_repaired(last, aside, as_of, recent), key=_aside_order)),
        )


def replan(batch: PipelineBatch, plan: BatchPlan) -> PipelineBatch:
    """The batch as it is planned now, under its number."""
    return replace(
        batch,
        end=plan.end,
        as_of=plan.notes.as_of,
        left_out=plan.notes.left_out,
        recovered=plan.notes.recovered,
        aside=plan.notes.aside,
        repaired=plan.notes.repaired,
    )


def _find_repaired(
    last: PipelineBatch, aside: Iterable[SetAside], as_of: int, since: int
) -> Iterator[SetAside]:
    """Segments that are no longer set aside, if that ended at `since` or later."""
    still = {each.key for each in aside}
    ended = [replace(each, ended=max(as_of, each.at)) for each in last.aside if not each.events]
    for each in {each.key: each for each in (*ended, *last.repaired)}.values():
        if each.key not in still and (each.ended or 0) >= since:
            yield each


def _segments_to_check(segments: Sequence[SegmentFile], last: PipelineBatch) -> list[SegmentFile]:
    """Segments with events that no batch has taken in."""
    open_lanes = {each.lane for each in last.left_out}
    return [
        each
        for each in segments
        if each.last > _read_through(last.end, each) or each.lane in open_lanes
    ]


def _holds_any(segment: SegmentFile, ranges: Iterable[SeqRange]) -> bool:
    return any(
        each.lane == segment.lane and each.first <= segment.last and segment.first <= each.last
        for each in ranges
    )


def _is_taken(
    segment: SegmentFile, last: PipelineBatch, end: Offsets, recovered: Iterable[SeqRange]
) -> bool:
    """Whether this batch takes in the last event of a segment, so that it is counted once."""
    if _read_through(last.end, segment) < segment.last <= _read_through(end, segment):
        return True
    return any(
        each.lane == segment.lane and each.first <= segment.last <= each.last for each in recovered
    )


def _has_fault(found: Mapping[str, SegmentCheck], segment: SegmentFile) -> bool:
    return segment.path in found and found[segment.path].fault is not None


def _read_through(offsets: Offsets, segment: SegmentFile) -> int:
    return read_plan.last_seq(offsets, segment.lane)


def _aside_order(each: SetAside) -> tuple[str, str, int, int]:
    return each.node, each.incarnation or "", each.first or 0, each.events
