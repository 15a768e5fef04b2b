"""What the tables of a whole run add up to."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from gatepost.errors import PipelineError
from gatepost.pipeline.archive_reader import ArchiveReader
from gatepost.pipeline.jobs import pipeline
from gatepost.pipeline.jobs.batch_ledger import NO_BATCH
from gatepost.pipeline.jobs.batch_plan import BatchPlanner
from gatepost.pipeline.jobs.pipeline import Pipeline
from gatepost.pipeline.jobs.table_update import TableFolder
from gatepost.pipeline.objectives import Objectives
from gatepost.pipeline.read_plan import SegmentFile
from gatepost.pipeline.tables import schemas
from gatepost.pipeline.tables.turns import derive_turns
from gatepost.pipeline.transport import LocalTransport
from tests.pipeline.archives import DAY, NOON, write_node
from tests.pipeline.worlds import World

# Whole runs of Spark, on machines that do other things too.
pytestmark = pytest.mark.timeout(400)


def test_doubled_turns_show_in_the_table_of_turns(spark: SparkSession, world: World) -> None:
    (known,) = [v for v in world.truth.violations if v.rule == "doubled_turn"]
    ok: dict[bytes, set[str]] = defaultdict(set)
    deliveries = TableFolder(world.tables).read(spark, schemas.DELIVERIES).where("turns > 1")
    for turn in derive_turns(deliveries).where("outcome = 'ok'").collect():
        ok[bytes(turn.event_id)].add(turn.turn_node)
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


def test_what_is_taken_at_once_is_one_batch_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables in Spark SQL are made of one batch: kernels would make the tables of a second one."""
    monkeypatch.setattr(pipeline, "_MAX_ROWS", 10)
    archive = tmp_path / "archive"
    write_node(archive, "x", range(NOON, NOON + 50))
    ran = Pipeline(LocalTransport(), str(archive), str(tmp_path / "once")).take_at_once()
    assert (ran.batches, ran.events) == (1, 50)
    write_node(archive, "x", [NOON + day * DAY for day in range(20, 420, 20)], first=51)
    tables = Pipeline(LocalTransport(), str(archive), str(tmp_path / "refused"))
    with pytest.raises(PipelineError, match=r"more than 366 days.*use --engine spark"):
        tables.take_at_once()
    monkeypatch.undo()
    ran = tables.run()
    assert (ran.batches, ran.events) == (2, 70)


def test_a_plan_reads_the_times_of_a_segment_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive, read = tmp_path / "archive", []
    for node in ("x", "y"):
        write_node(archive, node, range(NOON, NOON + 1000))
    times = ArchiveReader.row_times

    def count(self: ArchiveReader, segment: SegmentFile) -> Sequence[int]:
        read.append(segment.path)
        return times(self, segment)

    monkeypatch.setattr(ArchiveReader, "row_times", count)
    planner = BatchPlanner(LocalTransport(), ArchiveReader(str(archive)), Objectives())
    plan = planner.plan_next(NO_BATCH, 333)
    assert plan is not None
    assert sum(seq for seqs in plan.end.values() for seq in seqs.values()) == 333
    assert sorted(read) == sorted(set(read))
    assert len(read) == 2
