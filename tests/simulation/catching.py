"""Running a simulation with a mutant, until the checker catches it."""

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from simulation.gateways import RunShape, simulate
from tests.conftest import FULL


def find_catching_seed(
    mutant: Callable[[], AbstractContextManager[Any]], shape: RunShape, seeds: int, likely: int
) -> int | None:
    """Return a seed that catches the mutant. A reduced run begins with the `likely` one."""
    order = range(seeds) if FULL else [likely, *range(seeds)]
    with _silent_writer():
        for seed in order:
            with mutant():
                verdict = simulate(seed, shape).verdict
            if not verdict.ok:
                return seed
    return None


def assert_mutant_is_caught(
    name: str,
    mutant: Callable[[], AbstractContextManager[Any]],
    shape: RunShape,
    seeds: int,
    likely: int,
) -> None:
    """Some seed catches the mutant, and in a full run only because of it."""
    seed = find_catching_seed(mutant, shape, seeds, likely)
    assert seed is not None, f"{name} passed {seeds} seeds unnoticed"
    if FULL:
        honest = simulate(seed, shape).verdict
        assert honest.ok, f"it is not the mutant that breaks seed {seed}: {honest}"


@contextmanager
def _silent_writer() -> Iterator[None]:
    """Mutants fail in ways the writer rightly complains about."""
    writer = logging.getLogger("gatepost.journal.writer")
    writer.propagate = False
    try:
        yield
    finally:
        writer.propagate = True
