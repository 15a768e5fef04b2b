"""Every hub that is known to end tasks wrongly is found out by some seed."""

import pytest
from msgspec.structs import replace

from simulation.gateways import RunShape
from tests.simulation.catching import assert_mutant_is_caught
from tests.simulation.task_mutants import TASK_MUTANTS

SHAPE = RunShape(nodes=3, messages=10, agents=6, faults=10, over_ms=30_000, tasks=40)
SEEDS = 50
# The first seed that catches a mutant, where that is not the very first. Only for speed.
LIKELY = {
    "told_before_commit": 4,
    "claim_kept": 5,
    "lost_session_launched_again": 4,
    "skills_without_bound": 3,
    "skills_counted_together": 3,
}
SHAPES = {
    "lost_gateway_kept": replace(SHAPE, kinds=["lost_gateway", "drop"]),
    "restored_executor_kept": replace(SHAPE, kinds=["restore", "drop"]),
    "removed_agent_stops_the_sweep": replace(SHAPE, kinds=["removed_agent"]),
    "handed_over_task_forgotten": replace(SHAPE, kinds=["round_trip", "crash", "drop"]),
    "told_before_commit": replace(SHAPE, kinds=["crash"]),
    "claim_kept": replace(SHAPE, kinds=["crash"]),
    "lost_session_launched_again": replace(SHAPE, kinds=["crash"]),
    "expired_request_has_failed": replace(SHAPE, kinds=["way_back"]),
    "refused_skill_asked_for_ever": replace(SHAPE, kinds=["skill_flood"]),
    "skills_without_bound": replace(SHAPE, kinds=["capability_flood"]),
    "skills_counted_together": replace(SHAPE, kinds=["capability_flood"]),
    "flood_served_first": replace(SHAPE, kinds=["task_flood"]),
    "oldest_task_next": replace(SHAPE, kinds=["task_flood"]),
    "late_result_ignored": replace(SHAPE, kinds=["way_back"]),
    "lost_reports_not_asked_for": replace(SHAPE, kinds=["pruned_reports"]),
}


@pytest.mark.parametrize("name", TASK_MUTANTS)
def test_a_task_mutant_is_caught(name: str) -> None:
    shape = SHAPES.get(name, SHAPE)
    assert_mutant_is_caught(name, TASK_MUTANTS[name], shape, SEEDS, LIKELY.get(name, 0))
