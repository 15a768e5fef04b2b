"""Six tables equal those that DuckDB makes of the archive, by the documentation alone."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

from gatepost.pipeline.tables.schemas import DELIVERIES, TABLES
from tests.pipeline.worlds import Rows, World

STATEMENTS = Path(__file__).with_name("reckoning.sql")
# `told` is for later batches, and the fields of `task` are columns of `tasks`.
UNDEFINED = {"told", "task"}
EVENTS = "SELECT * FROM read_parquet(?, hive_partitioning = true, hive_types_autocast = false)"
SEGMENTS = "SELECT node, unnest(segments, recursive := true) FROM read_json(?)"
OBJECTIVES = {"window_ms": 300_000, "online_ms": 60_000, "objective_ms": 5_000, "sla_ms": 600_000}


@pytest.fixture(scope="module")
def reckoned(world: World) -> Iterator[duckdb.DuckDBPyConnection]:
    """The tables as `docs/pipeline_reckoning.md` defines them."""
    with duckdb.connect(config={"threads": 1}) as connection:
        for name, query, files in (
            ("events", EVENTS, f"{world.archive}/node=*/date=*/*.parquet"),
            ("segments", SEGMENTS, f"{world.archive}/node=*/_manifest.json"),
        ):
            connection.execute(f"CREATE TABLE {name} AS {query}", [files])
        for name, value in OBJECTIVES.items():
            connection.execute(f"SET VARIABLE {name} = {value}")
        connection.execute(STATEMENTS.read_text())
        yield connection


def reckoned_rows(connection: duckdb.DuckDBPyConnection, name: str, columns: list[str]) -> Rows:
    wanted = ", ".join(f'"{column}"' for column in columns)
    found = connection.execute(f"SELECT {wanted} FROM {name}").fetchall()
    rows = [dict(zip(columns, map(plain, row), strict=True)) for row in found]
    return sorted(rows, key=repr)


def plain(value: Any) -> Any:
    """A mean may differ in its last bit with the order of adding."""
    return round(value, 6) if isinstance(value, float) else value


@pytest.mark.parametrize("name", ["deliveries", "tasks", "slo", "traffic", "reviews", "eta"])
def test_a_table_is_what_its_documentation_says(
    world: World, reckoned: duckdb.DuckDBPyConnection, name: str
) -> None:
    columns = [each for each in TABLES[name].kernel_names if each not in UNDEFINED]
    made = [{column: row[column] for column in columns} for row in world.rows[name]]
    expected = reckoned_rows(reckoned, name, columns)
    assert expected
    for column in columns:
        differing = [
            (ours, theirs)
            for ours, theirs in zip(sorted(made, key=repr), expected, strict=True)
            if ours[column] != theirs[column]
        ]
        assert differing[:1] == [], column


def test_every_column_of_a_task_is_reckoned(world: World) -> None:
    """The fields of `task` are compared as columns of `tasks`, so none of them may be missing."""
    (fields,) = [
        {field["name"] for field in column["type"]["fields"]}
        for column in DELIVERIES.schema["fields"]
        if column["name"] == "task"
    ]
    ends = {"completed_at", "failed_at", "cancelled_at"}
    assert fields - ends <= set(TABLES["tasks"].names)
