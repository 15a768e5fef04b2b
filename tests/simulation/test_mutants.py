"""A checker is worth what it catches: every known-bad gateway is found out by some seed."""

import pytest

from gatepost.testing.simulation import RunShape
from tests.simulation.catching import find_catching_seed
from tests.simulation.mutants import MUTANTS

SHAPE = RunShape(messages=200)
SEEDS = 50
# The first seed that catches a mutant, where that is not the very first. Only for speed.
LIKELY = {
    "receipt_before_commit": 4,
    "cursor_before_batch": 1,
    "no_pair_order": 9,
    "omissions_unnoticed": 1,
    "restore_unnoticed": 3,
    "gap_left_open": 5,
    "late_receipt_reopens": 3,
    "pair_never_closed": 18,
    "moved_pair_not_held": 18,
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_caught(name: str) -> None:
    seed = find_catching_seed(MUTANTS[name], SHAPE, SEEDS, LIKELY.get(name, 0))
    assert seed is not None, f"{name} passed {SEEDS} seeds unnoticed"
