"""Drivers are killed in the middle of their work; whoever comes next makes the tables exact."""

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gatepost.pipeline.jobs.run import Pipeline
from tests.pipeline.crashing import Program
from tests.pipeline.worlds import World

pytestmark = pytest.mark.timeout(1800)

TABLES_A_BATCH = 9


def commits(tables: Path) -> int:
    """To all tables together."""
    return len(list(tables.glob("*/_delta_log/*.json")))


@pytest.mark.parametrize("what", ["run", "stream"])
def test_a_driver_is_killed_and_the_tables_are_exact(
    world: World, tmp_path: Path, count: Callable[[int, int], int], what: str
) -> None:
    rounds = count(1, 10)
    tables, max_rows = tmp_path / "tables", world.truth.events // (2 * rounds) + 1
    program = "tests.pipeline.pipeline_job"
    job = Program(tmp_path, program, what, world.archive, tables, max_rows, "local[2]")
    for _ in range(rounds):
        with job.running() as process:
            wanted = commits(tables) + random.randint(1, TABLES_A_BATCH)
            job.wait_until(lambda wanted=wanted: commits(tables) >= wanted, process)  # type: ignore[misc]
            time.sleep(random.uniform(0, 0.3))
    pipeline = Pipeline(world.spark, world.archive, str(tables))
    if what == "stream":
        assert pipeline.stream(f"{tables}/_checkpoint").awaitTermination(600)
    assert (pipeline.run().events > 0) == (what == "run"), "killed too late to prove anything"
    world.assert_same(str(tables))
