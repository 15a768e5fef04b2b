"""Tables that others can trust: nulls are counted, and all tables are of one batch."""

import json
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from gatepost.cli.runner import run_command
from gatepost.errors import PipelineError
from gatepost.pipeline.jobs.pipeline import Pipeline, compact_tables
from gatepost.pipeline.jobs.table_update import TableUpdater
from gatepost.pipeline.table_views import find_versions
from gatepost.pipeline.tables.schemas import TABLES
from gatepost.pipeline.transport import LocalTransport
from tests.pipeline.worlds import World

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def tables(world: World, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Made in two batches, and compacted."""
    tables = str(tmp_path_factory.mktemp("views") / "tables")
    half = world.truth.events // 2 + 1
    assert Pipeline(LocalTransport(), world.archive, tables).run(half).batches == 2
    compact_tables(tables, keep_hours=24)
    return tables


@pytest.mark.parametrize("column", ["dead_at", "replied_at", "reason", "amended", "task", "told"])
def test_readers_find_rows_without_a_value(world: World, column: str) -> None:
    deliveries = DeltaTable(f"{world.tables}/deliveries").to_pyarrow_dataset()
    for condition, is_null in (("IS NULL", True), ("IS NOT NULL", False)):
        with duckdb.connect() as connection:
            connection.register("deliveries", deliveries)
            query = f"SELECT count(*) FROM deliveries WHERE {column} {condition}"
            ((count,),) = connection.execute(query).fetchall()
        known = [row for row in world.rows["deliveries"] if (row[column] is None) == is_null]
        assert count == len(known), condition


def test_readers_find_rows_by_any_column(world: World) -> None:
    deliveries = DeltaTable(f"{world.tables}/deliveries").to_pyarrow_dataset()
    row = next(row for row in world.rows["deliveries"] if row["reason"] and row["sent_at"])
    for name in ("closed", "amended", "reason", "state", "event_id", "sent_at", "attempts"):
        known = [each for each in world.rows["deliveries"] if each[name] == row[name]]
        is_time = name.endswith("_at")
        wanted = pa.scalar(row[name], pa.timestamp("ms", "UTC") if is_time else None)
        found = deliveries.count_rows(filter=pc.field(name) == wanted)
        assert found == len(known) > 0, name


def test_every_table_is_of_the_batch_that_was_asked_for(tables: str) -> None:
    first, last = find_versions(tables, 1), find_versions(tables)
    assert (first.batch, last.batch) == (1, 2)
    for versions in (first, last):
        found = [
            DeltaTable(f"{tables}/{name}", version=version).transaction_version("gatepost-pipeline")
            for name, version in versions.versions.items()
        ]
        assert found == [versions.batch] * 10
    with pytest.raises(PipelineError, match="batches 1 to 2"):
        find_versions(tables, 3)


def test_a_batch_that_is_not_done_is_not_looked_at(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> None:
        raise KeyError

    pipeline = Pipeline(LocalTransport(), world.archive, str(tmp_path))
    with monkeypatch.context() as patched, pytest.raises(KeyError):
        patched.setattr(TableUpdater, "_write_findings", die)
        pipeline.run(world.truth.events // 2)
    with pytest.raises(PipelineError, match="holds no tables yet"):
        find_versions(str(tmp_path))


def test_views_answer_questions_and_look_back(
    spark: SparkSession, world: World, tables: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def asked(*arguments: str) -> int:
        sql = "SELECT count(*) AS n, count(DISTINCT node) AS nodes FROM deliveries"
        command = ["pipeline", "query", sql, "--tables", tables, "--json", *arguments]
        assert run_command(command) == 0
        document = json.loads(capsys.readouterr().out)
        assert document["rows"][0]["nodes"] == 4
        return int(document["rows"][0]["n"])

    everything = asked()
    assert everything == len(world.rows["deliveries"])
    assert 0 < asked("--batch", "1") < everything
    turns = "SELECT count(*) FROM turns JOIN deliveries USING (event_id)"
    assert run_command(["pipeline", "query", turns, "--tables", tables]) == 0
    assert run_command(["pipeline", "query", "SELECT nothing", "--tables", tables]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert "no query over the tables" in said
    assert run_command(["pipeline", "register", "db", "--tables", tables]) == 1
    assert "Delta" in capsys.readouterr().err


def test_every_table_and_column_says_what_it_means(world: World) -> None:
    for name, table in TABLES.items():
        if not Path(world.tables, name).exists():
            continue
        stored = DeltaTable(f"{world.tables}/{name}")
        assert stored.metadata().description == table.meaning
        comments = {field.name: field.metadata["comment"] for field in stored.schema().fields}
        assert comments == {column.name: column.meaning for column in table.columns}
