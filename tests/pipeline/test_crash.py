"""A driver is killed in mid-stream; the table has every row once."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.pipeline.crashing import ROWS, Job, archived, make_archive, wait_a_moment


@pytest.mark.full
@pytest.mark.timeout(900)
def test_a_driver_killed_in_mid_stream_goes_on_exactly_where_it_was(
    tmp_path: Path, count: Callable[[int, int], int]
) -> None:
    make_archive(tmp_path)
    rounds = count(1, 10)
    job = Job(tmp_path, max_rows=2 * ROWS // (10 * rounds))
    for _ in range(rounds):
        with job.running() as process:
            job.wait_for_commits(job.commits() + random.randint(1, 3), process)
            wait_a_moment(0.5)
        assert job.commits() < 10 * rounds, "killed too late to prove anything"
    job.finish()
    assert job.rows() == archived(tmp_path)
    assert len(job.rows()) == 2 * ROWS
