"""Shares of places: however many sources take all they can, some are left."""

import pytest

from gatepost.fair_share import has_share, operator_places


@pytest.mark.parametrize("sources", [1, 2, 5, 10])
def test_each_source_that_takes_all_it_can_leaves_two_thirds_of_the_rest(sources: int) -> None:
    free = 6000
    for _ in range(sources):
        held = 0
        while has_share(held, free):
            held, free = held + 1, free - 1
    assert free == pytest.approx(6000 * (2 / 3) ** sources, abs=sources)


def test_the_last_place_is_for_a_source_that_has_none() -> None:
    assert has_share(0, 1)
    assert not has_share(1, 1)
    assert not has_share(0, 0)


def test_the_operator_has_one_place_in_sixteen() -> None:
    assert [operator_places(n) for n in (0, 15, 16, 1000)] == [0, 0, 1, 62]
