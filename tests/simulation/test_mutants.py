"""A checker is worth what it catches: every known-bad gateway is found out by some seed."""

import pytest

from gatepost.testing.simulation import RunShape, simulate
from tests.conftest import FULL
from tests.simulation.catching import find_catching_seed
from tests.simulation.mutants import MUTANTS

SHAPE = RunShape(messages=200)
SEEDS = 50
# The first seed that catches a mutant, where that is not the very first. Only for speed.
LIKELY = {
    "cursor_before_batch": 4,
    "no_pair_order": 2,
    "receipts_from_anyone": 4,
    "accepted_work_rerouted": 6,
    "held_forgotten": 3,
    "omissions_unnoticed": 4,
    "restore_unnoticed": 6,
    "gap_left_open": 4,
    "late_receipt_reopens": 2,
    "pair_never_closed": 5,
    "moved_pair_not_held": 2,
    "returned_mail_renumbered": 29,
    "pairs_unclosed_after_restore": 6,
    "revoked_owner_waited_for": 32,
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_caught(name: str) -> None:
    seed = find_catching_seed(MUTANTS[name], SHAPE, SEEDS, LIKELY.get(name, 0))
    assert seed is not None, f"{name} passed {SEEDS} seeds unnoticed"
    if FULL:
        honest = simulate(seed, SHAPE).verdict
        assert honest.ok, f"it is not the mutant that breaks seed {seed}: {honest}"
