"""On a real cluster the jobs make the same tables, even if executors are killed under them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.pipeline.commit_gate import CommitGate
from tests.pipeline.crashing import Program, kill_executors
from tests.pipeline.test_jobs_kill import TABLES_A_BATCH
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
    killed = kill_executors(job, CommitGate(tables), rounds, TABLES_A_BATCH // 2)
    assert killed >= rounds
    world.assert_same(str(tables))
