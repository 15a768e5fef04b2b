"""`events` in SQL: the archived events that the tables are made of, and of their files few."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from gatepost.cli.problems import ExitCode
from gatepost.cli.runner import run_command
from gatepost.pipeline.archive_reader import ArchiveReader
from gatepost.pipeline.jobs.pipeline import Pipeline
from gatepost.pipeline.synth import SynthOptions, generate_archive
from gatepost.pipeline.table_views import create_views
from gatepost.pipeline.transport import LocalTransport

pytestmark = pytest.mark.timeout(400)

Ask = Callable[..., Any]


class Made:
    """Tables of two batches. `run` set one segment aside, and files lie about that none lists."""

    def __init__(self, folder: Path) -> None:
        self.archive, self.tables = str(folder / "archive"), str(folder / "tables")
        options = SynthOptions(events=2000, nodes=3, segment_rows=150)
        self.events = generate_archive(self.archive, options).events
        segments = ArchiveReader(self.archive).list_segments()
        self.bad = segments[1]
        for segment in segments[:4]:
            path = Path(self.archive, segment.path)
            shutil.copy(path, path.with_name(f"0{path.name}"))
        Path(self.archive, self.bad.path).write_bytes(b"no Parquet")
        pipeline = Pipeline(LocalTransport(), self.archive, self.tables)
        self.taken = pipeline.run(max_rows=1200).events
        assert self.taken == self.events - self.bad.rows


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("events"))


@pytest.fixture
def ask(spark: SparkSession, made: Made, capsys: pytest.CaptureFixture[str]) -> Ask:
    def ask(sql: str, *arguments: str) -> Any:
        places = ("--tables", made.tables, "--archive", made.archive)
        assert run_command(["pipeline", "query", sql, *places, *arguments, "--json"]) == 0
        return [tuple(row.values()) for row in json.loads(capsys.readouterr().out)["rows"]]

    return ask


def test_events_are_those_that_run_has_taken_in(made: Made, ask: Ask) -> None:
    ((count,),) = ask("SELECT count(*) FROM events")
    assert count == made.taken
    (row,) = ask("SELECT count(kind), count(DISTINCT node, incarnation, seq) FROM events")
    assert row == (made.taken, made.taken)
    listed = Path(made.archive).glob("node=*/date=*/*.parquet")
    assert len(list(listed)) > len(ArchiveReader(made.archive).list_segments())
    inside = f"node = '{made.bad.node}' AND seq BETWEEN {made.bad.first} AND {made.bad.last}"
    assert ask(f"SELECT kind FROM events WHERE {inside}") == []


def test_events_are_as_a_batch_left_them(made: Made, ask: Ask) -> None:
    ((first,),) = ask("SELECT count(*) FROM events", "--batch", "1")
    assert 0 < first < made.taken
    (sent,) = ask(
        "SELECT count(*) FROM deliveries d LEFT ANTI JOIN events e ON d.event_id = e.event_id"
        " WHERE d.state <> 'orphan'",
        "--batch",
        "1",
    )
    assert sent == (0,), "every delivery of the batch has its message in the events of the batch"


def test_columns_that_a_query_names_and_does_not_need_stay_known(made: Made, ask: Ask) -> None:
    ((count,),) = ask("SELECT count(*) FROM (SELECT kind, reason FROM events)")
    assert count == made.taken
    (row,) = ask("SELECT * FROM events WHERE seq = 1 ORDER BY node LIMIT 1")
    assert len(row) > 40


def test_a_query_of_events_opens_few_files_and_few_columns(
    spark: SparkSession, made: Made, ask: Ask
) -> None:
    """A count needs no file at all, a condition on a node only the files of that node."""
    segments = ArchiveReader(made.archive).list_segments()
    gone = [Path(made.archive, s.path) for s in segments if s.node != "node-01"]
    for path in gone:
        path.rename(path.with_suffix(".aside"))
    try:
        ((count,),) = ask("SELECT count(*) FROM events")
        assert count == made.taken
        ((kinds,),) = ask("SELECT count(DISTINCT kind) FROM events WHERE node = 'node-01'")
        assert kinds > 2
    finally:
        for path in gone:
            path.with_suffix(".aside").rename(path)


def test_events_need_the_archive(
    spark: SparkSession, made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spark.catalog.dropTempView("events")
    command = ["pipeline", "query", "SELECT 1 FROM events", "--tables", made.tables]
    assert run_command([*command, "--state-dir", str(tmp_path)]) == ExitCode.USAGE
    assert "the view events needs --archive" in capsys.readouterr().err
    create_views(spark, made.tables, archive=made.archive)
    assert spark.table("events").where("seq = 1").count() == 3
