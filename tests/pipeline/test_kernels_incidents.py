"""Incidents from a handful of cases."""

import hashlib
from typing import Any

import pytest

from gatepost.pipeline.kernels.groups import CodedColumns
from gatepost.pipeline.kernels.incidents import describe_aside, find_incidents
from gatepost.pipeline.objectives import Objectives
from gatepost.pipeline.read_plan import SetAside
from gatepost.pipeline.tables.arrow_schemas import rows_to_table
from gatepost.pipeline.tables.schemas import ACTIVITY, CASES

T = 1_772_490_600_000
MINUTE = 60_000
HOUR = 60 * MINUTE
WINDOW = Objectives().window_ms
LATER = T + 600 * MINUTE
Row = dict[str, Any]


def case(at: int, **fields: Any) -> Row:
    known = {"node": "a", "to_node": "b", "to_agent": "bob", "corr_id": f"c{at:09d}"}
    return known | {"sent_at": T + at} | fields


def dead(at: int, reason: str = "expired") -> Row:
    return case(at, dead_at=T + at, ended_at=T + at, reason=reason)


def taken(at: int, accepted: int, ended: int | None = None) -> Row:
    return case(at, accepted_at=T + accepted, ended_at=None if ended is None else T + ended)


def alive(node: str, *minutes: int) -> list[Row]:
    return [
        {"node": node, "window_start": at // WINDOW * WINDOW, "first_at": at, "last_at": at}
        for at in (T + minute * MINUTE for minute in minutes)
    ]


def found(cases: list[Row], activity: list[Row] | None = None, as_of: int = LATER) -> list[Row]:
    known, there = (
        CodedColumns(rows_to_table(CASES, cases)),
        CodedColumns(rows_to_table(ACTIVITY, activity or [])),
    )
    rows = find_incidents(known, there, as_of, Objectives()).to_pylist()
    return sorted(rows, key=lambda row: (row["class"], row["started_at"]))


def test_of_nothing_nothing_is_made() -> None:
    assert found([]) == []


@pytest.mark.parametrize(("many", "apart", "burst"), [(10, 1000, 1), (9, 1000, 0), (10, 40_000, 0)])
def test_a_burst_is_many_in_little_time(many: int, apart: int, burst: int) -> None:
    rows = found([dead(number * apart) for number in range(many)])
    assert [row["class"] for row in rows] == ["dead_letter_burst"] * burst
    for row in rows:
        assert (row["node"], row["agent"], row["count"]) == ("a", "bob", many)
        assert (row["started_at"], row["ended_at"]) == (T, T + (many - 1) * apart)
        # The first five, in order.
        assert row["samples"] == [f"c{number * apart:09d}" for number in range(5)]
        assert row["sentence"] == f"a gave up on {many} deliveries to bob"
        said = f"dead_letter_burst\x1fa\x1fbob\x1f\x1f{T}"
        assert row["incident_id"] == hashlib.sha256(said.encode()).hexdigest()[:32]


def test_what_has_nowhere_to_go_is_a_miss_each_time_it_begins_again() -> None:
    misses = [dead(at, "no_route") for at in (0, WINDOW, 3 * WINDOW + 1)]
    assert [(row["class"], row["count"]) for row in found(misses)] == [
        ("routing_miss", 2),
        ("routing_miss", 1),
    ]


def test_what_is_slow_is_a_breach_that_lasts_until_all_of_it_is_done() -> None:
    slow = [taken(0, 1, 700_000), taken(10, 11, 800_000), taken(20, 21, 30)]
    (row,) = found(slow)
    assert (row["class"], row["node"], row["agent"], row["count"]) == ("sla_breach", "b", "bob", 2)
    assert (row["started_at"], row["ended_at"]) == (T + 1, T + 800_000)
    (row,) = found([*slow, taken(30, 31)])
    assert (row["count"], row["ended_at"]) == (3, None)
    # Not yet.
    assert found([taken(30, 31)], as_of=T + 600_031) == []


def test_a_node_is_silent_if_mail_waited_for_it() -> None:
    there = alive("b", 0, 60)
    (row,) = found([taken(5 * MINUTE, 60 * MINUTE, 60 * MINUTE)], there, T + 61 * MINUTE)
    assert (row["class"], row["node"], row["agent"], row["count"]) == ("silent_node", "b", None, 1)
    assert (row["started_at"], row["ended_at"]) == (T, T + 60 * MINUTE)
    # Nobody missed it, or it was not long, or it was somebody else.
    assert found([taken(61 * MINUTE, 70 * MINUTE, 70 * MINUTE)], there, T + 61 * MINUTE) == []
    assert found([taken(MINUTE, 5 * MINUTE, 5 * MINUTE)], alive("b", 0, 10), T) == []
    assert found([taken(5 * MINUTE, 60 * MINUTE, 60 * MINUTE)], alive("c", 0, 60), T) == []


def test_who_never_came_back_is_silent_still() -> None:
    (row,) = found([case(MINUTE)], alive("b", 0) + alive("a", 0, 30), T + 30 * MINUTE)
    assert (row["node"], row["ended_at"]) == ("b", None)


def growing(agent: str, windows: int) -> list[Row]:
    """Five more wait in every window; all of it is taken much later."""
    done = T + 300 * MINUTE
    return [
        case(number * MINUTE, to_agent=agent, accepted_at=done, ended_at=done)
        for number in range(windows * 5)
    ]


@pytest.mark.parametrize(("windows", "made"), [(3, 1), (2, 0)])
def test_a_backlog_grows_for_more_than_ten_minutes(windows: int, made: int) -> None:
    start = -(T % WINDOW)
    rows = found([row | {"sent_at": row["sent_at"] + start} for row in growing("bob", windows)])
    assert [(row["class"], row["agent"], row["count"]) for row in rows] == [
        ("backlog", "bob", windows * 5)
    ] * made


def test_what_piles_up_twice_is_two_though_one_delivery_waits_all_along() -> None:
    start = T - T % WINDOW
    forever = case(0) | {"sent_at": start - 1}
    first, second = start, start + 120 * MINUTE
    piles = [
        case(0, sent_at=since + number * MINUTE, accepted_at=since + 60 * MINUTE, ended_at=LATER)
        for since in (first, second)
        for number in range(15)
    ]
    rows = [row for row in found([forever, *piles]) if row["class"] == "backlog"]
    assert [row["count"] for row in rows] == [16, 16]
    assert len({row["incident_id"] for row in rows}) == 2


def test_where_a_whole_node_is_silent_its_backlogs_are_one() -> None:
    waiting = growing("bob", 6) + growing("bea", 6)
    rows = found(waiting, alive("b", -1, 300), T + 301 * MINUTE)
    assert [(row["class"], row["node"], row["agent"]) for row in rows] == [
        ("backlog", "b", None),
        ("silent_node", "b", None),
    ]
    apart = found(waiting, alive("b", *range(-1, 301)), T + 301 * MINUTE)
    assert sorted(row["agent"] for row in apart) == ["bea", "bob"]


def skewed(node: str, to_node: str, ms: int) -> Row:
    """A message that was accepted before it was sent."""
    return case(0, node=node, to_node=to_node, accepted_at=T - ms, ended_at=T - ms)


def test_a_clock_that_differs_from_most_others_is_named() -> None:
    ahead = found([skewed("x", other, 90_000) for other in "abc"])
    assert [(row["class"], row["node"], row["count"]) for row in ahead] == [("clock_skew", "x", 3)]
    assert "the clock of x is ahead of others by up to 90 s" in ahead[0]["sentence"]
    behind = found([skewed(other, "x", 90_000) for other in "abc"])
    assert [(row["node"], "is behind" in row["sentence"]) for row in behind] == [("x", True)]
    assert found([skewed("a", "b", 29_000)]) == []


@pytest.mark.parametrize("since", [0, WINDOW, WINDOW + 1])
def test_what_is_known_by_single_moments_lasts_for_a_window_after_the_last_one(since: int) -> None:
    """A burst of dead letters, a routing miss, a wrong clock, events of impossible ids."""
    last = T + 9 * 1000
    burst = [dead(number * 1000) for number in range(10)]
    miss = [dead(9 * 1000, "no_route")]
    clock = [skewed("x", other, 90_000) | {"sent_at": last} for other in "abc"]
    odd = SetAside("x", "an id was drawn too long before its event", last, "a1", 1, 9, 2)
    as_of = last + since
    rows = [row for cases in (burst, miss, clock) for row in found(cases, as_of=as_of)]
    rows += describe_aside([odd], as_of, Objectives()).to_pylist()
    assert {row["class"] for row in rows} == {
        *("dead_letter_burst", "routing_miss", "clock_skew", "bad_archive"),
    }
    assert {row["ended_at"] for row in rows} == {last if since > WINDOW else None}


def test_what_is_set_aside_lasts_until_it_is_right_again() -> None:
    broken = SetAside("x", "the file is missing", T, "a1", 1, 9)
    repaired = SetAside("x", "the file is missing", T, "a1", 1, 9, ended=T + HOUR)
    rows = describe_aside([broken, repaired], LATER, Objectives()).to_pylist()
    assert [(row["ended_at"], row["count"]) for row in rows] == [(None, 9), (T + HOUR, 9)]
    assert len({row["incident_id"] for row in rows}) == 1
