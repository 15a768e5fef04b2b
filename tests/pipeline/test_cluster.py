"""On a real cluster the same job gives the same table, even if executors are killed under it."""

import random
from collections.abc import Callable
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest
from deltalake import DeltaTable

from tests.pipeline.crashing import PATIENCE, ROWS, Job, archived, make_archive, wait_a_moment


def executors() -> list[psutil.Process]:
    return [p for p in psutil.Process().children(recursive=True) if _is_executor(p)]


def _is_executor(process: psutil.Process) -> bool:
    try:
        return "CoarseGrainedExecutorBackend" in " ".join(process.cmdline())
    except psutil.Error:
        return False  # it ended while we looked


@pytest.mark.full
@pytest.mark.timeout(900)
def test_executors_killed_on_a_cluster_change_nothing(
    tmp_path: Path, master: str, count: Callable[[int, int], int]
) -> None:
    make_archive(tmp_path)
    rounds = count(1, 10)
    job = Job(tmp_path, max_rows=2 * ROWS // (8 * rounds), master=master)
    killed = 0
    with job.running() as process:
        for _ in range(rounds):
            job.wait_for_commits(job.commits() + random.randint(1, 2), process)
            wait_a_moment()
            for executor in executors():
                executor.kill()
                killed += 1
        assert process.wait(PATIENCE) == 0
    assert killed >= rounds
    assert job.rows() == archived(tmp_path)
    homes = DeltaTable(f"{job.table}.homes").to_pyarrow_table()["home"].to_pylist()
    # The workers' own installation was not used: the package travelled.
    assert len(homes) == 2
    assert all("gatepost.zip" in home for home in homes), homes
