"""Tables of an hour, however its deliveries are cut."""

from pathlib import Path

import pytest

from gatepost.pipeline.delta_tables import begin_write, list_files
from gatepost.pipeline.jobs import hourly_tables as module
from gatepost.pipeline.jobs.hourly_tables import HOURLY_TABLES, write_hourly_tables
from gatepost.pipeline.objectives import Objectives
from gatepost.pipeline.tables.schemas import PACES
from tests.pipeline.worlds import World


def test_a_large_hour_is_cut_by_node_and_window_and_says_the_same(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_AT_ONCE", 700)
    deliveries = list_files(f"{world.tables}/deliveries", "hour")
    assert max(piece.parts for piece in module._cut_pieces(deliveries)) > 2
    writing = {
        table: begin_write(str(tmp_path / table.name), table.schema, partition_by=table.partitions)
        for table in HOURLY_TABLES
    }
    folders = {table: each.path for table, each in writing.items()}
    made = write_hourly_tables(world.transport, deliveries, folders, Objectives())
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
    assert write_hourly_tables(world.transport, [], {PACES: "/nowhere"}, Objectives()) == {
        PACES: []
    }
