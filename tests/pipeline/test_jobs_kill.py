"""Drivers are killed in the middle of their work; whoever comes next makes the tables exact.

`run` and `stream` themselves are tested here too: in batches, taking turns, and what comes after.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from gatepost.errors import PipelineError
from gatepost.pipeline.jobs.pipeline import Pipeline, RunSummary, backfill_tables, compact_tables
from tests.pipeline.commit_gate import CommitGate
from tests.pipeline.crashing import Program
from tests.pipeline.worlds import World

# Whole runs of Spark, on machines that do other things too.
pytestmark = pytest.mark.timeout(1800)

TABLES_A_BATCH = 9


def kill_again_and_again(
    folder: Path, what: str, archive: str, tables: Path, max_rows: int, rounds: int
) -> None:
    """Each time somewhere in the next batch, and before all events of two batches are in."""
    program = "tests.pipeline.pipeline_job"
    job = Program(folder, program, what, archive, tables, max_rows, "local[2]")
    for _ in range(rounds):
        job.kill_between(CommitGate(tables), TABLES_A_BATCH)


def test_run_in_batches_is_killed_and_equals_backfill(
    world: World, tmp_path: Path, count: Callable[[int, int], int]
) -> None:
    rounds = count(1, 10)
    tables, max_rows = tmp_path / "tables", world.truth.events // (2 * rounds) + 1
    kill_again_and_again(tmp_path, "run", world.archive, tables, max_rows, rounds)
    pipeline = Pipeline(world.transport, world.archive, str(tables))
    assert pipeline.run(max_rows).events > 0, "killed too late to prove anything"
    world.assert_same(str(tables))
    assert pipeline.run() == RunSummary(0, 0)
    with pytest.raises(PipelineError, match="already holds tables"):
        backfill_tables(world.transport, world.archive, str(tables))
    _assert_compacted(world, str(tables))


def _assert_compacted(world: World, tables: str) -> None:
    assert compact_tables(tables, keep_hours=0, keep_days=1)["deliveries"] > 0
    world.assert_same(tables)


def test_a_stream_is_killed_goes_on_and_run_goes_on_where_it_stopped(
    world: World, tmp_path: Path, count: Callable[[int, int], int]
) -> None:
    rounds = count(1, 10)
    tables, partly = tmp_path / "tables", tmp_path / "archive"
    max_rows = world.truth.events // (2 * rounds) + 1
    shutil.copytree(world.archive, partly)
    late = partly / "node=node-04" / "_manifest.json"
    listed = late.read_bytes()
    late.unlink()
    kill_again_and_again(tmp_path, "stream", str(partly), tables, max_rows, rounds)
    pipeline = Pipeline(world.transport, str(partly), str(tables))
    assert pipeline.run(max_rows).events > 0, "killed too late to prove anything"
    # The node that was away comes back: what the others waited for falls into place.
    late.write_bytes(listed)
    assert pipeline.run().batches == 1
    world.assert_same(str(tables))
