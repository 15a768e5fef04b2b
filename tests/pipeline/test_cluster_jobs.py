"""On a real cluster the jobs make the same tables, even if executors are killed under them."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.pipeline.crashing import PATIENCE, Program, wait_a_moment
from tests.pipeline.test_cluster import executors
from tests.pipeline.test_jobs_kill import TABLES_A_BATCH, commits
from tests.pipeline.worlds import World

pytestmark = pytest.mark.timeout(1800)


def test_executors_killed_under_a_job_change_nothing(
    world: World, tmp_path: Path, master: str, count: Callable[[int, int], int]
) -> None:
    rounds = count(1, 10)
    tables, max_rows = tmp_path / "tables", world.truth.events // rounds + 1
    job = Program(
        tmp_path, "tests.pipeline.pipeline_job", "run", world.archive, tables, max_rows, master
    )
    killed = 0
    with job.running() as process:
        for _ in range(rounds):
            wanted = commits(tables) + random.randint(1, TABLES_A_BATCH // 2)
            job.wait_until(lambda wanted=wanted: commits(tables) >= wanted, process)  # type: ignore[misc]
            wait_a_moment()
            for executor in executors():
                executor.kill()
                killed += 1
        assert process.wait(PATIENCE) == 0, job.log()
    assert killed >= rounds
    world.assert_same(str(tables))
