"""On a real cluster the same job gives the same table, even if executors are killed under it."""

from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.pipeline.crashing import ROWS, Job, archived, kill_executors, make_archive


@pytest.mark.full
@pytest.mark.timeout(900)
def test_executors_killed_on_a_cluster_change_nothing(
    tmp_path: Path, master: str, count: Callable[[int, int], int]
) -> None:
    make_archive(tmp_path)
    rounds = count(1, 10)
    job = Job(tmp_path, max_rows=2 * ROWS // (8 * rounds), master=master)
    killed = kill_executors(job, job.gate, rounds, most=2)
    assert killed >= rounds
    assert job.rows() == archived(tmp_path)
    homes = DeltaTable(f"{job.table}.homes").to_pyarrow_table()["home"].to_pylist()
    # The workers' own installation was not used: the package travelled.
    assert len(homes) == 2
    assert all("gatepost.zip" in home for home in homes), homes
