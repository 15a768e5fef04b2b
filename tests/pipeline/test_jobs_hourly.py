"""Tables of an hour, however its deliveries are cut."""

from pathlib import Path

import pytest

from gatepost.pipeline.jobs import hourly as module
from gatepost.pipeline.jobs.hourly import TABLES, hourly
from gatepost.pipeline.objectives import Objectives
from gatepost.pipeline.sink import begin, files
from gatepost.pipeline.tables.schemas import PACES
from tests.pipeline.worlds import World


def test_a_large_hour_is_cut_by_who_sent_and_says_the_same(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_AT_ONCE", 700)
    deliveries = files(f"{world.tables}/deliveries", "hour")
    assert max(piece.parts for piece in module._pieces(deliveries)) > 2
    writing = {
        table: begin(str(tmp_path / table.name), table.schema, partition_by=["hour"])
        for table in TABLES
    }
    folders = {table: each.path for table, each in writing.items()}
    made = hourly(world.spark, deliveries, folders, Objectives())
    for table, written in made.items():
        writing[table].commit(written)
        rows = world.read(str(tmp_path), table)
        if table is PACES:
            # These add up.
            whole = world.read(world.tables, table)
            assert sum(row["tasks"] for row in rows) == sum(row["tasks"] for row in whole) > 0
        else:
            assert rows == world.rows[table.name], table.name


def test_without_hours_there_is_nothing_to_do(world: World) -> None:
    assert hourly(world.spark, [], {PACES: "/nowhere"}, Objectives()) == {PACES: []}
