"""The definitions in Spark SQL: what kernels make is what they say, and they make whole tables."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from gatepost.cli.problems import ExitCode
from gatepost.cli.runner import run_command
from gatepost.errors import PipelineError
from gatepost.pipeline.jobs import verify
from gatepost.pipeline.jobs.pipeline import Pipeline, backfill_with_sql
from gatepost.pipeline.jobs.verify import choose_hours, verify_tables
from gatepost.pipeline.sql import EVENT_COLUMNS, read_definitions
from gatepost.pipeline.tables import schemas
from gatepost.pipeline.tables.schemas import TABLES
from gatepost.pipeline.transport import LocalTransport, SparkTransport
from tests.pipeline import archives
from tests.pipeline.worlds import World

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def transport(spark: SparkSession) -> SparkTransport:
    return SparkTransport(spark)


def test_tables_made_in_sql_are_those_of_kernels(
    world: World, transport: SparkTransport, tmp_path: Path
) -> None:
    tables = str(tmp_path / "tables")
    ran = backfill_with_sql(transport, world.archive, tables)
    assert (ran.batches, ran.events) == (1, world.truth.events)
    world.assert_same(tables)
    assert transport.input_rows > 0
    assert Pipeline(world.transport, world.archive, tables).run().batches == 0
    with pytest.raises(PipelineError, match="already holds tables"):
        backfill_with_sql(transport, world.archive, tables)


@pytest.mark.full
def test_tables_are_what_their_definitions_say(world: World, transport: SparkTransport) -> None:
    found = verify_tables(transport, world.archive, world.tables, 100)
    assert found.is_right, [each for each in found.tables if each.samples]
    assert len(found.hours) == found.of > 1
    rows = {each.table: each.rows for each in found.tables}
    assert rows == {name: len(world.rows[name]) for name in rows}
    assert set(rows) == {
        *("deliveries", "tasks", "slo", "traffic", "cases", "paces", "reviews", "eta"),
    }


def test_tables_that_somebody_changed_are_found_out(
    world: World,
    transport: SparkTransport,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    full: bool,
) -> None:
    if not full:
        # Deliveries and service levels; every other table takes as long.
        monkeypatch.setattr(verify, "_OF_DELIVERIES", (schemas.SLO,))
        monkeypatch.setattr(verify, "_OF_HOURS", ())
    tables = tmp_path / "tables"
    shutil.copytree(world.tables, tables)
    last = max(row["hour"] for row in world.rows["slo"])
    ours = f"hour = {last} AND node = 'node-01'"
    changed = DeltaTable(tables / "slo").update({"sent": "sent + 1"}, predicate=ours)
    code = run_command(
        [
            *("pipeline", "verify", "--hours", "1", "--json"),
            *("--archive", world.archive, "--tables", str(tables)),
        ]
    )
    assert code == ExitCode.FAILED
    document = json.loads(capsys.readouterr().out)
    assert (document["right"], document["hours"]) == (False, [last])
    (slo,) = [each for each in document["tables"] if each["missing"] or each["unexpected"]]
    assert (slo["table"], slo["missing"]) == ("slo", changed["num_updated_rows"])
    assert {sample["found"] for sample in slo["samples"]} == {"missing", "unexpected"}


def test_tables_without_deliveries_are_right(
    transport: SparkTransport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "KINDS", np.array(["signal"]))
    archive, tables = tmp_path / "archive", str(tmp_path / "tables")
    archives.write_node(archive, "x", range(archives.NOON, archives.NOON + 9))
    assert Pipeline(LocalTransport(), str(archive), tables).run().events == 9
    found = verify_tables(transport, str(archive), tables, 3)
    assert (found.is_right, found.hours, found.of) == (True, [], 0)


def test_hours_are_spread_evenly() -> None:
    hours = list(range(100, 200))
    assert choose_hours(hours, 3) == [100, 150, 199]
    assert choose_hours(hours, 1) == [199]
    assert choose_hours(hours[:2], 3) == [100, 101]


def test_definitions_name_every_column_of_the_tables() -> None:
    definitions = read_definitions()
    for name in ("deliveries", "tasks", "slo", "traffic", "cases", "paces", "reviews", "eta"):
        for column in TABLES[name].kernel_names:
            assert column in definitions[name] + definitions.get("sums", ""), (name, column)
    events = {column.name for column in TABLES["events"].columns}
    assert set(EVENT_COLUMNS) <= events
