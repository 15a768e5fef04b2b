"""A checker is worth what it catches: every known-bad gateway is found out by some seed."""

import logging
from collections.abc import Iterator

import pytest

from gatepost.testing.simulation import RunShape, simulate
from tests.simulation.mutants import MUTANTS

SHAPE = RunShape(messages=200)
SEEDS = 50


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Mutants fail in ways the writer rightly complains about."""
    writer = logging.getLogger("gatepost.journal.writer")
    writer.propagate = False
    yield
    writer.propagate = True


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_caught(name: str) -> None:
    for seed in range(SEEDS):
        with MUTANTS[name]():
            result = simulate(seed, SHAPE)
        if not result.verdict.ok:
            return
    pytest.fail(f"{name} passed {SEEDS} seeds unnoticed")
