"""A checker is worth what it catches: every known-bad gateway is found out by some seed."""

import pytest
from msgspec.structs import replace

from simulation.gateways import RunShape
from tests.simulation.catching import assert_mutant_is_caught
from tests.simulation.mutants import MUTANTS

SHAPE = RunShape(messages=200)
# Few gateways, so that sender and receiver of a pair both move while mail is under way.
ROUND_TRIPS = RunShape(
    nodes=3, messages=60, agents=6, faults=10, over_ms=30_000, kinds=["round_trip"]
)
# Links that end again and again while long backlogs of few pairs are read.
BROKEN_BACKLOGS = RunShape(
    nodes=3, messages=200, agents=3, faults=60, over_ms=10_000, kinds=["drop", "partition"]
)
AWAY = replace(SHAPE, kinds=["partition", "crash"])
SEEDS = 50
# The first seed that catches a mutant, where that is not the very first. Only for speed.
LIKELY = {
    "receipt_before_commit": 8,
    "receipts_from_anyone": 10,
    "former_owners_accused": 6,
    "accepted_work_rerouted": 2,
    "held_forgotten": 3,
    "no_pair_order": 1,
    "restore_unnoticed": 6,
    "gap_left_open": 1,
    "late_receipt_ignored": 2,
    "pair_never_closed": 5,
    "moved_pair_not_held": 2,
    "confirmed_out_of_turn": 10,
    "returned_mail_renumbered": 23,
    "origin_forgotten": 1,
    "forwarded_mail_overtaken": 5,
    "pairs_unclosed_after_restore": 6,
    "revoked_owner_waited_for": 7,
}
# Where a mutant is rare among all kinds of faults.
SHAPES = {
    # Owners that are away while their messages expire or are routed again.
    "given_up_engaged": AWAY,
    "accepted_work_rerouted": AWAY,
    "returned_mail_renumbered": replace(SHAPE, kinds=["round_trip", "crash"]),
    "confirmed_out_of_turn": BROKEN_BACKLOGS,
    "forwarded_mail_overtaken": ROUND_TRIPS,
    "origin_forgotten": ROUND_TRIPS,
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_caught(name: str) -> None:
    shape = SHAPES.get(name, SHAPE)
    assert_mutant_is_caught(name, MUTANTS[name], shape, SEEDS, LIKELY.get(name, 0))
