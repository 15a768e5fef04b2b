"""Every hub that is known to end tasks wrongly is found out by some seed."""

import pytest
from msgspec.structs import replace

from gatepost.testing.simulation import RunShape
from tests.simulation.catching import assert_mutant_is_caught
from tests.simulation.task_mutants import TASK_MUTANTS

SHAPE = RunShape(nodes=3, messages=10, agents=6, faults=10, over_ms=30_000, tasks=40)
SEEDS = 50
# The first seed that catches a mutant, where that is not the very first. Only for speed.
LIKELY = {"told_before_commit": 4, "claim_kept": 5, "lost_session_launched_again": 4}
SHAPES = {
    "lost_gateway_kept": replace(SHAPE, kinds=["lost_gateway", "drop"]),
    "restored_executor_kept": replace(SHAPE, kinds=["restore", "drop"]),
    "handed_over_task_forgotten": replace(SHAPE, kinds=["round_trip", "crash", "drop"]),
    "told_before_commit": replace(SHAPE, kinds=["crash"]),
    "claim_kept": replace(SHAPE, kinds=["crash"]),
    "lost_session_launched_again": replace(SHAPE, kinds=["crash"]),
}


@pytest.mark.parametrize("name", TASK_MUTANTS)
def test_a_task_mutant_is_caught(name: str) -> None:
    shape = SHAPES.get(name, SHAPE)
    assert_mutant_is_caught(name, TASK_MUTANTS[name], shape, SEEDS, LIKELY.get(name, 0))
