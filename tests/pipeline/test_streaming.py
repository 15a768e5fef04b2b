"""`stream` is a query of Structured Streaming, and takes each event in once."""

import json
import shutil
from pathlib import Path
from threading import Event

import pytest
from pyspark.sql import SparkSession

from gatepost.cli.runner import run_command
from gatepost.errors import PipelineError
from gatepost.pipeline.jobs.pipeline import Pipeline
from gatepost.pipeline.jobs.streaming import ArchiveStream, StreamStep
from gatepost.pipeline.jobs.table_update import TableUpdater
from gatepost.pipeline.transport import LocalTransport
from tests.pipeline.spark_interface import ask_interface
from tests.pipeline.worlds import World

pytestmark = pytest.mark.timeout(600)


class Follower:
    """A stream onto tables; each call of `follow` is a process of its own, on one checkpoint."""

    def __init__(self, spark: SparkSession, archive: str, tables: Path, max_rows: int) -> None:
        self._spark, self._archive, self.tables = spark, archive, str(tables)
        self._max_rows = max_rows
        self.steps: list[StreamStep] = []

    def pipeline(self) -> Pipeline:
        # Kernels run here: what Spark is tested for is the stream.
        return Pipeline(LocalTransport(), self._archive, self.tables)

    def follow(self) -> list[StreamStep]:
        """Take in all that is there; returns the micro-batches that did."""
        before = len(self.steps)
        ArchiveStream(self._spark, self.pipeline(), self._max_rows).follow(
            every=None, checkpoint=None, stopping=Event(), report=self.steps.append
        )
        return self.steps[before:]


def test_micro_batches_make_the_tables_of_a_backfill(
    spark: SparkSession, world: World, tmp_path: Path
) -> None:
    archive = tmp_path / "archive"
    shutil.copytree(world.archive, archive)
    late = archive / "node=node-04" / "_manifest.json"
    listed = late.read_bytes()
    late.unlink()
    follower = Follower(spark, str(archive), tmp_path / "tables", world.truth.events // 3)
    steps = follower.follow()
    assert len(steps) > 1
    told = [step.progress or {} for step in steps]
    assert [each["batchId"] for each in told] == list(range(len(steps)))
    assert [each["numInputRows"] for each in told] == [step.events for step in steps]
    assert all(each["sources"][0]["description"] and each["numInputRows"] for each in told)
    behind = [step.lag.events for step in steps]
    assert behind[0] >= 0
    assert behind[-1] == 0
    late.write_bytes(listed)
    assert follower.pipeline().measure_lag().events > 0
    # Another process goes on at the checkpoint: only what is new is listed.
    (step,) = follower.follow()
    assert (step.progress or {})["numInputRows"] == step.events < world.truth.events
    assert sum(step.events for step in follower.steps) == world.truth.events
    world.assert_same(follower.tables)
    assert follower.follow() == []


def test_a_micro_batch_that_is_repeated_changes_nothing(
    spark: SparkSession, world: World, tmp_path: Path
) -> None:
    """Its tables were written, and Spark's note of it was lost; or `run` was here meanwhile."""
    follower = Follower(spark, world.archive, tmp_path / "tables", world.truth.events)
    assert follower.follow()
    (commit,) = (tmp_path / "tables" / "_checkpoint" / "commits").glob("[0-9]*")
    for file in (commit, commit.with_name(f".{commit.name}.crc")):
        file.unlink()
    assert follower.follow() == []
    world.assert_same(follower.tables)
    shutil.rmtree(tmp_path / "tables" / "_checkpoint")
    assert follower.follow() == [], "a new checkpoint begins where the ledger ends"


def test_a_failure_ends_the_stream_with_its_own_sentence(
    spark: SparkSession, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower = Follower(spark, world.archive, tmp_path / "tables", world.truth.events)

    def fail(*_: object, **__: object) -> None:
        raise PipelineError("the disk is full")

    monkeypatch.setattr(Pipeline, "run", fail)
    with pytest.raises(PipelineError, match=r"^the disk is full$"):
        follower.follow()
    monkeypatch.undo()
    follower.follow()
    world.assert_same(follower.tables)


def test_what_is_right_again_is_made_up_for_without_new_events(
    spark: SparkSession, world: World, tmp_path: Path
) -> None:
    archive = tmp_path / "archive"
    shutil.copytree(world.archive, archive)
    segment = sorted((archive / "node=node-03").glob("date=*/*.parquet"))[-1]
    content = segment.read_bytes()
    segment.write_bytes(content[:-200])
    tables, stopping = str(tmp_path / "tables"), Event()
    pipeline = Pipeline(LocalTransport(), str(archive), tables)
    steps: list[StreamStep] = []

    def report(step: StreamStep) -> None:
        steps.append(step)
        segment.write_bytes(content)

    class UntilWhole(Event):
        """Stops the stream once nothing is behind any more."""

        def wait(self, timeout: float | None = None) -> bool:
            if steps and pipeline.measure_lag().events == 0:
                self.set()
            return super().wait(timeout)

    stopping = UntilWhole()
    ArchiveStream(spark, pipeline, world.truth.events).follow(
        every=0.2, checkpoint=None, stopping=stopping, report=report
    )
    assert steps[0].events < world.truth.events
    world.assert_same(tables)


def test_a_stream_makes_up_for_what_was_repaired_while_none_ran(
    spark: SparkSession, world: World, tmp_path: Path
) -> None:
    """Its checkpoint has passed these events, in the middle of an outbox or at its end."""
    archive = tmp_path / "archive"
    shutil.copytree(world.archive, archive)
    segments = sorted((archive / "node=node-03").glob("date=*/*.parquet"))
    assert len(segments) > 2
    broken = {each: each.read_bytes() for each in (segments[0], segments[-1])}
    for segment, content in broken.items():
        segment.write_bytes(content[:-200])
    follower = Follower(spark, str(archive), tmp_path / "tables", world.truth.events)
    (first,) = follower.follow()
    assert first.events < world.truth.events
    for segment, content in broken.items():
        segment.write_bytes(content)
    (step,) = follower.follow()
    assert (step.progress, step.events) == (None, world.truth.events - first.events)
    assert (step.lag.events, follower.follow()) == (0, [])
    world.assert_same(follower.tables)


def test_a_batch_that_was_not_finished_is_finished_though_nothing_is_new(
    spark: SparkSession, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower = Follower(spark, world.archive, tmp_path / "tables", world.truth.events)

    def end(*_: object) -> None:
        raise PipelineError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(TableUpdater, "_write_findings", end)
        with pytest.raises(PipelineError, match="killed"):
            follower.pipeline().run()
    follower.follow()
    world.assert_same(follower.tables)


def test_the_command_prints_what_spark_says_of_each_micro_batch(
    spark: SparkSession, world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = ["--archive", world.archive, "--tables", str(tmp_path / "tables")]
    before = len(ask_interface(spark, "sql?length=10000"))
    assert run_command(["pipeline", "stream", "--available-now", "--json", *places]) == 0
    step, report = map(json.loads, capsys.readouterr().out.splitlines())
    assert step["events"] == step["progress"]["numInputRows"] == world.truth.events
    assert step["lag"] == {"events": 0, "ms": 0}
    assert step["progress"]["name"] == "gatepost"
    assert report["events"] > 0
    assert len(ask_interface(spark, "sql?length=10000")) > before
    world.assert_same(str(tmp_path / "tables"))
    assert run_command(["pipeline", "stream", "--available-now", *places]) == 0
    assert "micro-batch" not in capsys.readouterr().out
