"""Every link that is known to be bad is found out by some seed."""

import pytest

from simulation.gateways import RunShape
from tests.simulation.catching import assert_mutant_is_caught
from tests.simulation.link_mutants import LINK_MUTANTS

SEEDS = 30
# The first seed that catches a mutant, where that is not the very first. Only for speed.
LIKELY = {"relay_incarnations_not_checked": 5}


@pytest.mark.parametrize("name", LINK_MUTANTS)
def test_a_link_mutant_is_caught(name: str) -> None:
    mutant, kinds = LINK_MUTANTS[name]
    shape = RunShape(messages=150, kinds=kinds)
    assert_mutant_is_caught(name, mutant, shape, SEEDS, LIKELY.get(name, 0))
