"""Elections on virtual time: every seed keeps the rules, and every mutant is found."""

from collections.abc import Callable

import pytest

from simulation.elections import SimulatedMeshNode, draw_plan, simulate_mesh
from tests.simulation.mesh_mutants import MUTANTS

# Each part is one test, so that several processes share the seeds.
_PARTS = 16


@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", range(_PARTS))
def test_after_healing_one_publisher_leads_and_no_term_has_two(
    part: int, count: Callable[[int, int], int]
) -> None:
    for seed in range(part, count(120, 5000), _PARTS):
        result = simulate_mesh(seed)
        assert not result.faults, f"seed {seed}, {result.nodes} nodes: {result.faults}"


@pytest.mark.timeout(600)
def test_fifty_nodes_elect_one(count: Callable[[int, int], int]) -> None:
    for seed in range(count(1, 20)):
        result = simulate_mesh(seed + 1, plan=draw_plan(seed + 1, size=50))
        assert not result.faults, f"seed {seed + 1}: {result.faults}"


@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_simulation_finds_every_mutant(mutant: type[SimulatedMeshNode]) -> None:
    assert any(simulate_mesh(seed, mutant).faults for seed in range(300)), mutant.__doc__
