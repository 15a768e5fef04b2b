"""What a stream reads next, without any file."""

from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatepost.errors import PipelineError
from gatepost.pipeline.read_plan import (
    ROW_GROUP,
    FileVersion,
    Offsets,
    RowEstimate,
    SegmentFile,
    Selection,
    Slice,
    advance_offsets,
    archived_frontier,
    cut_times,
    make_segment,
    moment_within,
    pack_slices,
    pending_lanes,
    slices_between,
)

ALL = Selection()
Rows = dict[tuple[str, str], list[int]]


class Outboxes:
    """Segments and the times of their rows, cut as the archive cuts them."""

    def __init__(self) -> None:
        self.segments: list[SegmentFile] = []
        self.rows: Rows = {}
        self.looked_at: list[str] = []

    def archive(self, node: str, times: Sequence[int], incarnation: str = "a", at: int = 0) -> None:
        lane = self.rows.setdefault((node, incarnation), [])
        first = len(lane) + 1
        lane.extend(times)
        self.segments.append(
            make_segment(
                node,
                datetime.fromtimestamp(times[0] / 1000, UTC).date(),
                incarnation,
                (first, first + len(times) - 1),
                (min(times), max(times)),
                FileVersion(b"", 0, at),
                f"{incarnation}/{first}",
            )
        )

    def times(self, segment: SegmentFile) -> list[int]:
        self.looked_at.append(segment.path)
        lane = self.rows[segment.node, segment.incarnation]
        return lane[segment.first - 1 : segment.last]

    def next(
        self,
        start: Offsets,
        budget: int | None,
        until: int | None = None,
        selection: Selection = ALL,
    ) -> Offsets:
        lanes = pending_lanes(self.segments, start, selection)
        return advance_offsets(lanes, start, times=self.times, budget=budget, until=until)

    def batches(self, budget: int) -> Iterator[list[tuple[str, int]]]:
        """(node, time) of each row, batch by batch, until nothing is left."""
        start: Offsets = {}
        while (end := self.next(start, budget)) != start:
            yield [
                (piece.segment.node, time)
                for piece in slices_between(self.segments, start, end, ALL)
                for time in self._slice(piece)
            ]
            start = end

    def _slice(self, piece: Slice) -> list[int]:
        lane = self.rows[piece.segment.node, piece.segment.incarnation]
        return lane[piece.first - 1 : piece.last]


def test_nodes_advance_together_though_one_has_far_more_segments() -> None:
    boxes = Outboxes()
    for start in range(0, 1000, 10):
        boxes.archive("busy", range(start, start + 10))
    boxes.archive("calm", range(0, 1000, 100))
    seen = list(boxes.batches(110))
    assert [len(batch) for batch in seen] == [110] * 9 + [20]
    for batch, later in pairwise(seen):
        assert max(time for _, time in batch) <= min(time for _, time in later)


def test_only_segments_that_must_be_cut_are_looked_at() -> None:
    boxes = Outboxes()
    for start in range(0, 1000, 10):
        boxes.archive("n", range(start, start + 10))
    boxes.next({}, 505)
    assert set(boxes.looked_at) == {"node=n/a/501"}


def test_a_late_node_is_read_first_and_whole() -> None:
    boxes = Outboxes()
    boxes.archive("office", range(10_000, 10_100))
    read = boxes.next({}, None)
    boxes.archive("office", range(10_100, 10_200))
    boxes.archive("laptop", range(0, 50))
    after = boxes.next(read, 60)
    assert after == {"laptop": {"a": 50}, "office": {"a": 110}}


def test_a_crowded_millisecond_is_taken_in_parts() -> None:
    boxes = Outboxes()
    boxes.archive("x", [7] * 10)
    boxes.archive("y", [7] * 10)
    assert [len(batch) for batch in boxes.batches(6)] == [6, 6, 6, 2]


def test_a_clock_that_went_back_loses_no_row() -> None:
    boxes = Outboxes()
    boxes.archive("x", [100, 110])
    boxes.archive("x", [50, 60])
    boxes.archive("y", [55, 105])
    seen = [row for batch in boxes.batches(1) for row in batch]
    assert seen == [("y", 55), ("x", 100), ("y", 105), ("x", 110), ("x", 50), ("x", 60)]


def test_a_new_incarnation_is_a_lane_of_its_own() -> None:
    boxes = Outboxes()
    boxes.archive("x", [1, 2, 3], "a")
    boxes.archive("x", [4, 5], "b")
    assert boxes.next({}, None) == {"x": {"a": 3, "b": 2}}
    assert boxes.next({"x": {"a": 3}}, None) == {"x": {"a": 3, "b": 2}}


def test_nothing_new_is_the_same_offset() -> None:
    boxes = Outboxes()
    boxes.archive("x", [1, 2, 3])
    end = boxes.next({}, 10)
    assert boxes.next(end, 10) == end


def test_dates_and_nodes_select() -> None:
    boxes = Outboxes()
    day = 86_400_000
    boxes.archive("x", [0, 1])
    boxes.archive("x", [day, day + 1])
    boxes.archive("y", [day])
    second = Selection(frozenset("x"), since=date(1970, 1, 2))
    end = boxes.next({}, None, selection=second)
    assert end == {"x": {"a": 4}}
    assert [p.first for p in slices_between(boxes.segments, {}, end, second)] == [3]


def test_nobody_passes_a_node_that_is_awake() -> None:
    boxes = Outboxes()
    boxes.archive("x", [1000, 2000, 3000], at=5000)
    boxes.archive("y", [1500], at=5000)
    until = archived_frontier(boxes.segments, now=5100, patience=2000)
    assert boxes.next({}, 100, until) == {"x": {"a": 1}, "y": {"a": 1}}


@pytest.mark.parametrize(
    ("now", "patience"), [(9000, 2000), (5100, 1000)], ids=["silent", "far behind"]
)
def test_nobody_waits_for_ever(now: int, patience: int) -> None:
    boxes = Outboxes()
    boxes.archive("x", [1000, 2000, 3000], at=now)
    boxes.archive("y", [1500], at=5000)
    assert archived_frontier(boxes.segments, now=now, patience=patience) == 3000


def test_rows_that_were_let_go_are_an_error_and_not_a_gap() -> None:
    boxes = Outboxes()
    boxes.archive("x", [1, 2])
    boxes.archive("x", [3, 4])
    boxes.archive("x", [5, 6])
    kept = [boxes.segments[0], boxes.segments[2]]
    with pytest.raises(PipelineError, match="events 3 to 4 of node x"):
        slices_between(kept, {"x": {"a": 1}}, {"x": {"a": 6}}, ALL)
    with pytest.raises(PipelineError, match="events 5 to 6 of node x"):
        slices_between(boxes.segments[:2], {"x": {"a": 2}}, {"x": {"a": 6}}, ALL)


def test_an_outbox_may_begin_anywhere_before_it_was_read() -> None:
    boxes = Outboxes()
    boxes.archive("x", [1, 2])
    boxes.archive("x", [3, 4])
    assert [p.first for p in slices_between(boxes.segments[1:], {}, {"x": {"a": 4}}, ALL)] == [3]


def test_merged_segments_hold_the_same_rows() -> None:
    boxes, merged = Outboxes(), Outboxes()
    for start in range(0, 40, 10):
        boxes.archive("x", range(start, start + 10))
    merged.archive("x", range(40))
    after: Offsets = {"x": {"a": 7}}
    one, many = (slices_between(b.segments, after, {"x": {"a": 33}}, ALL) for b in (merged, boxes))
    assert [(p.first, p.last) for p in one] == [(8, 33)]
    assert sum(p.rows for p in many) == 26


@given(
    st.dictionaries(
        st.sampled_from("abc"),
        st.lists(st.lists(st.integers(0, 50), min_size=1, max_size=8), min_size=1, max_size=6),
        min_size=1,
    ),
    st.integers(1, 30),
)
def test_every_row_once_in_its_order_and_never_too_many(
    lanes: dict[str, list[list[int]]], budget: int
) -> None:
    boxes = Outboxes()
    for node, segments in lanes.items():
        for times in segments:
            boxes.archive(node, sorted(times))
    seen: Rows = {}
    for batch in boxes.batches(budget):
        assert 0 < len(batch) <= budget
        for node, time in batch:
            seen.setdefault((node, "a"), []).append(time)
    assert seen == boxes.rows


def _segment(rows: int, name: str = "x") -> SegmentFile:
    return make_segment(name, date(2026, 1, 1), "a", (1, rows), (0, 0), FileVersion(b"", 0, 0))


def test_a_large_segment_is_shared_at_row_groups() -> None:
    segment = _segment(8 * ROW_GROUP)
    shares = pack_slices([Slice(segment, 1, segment.last)], 4, 10**9)
    assert [sum(p.rows for p in share) for share in shares] == [2 * ROW_GROUP] * 4
    assert all((p.first - 1) % ROW_GROUP == 0 for share in shares for p in share)


def test_many_small_segments_share_a_task() -> None:
    slices = [Slice(_segment(1000, f"n{i}"), 1, 1000) for i in range(100)]
    shares = pack_slices(slices, 2, 10**9)
    assert [sum(p.rows for p in share) for share in shares] == [50_000, 50_000]


def test_no_share_is_larger_than_allowed_by_much() -> None:
    segment = _segment(100 * ROW_GROUP)
    shares = pack_slices([Slice(segment, 1, segment.last)], 2, 5 * ROW_GROUP)
    assert max(sum(p.rows for p in share) for share in shares) == 5 * ROW_GROUP


def test_nothing_to_read_is_no_share() -> None:
    assert pack_slices([], 4, 1000) == []


stretches = st.builds(
    lambda since, length, rows: RowEstimate(since, since + length, rows),
    st.integers(0, 10**13),
    st.integers(0, 10**9),
    st.integers(0, 10**6),
)


@given(st.lists(stretches, max_size=20), st.integers(1, 50))
def test_cuts_are_moments_in_order_between_the_first_row_and_the_last(
    known: list[RowEstimate], parts: int
) -> None:
    found = cut_times(known, parts)
    assert len(found) < parts
    assert found == sorted(set(found))
    for cut in found:
        assert min(s.since for s in known) <= cut <= max(s.until for s in known) + 1


def test_cuts_divide_rows_and_not_time() -> None:
    busy, quiet = RowEstimate(0, 999, 9000), RowEstimate(1000, 10_999, 1000)
    assert cut_times([busy, quiet], 2) == [555]
    # Two nodes at the same time are as one that writes twice as much.
    assert cut_times([busy, busy, quiet, quiet], 2) == [555]
    assert cut_times([RowEstimate(5, 5, 100)], 1) == []


def test_cuts_of_very_many_segments_are_found_at_once() -> None:
    known = [RowEstimate(7 * index, 7 * index + 100, 1) for index in range(100_000)]
    found = cut_times(known, 4)
    assert found == pytest.approx([175_050, 350_050, 525_050], abs=100)


def test_a_batch_ends_where_its_rows_cover_enough_time() -> None:
    boxes = Outboxes()
    for start in (0, 100, 200, 300):
        boxes.archive("x", [start, start + 10])
    boxes.archive("y", [5, 205])
    lanes = pending_lanes(boxes.segments, {}, ALL).values()
    assert moment_within(lanes, 310, 0, 0) is None
    # x covers 0 to 10, 100 to 110 and so on, y all from 5 to 205.
    assert moment_within(lanes, 215, 0, 0) == 299
    assert moment_within(lanes, 209, 0, 0) == 199
    assert moment_within(lanes, 204, 0, 0) == 4
    # A row also covers the time that its ids may reach back.
    assert moment_within(lanes, 265, 50, 0) == 299
    (only_x, _) = lanes
    assert moment_within([only_x], 20, 0, 0) == 199


@given(
    st.dictionaries(
        st.sampled_from("abc"),
        st.lists(st.lists(st.integers(0, 10_000), min_size=1, max_size=5), min_size=1, max_size=5),
        min_size=1,
    ),
    st.integers(1, 2_000),
)
def test_every_row_is_taken_though_a_batch_covers_little_time(
    lanes: dict[str, list[list[int]]], most: int
) -> None:
    boxes = Outboxes()
    for node, segments in lanes.items():
        for times in segments:
            boxes.archive(node, sorted(times))
    start: Offsets = {}
    taken = 0
    while pending := pending_lanes(boxes.segments, start, ALL):
        until = moment_within(pending.values(), most, 0, 0)
        end = advance_offsets(pending, start, times=boxes.times, until=until, span=most)
        slices = slices_between(boxes.segments, start, end, ALL)
        assert slices, "a batch is never empty"
        taken += sum(piece.rows for piece in slices)
        start = end
    assert taken == sum(map(len, boxes.rows.values()))


def test_the_rest_of_a_segment_that_goes_on_a_year_later_is_taken_next() -> None:
    boxes = Outboxes()
    boxes.archive("x", [0, 1, 400])
    boxes.archive("x", [400, 401])
    first = boxes.next({}, None, until=366)
    assert first == {"x": {"a": 2}}
    assert boxes.next(first, None, until=366) == first, "nothing passes that moment"
    lanes = pending_lanes(boxes.segments, first, ALL)
    for span, last in ((0, 4), (366, 5)):
        end = advance_offsets(lanes, first, times=boxes.times, until=366, span=span)
        assert end == {"x": {"a": last}}
