"""Whose clock is wrong, as a node concludes from the clocks that it hears."""

import pytest

from gatepost.mesh.clock_comparison import compare_clocks, describe_gap

HOUR = 3660


def wrong(offsets: dict[str, int], voters: str = "abcde") -> dict[str, tuple[int, int, int]]:
    found = compare_clocks(offsets, voters, 5)
    return {
        each.node: (each.offset_secs, each.differs_from, each.compared_with)
        for each in found
        if each.is_wrong
    }


def test_the_clock_that_differs_from_most_is_wrong_whoever_compares() -> None:
    seen_by_a = {"a": 0, "b": -HOUR, "c": -HOUR - 1}
    assert wrong(seen_by_a) == {"a": (HOUR, 2, 2)}
    assert wrong({"a": HOUR, "b": 0, "c": 0}) == {"a": (HOUR, 2, 2)}


def test_two_wrong_clocks_of_five_are_both_found_whether_they_agree_or_not() -> None:
    good = dict.fromkeys("abc", 0)
    assert wrong(good | {"d": HOUR, "e": HOUR}) == {"d": (HOUR, 3, 4), "e": (HOUR, 3, 4)}
    assert wrong(good | {"d": HOUR, "e": -60}) == {"d": (HOUR, 4, 4), "e": (-60, 4, 4)}


def test_one_liar_makes_no_clock_wrong_but_its_own() -> None:
    assert wrong({"a": 0, "b": 0, "liar": HOUR}, "ab") == {"liar": (HOUR, 2, 2)}
    assert wrong({"a": 0, "b": HOUR}) == {}
    found = compare_clocks({"a": 0, "b": HOUR}, "ab", 5)
    assert [(each.node, each.is_wrong) for each in found] == [("a", False), ("b", False)]


def test_nodes_that_may_not_lead_have_no_vote() -> None:
    offsets = {"a": 0, **{f"edge{n}": HOUR for n in range(9)}}
    assert set(wrong(offsets, "a")) == {f"edge{n}" for n in range(9)}


def test_clocks_within_the_tolerance_are_right() -> None:
    assert compare_clocks({"a": 0, "b": 5, "c": 1}, "ab", 5) == ()


def test_a_finding_says_what_to_do() -> None:
    (found,) = compare_clocks({"lab": HOUR, "a": 0, "b": 0, "c": 0, "d": HOUR + 3}, "abcd", 5)[:1]
    assert (
        found.describe()
        == "clock of d is 61 min ahead of 3 of 3 peers: set its clock (timedatectl)"
    )
    (_, behind) = compare_clocks({"a": 0, "b": -7}, "ab", 5)
    assert behind.describe() == (
        "clock of b is 7 s behind 1 of 1 peers: one of these clocks is wrong, so set it"
        " (timedatectl)"
    )


@pytest.mark.parametrize(
    ("secs", "text"),
    [(7, "7 s"), (3660, "61 min"), (2 * 3600, "2 h"), (86_400, "24 h"), (3 * 86_400, "3 days")],
)
def test_a_gap_has_the_unit_that_a_person_reads(secs: int, text: str) -> None:
    assert describe_gap(secs) == text
