"""Every link that is known to be bad is found out by some seed."""

import logging
from collections.abc import Iterator

import pytest

from gatepost.testing.simulation import RunShape, simulate
from tests.simulation.link_mutants import LINK_MUTANTS

SEEDS = 30


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Mutants fail in ways the writer rightly complains about."""
    writer = logging.getLogger("gatepost.journal.writer")
    writer.propagate = False
    yield
    writer.propagate = True


@pytest.mark.parametrize("name", LINK_MUTANTS)
def test_a_link_mutant_is_caught(name: str) -> None:
    mutant, kinds = LINK_MUTANTS[name]
    shape = RunShape(messages=150, kinds=kinds)
    for seed in range(SEEDS):
        with mutant():
            result = simulate(seed, shape)
        if not result.verdict.ok:
            honest = simulate(seed, shape).verdict
            assert honest.ok, f"it is not the mutant that breaks seed {seed}: {honest}"
            return
    pytest.fail(f"{name} passed {SEEDS} seeds unnoticed")
