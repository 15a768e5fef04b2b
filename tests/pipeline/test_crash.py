"""A driver is killed in mid-stream; the table has every row once."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.pipeline.crashing import ROWS, Job, archived, make_archive


@pytest.mark.full
@pytest.mark.timeout(900)
def test_a_driver_killed_in_mid_stream_goes_on_exactly_where_it_was(
    tmp_path: Path, count: Callable[[int, int], int]
) -> None:
    make_archive(tmp_path)
    rounds = count(1, 10)
    job = Job(tmp_path, max_rows=2 * ROWS // (10 * rounds))
    for _ in range(rounds):
        job.kill_between(job.gate, most=3)
    assert job.gate.count_commits() < 10 * rounds, "killed too late to prove anything"
    job.finish()
    assert job.rows() == archived(tmp_path)
    assert len(job.rows()) == 2 * ROWS
