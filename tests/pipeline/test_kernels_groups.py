"""Groups of rows against the same in plain Python."""

import math
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatepost.pipeline.kernels import groups as module
from gatepost.pipeline.kernels.columns import ABSENT
from gatepost.pipeline.kernels.groups import Groups, SortedGroups, earliest_known

small = st.integers(-1, 3)
wide = st.one_of(small, st.sampled_from([ABSENT, 2**62, -(2**40)]))
rows = st.lists(st.tuples(small, wide, st.one_of(st.none(), st.integers(-50, 50))), max_size=30)


def columns(rows: list[tuple[int, int, int | None]]) -> list[np.ndarray]:
    return [
        np.array([ABSENT if row[place] is None else row[place] for row in rows], np.int64)
        for place in range(3)
    ]


def grouped(rows: list[tuple[int, int, int | None]]) -> dict[tuple[int, int], list[int]]:
    found: dict[tuple[int, int], list[int]] = defaultdict(list)
    for one, other, value in rows:
        found[one, other] += [] if value is None else [value]
    return found


@given(rows)
def test_rows_that_are_alike_are_counted_and_summed(
    rows: list[tuple[int, int, int | None]],
) -> None:
    one, other, value = columns(rows)
    groups = Groups.group_equal(one, other)
    keys = list(
        zip(groups.first_values(one).tolist(), groups.first_values(other).tolist(), strict=True)
    )
    expected = grouped(rows)
    # In the order of their keys, each once.
    assert keys == sorted(expected)
    assert dict(zip(keys, groups.sum_values(value).tolist(), strict=True)) == {
        key: sum(values) for key, values in expected.items()
    }
    least = dict(zip(keys, groups.min_values(value).tolist(), strict=True))
    most = dict(zip(keys, groups.max_values(value).tolist(), strict=True))
    for key, values in expected.items():
        assert (least[key], most[key]) == (min(values, default=ABSENT), max(values, default=ABSENT))
    assert sum(groups.sizes) == len(rows)
    assert [keys[of] for of in groups.group_numbers.tolist()] == [row[:2] for row in rows]
    assert sorted(np.concatenate([*groups.each_group(), []]).tolist()) == list(range(len(rows)))


@given(rows, st.sampled_from([0.5, 0.95, 0.99]))
def test_percentiles_are_exact(rows: list[tuple[int, int, int | None]], share: float) -> None:
    one, other, value = columns(rows)
    groups = Groups.group_equal(one, other)
    found = SortedGroups.from_groups(groups, value).percentile(share).tolist()
    for key, percentile in zip(sorted(grouped(rows)), found, strict=True):
        values = sorted(grouped(rows)[key])
        expected = values[math.ceil(len(values) * share) - 1] if values else ABSENT
        assert percentile == expected


def test_among_the_smallest_only() -> None:
    groups = Groups.group_equal(np.array([7, 7, 7, 9]))
    times = SortedGroups.from_groups(groups, np.array([30, 10, 20, 5]))
    assert times.percentile(0.95, np.array([2, 0])).tolist() == [20, ABSENT]


@given(st.lists(st.tuples(small, st.integers(0, 40)), max_size=30), st.integers(0, 10))
def test_a_run_ends_where_a_gap_is_too_long(rows: list[tuple[int, int]], gap: int) -> None:
    key, at = (np.array([row[place] for row in rows], np.int64) for place in range(2))
    found = [
        sorted(rows[row] for row in run.tolist())
        for run in Groups.group_runs(at, gap, key).each_group()
    ]
    expected: list[list[tuple[int, int]]] = []
    for row in sorted(rows):
        near = expected and expected[-1][-1][0] == row[0] and row[1] - expected[-1][-1][1] <= gap
        expected[-1].append(row) if near else expected.append([row])
    assert found == expected


@given(rows)
def test_keys_of_very_many_values_do_not_overflow(rows: list[tuple[int, int, int | None]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_MOST", 1)
        packed = Groups.group_equal(*columns(rows))
    free = Groups.group_equal(*columns(rows))
    assert packed.order.tolist() == free.order.tolist()
    assert packed.starts.tolist() == free.starts.tolist()


def test_samples_are_the_first_few_of_each_group() -> None:
    groups = Groups.group_equal(np.array([1, 0, 1, 1]))
    found = groups.sample_rows(2, np.array([5, 5, 4, 5]), np.array([2, 0, 0, 1]))
    assert [some.tolist() for some in found] == [[1], [2, 3]]


def test_the_earlier_is_the_one_there_is() -> None:
    one, other = np.array([1, ABSENT, 3, ABSENT]), np.array([2, 2, ABSENT, ABSENT])
    assert earliest_known(one, other).tolist() == [1, 2, 3, ABSENT]
