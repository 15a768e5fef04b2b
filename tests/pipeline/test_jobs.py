"""Whole runs over a synthetic archive: in batches, as a stream, after a crash, always the same."""

import shutil
from collections import defaultdict
from pathlib import Path

import pytest

from gatepost.errors import PipelineError
from gatepost.pipeline.jobs.apply import Apply
from gatepost.pipeline.jobs.retention import forget
from gatepost.pipeline.jobs.run import Pipeline, Ran, backfill, compact
from gatepost.pipeline.tables import schemas
from tests.pipeline.worlds import MADE, World

# Whole runs of Spark, on machines that do other things too.
pytestmark = pytest.mark.timeout(400)

# Two of these hold everything.
BATCH = 12_000
HOUR = 3_600_000


def test_doubled_turns_show_in_the_table_of_turns(world: World) -> None:
    (known,) = [v for v in world.truth.violations if v.rule == "doubled_turn"]
    ok: dict[bytes, set[str]] = defaultdict(set)
    for turn in world.rows["turns"]:
        if turn["outcome"] == "ok":
            ok[bytes(turn["event_id"])].add(turn["turn_node"])
    doubled = [row for row in world.rows["deliveries"] if row["turns"] > 1]
    assert [row["corr_id"] for row in doubled] == known.corr_ids
    assert [len(ok[bytes(row["event_id"])]) for row in doubled] == [2]


def test_traffic_and_tasks_add_up_to_what_was_sent(world: World) -> None:
    totals = world.truth.totals
    sent = sum(row["sent"] for row in world.rows["traffic"])
    cancels = sum(1 for row in world.rows["deliveries"] if row["kind"] == "task_cancel")
    assert sent == totals.messages + totals.replies + totals.tasks + cancels
    assert len(world.rows["tasks"]) == totals.tasks
    assert world.ran.events == world.truth.events


# -- batches, streams and crashes


def test_run_in_batches_survives_a_crash_and_equals_backfill(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = str(tmp_path / "tables")
    pipeline = Pipeline(world.spark, world.archive, tables)
    with monkeypatch.context() as patch:
        patch.setattr(Apply, "_by_hour", _crash)
        with pytest.raises(KeyboardInterrupt):
            pipeline.run(max_rows=BATCH)
    again = Pipeline(world.spark, world.archive, tables)
    assert again.run(max_rows=BATCH) == Ran(2, world.truth.events)
    world.assert_same(tables)
    assert again.run() == Ran(0, 0)
    with pytest.raises(PipelineError, match="already holds tables"):
        backfill(world.spark, world.archive, tables)
    assert compact(world.spark, tables, keep_hours=0)["deliveries"] > 0
    world.assert_same(tables)
    _assert_old_hours_go(world, tables)


def _assert_old_hours_go(world: World, tables: str) -> None:
    hours = sorted({row["hour"] for row in world.rows["deliveries"]})
    assert len(hours) > 1
    assert compact(world.spark, tables, keep_days=1)["deliveries"] == 0, "all is of one day"
    world.assert_same(tables)
    assert forget(tables, hours[-1] * HOUR)["deliveries"] > 0
    for table in MADE:
        if table.partition:
            left = [row for row in world.rows[table.name] if row["hour"] == hours[-1]]
            assert world.read(tables, table) == left, table.name
    activity = world.read(tables, schemas.ACTIVITY)
    assert {row["window_start"] // HOUR for row in activity} == {hours[-1]}
    assert Pipeline(world.spark, world.archive, tables).run() == Ran(0, 0), "it is not read again"


def _crash(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_stream_makes_the_same_tables_and_run_goes_on_where_it_stopped(
    world: World, tmp_path: Path
) -> None:
    tables, partly = str(tmp_path / "tables"), tmp_path / "archive"
    shutil.copytree(world.archive, partly)
    late = partly / "node=node-04" / "_manifest.json"
    listed = late.read_bytes()
    late.unlink()
    pipeline = Pipeline(world.spark, str(partly), tables)
    query = pipeline.stream(str(tmp_path / "checkpoint"))
    assert query.awaitTermination(300)
    # The node that was away comes back: what the others waited for falls into place.
    late.write_bytes(listed)
    assert pipeline.run().batches == 1
    world.assert_same(tables)
