"""The pipeline is measured on archives that are hard to divide."""

import io
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from gatepost.bench.pipeline_shapes import (
    SHAPES,
    ArchiveShape,
    measure_shape,
    plan_run,
    render_shape,
    shape_named,
    write_manifests,
    write_shaped_archive,
)
from gatepost.pipeline import small_tables
from gatepost.pipeline.jobs import hourly_tables
from gatepost.pipeline.jobs.pipeline import backfill_tables
from gatepost.pipeline.tables.schemas import DELIVERIES, SLO, TRAFFIC
from gatepost.pipeline.transport import LocalTransport, SparkTransport
from tests.pipeline.cluster import standalone_cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# As docs/pipeline.md states it, for an executor with a heap of 1 GiB and one core.
MOST_MIB = 2048


def test_one_sender_in_one_hour_is_divided_and_counted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hourly_tables, "_AT_ONCE", 200)
    shape = ArchiveShape(nodes=2, senders=1, segments=4, deliveries=1200)
    archive, tables = tmp_path / "archive", str(tmp_path / "tables")
    write_shaped_archive(archive, shape)
    ran = backfill_tables(LocalTransport(), str(archive), tables)
    assert (ran.events, ran.aside) == (shape.events, ()) == (3600, ())
    rows = list(small_tables.read_rows(tables, DELIVERIES))
    assert {row["state"] for row in rows} == {"processed"}
    assert len(rows) == len({row["event_id"] for row in rows}) == 1200
    levels = list(small_tables.read_rows(tables, SLO))
    assert len(levels) == 12 == len({row["window_start"] for row in levels})
    assert sum(row["processed"] for row in levels) == 1200
    assert {(row["accept_p50"], row["process_p99"]) for row in levels} == {(5, 50)}
    (between,) = small_tables.read_rows(tables, TRAFFIC)
    assert (between["sent"], between["ok"]) == (1200, 1200)


def test_many_nodes_are_each_counted(tmp_path: Path) -> None:
    shape = ArchiveShape(nodes=20, senders=20, segments=5, deliveries=300)
    archive, tables = tmp_path / "archive", str(tmp_path / "tables")
    write_shaped_archive(archive, shape)
    assert backfill_tables(LocalTransport(), str(archive), tables).events == 900
    sent = [row["sent"] for row in small_tables.read_rows(tables, TRAFFIC)]
    assert sent == [15] * 20


@pytest.mark.parametrize(
    ("name", "nodes", "segments", "events"),
    [
        ("many-nodes", 3000, 100, 9_000_000),
        ("many-nodes", None, 10, 300_000),
        ("one-sender", 5, None, 30_000_000),
        ("one-sender", None, 10, 3_000_000),
    ],
)
def test_a_shape_takes_other_numbers_of_nodes_and_segments(
    name: str, nodes: int | None, segments: int | None, events: int
) -> None:
    shape = shape_named(name, nodes, segments)
    assert shape.events == events
    assert shape.nodes == (nodes or SHAPES[name].nodes)
    assert shape.deliveries_per_segment == SHAPES[name].deliveries_per_segment


def test_a_plan_alone_carries_every_segment_to_executors(
    tmp_path: Path, spark: "SparkSession"
) -> None:
    shape = ArchiveShape(nodes=20, senders=20, segments=50, deliveries=3000)
    write_manifests(tmp_path, shape)
    transport = SparkTransport(spark)
    assert plan_run(transport, str(tmp_path), "").events == shape.events == 9000
    assert (transport.queries, transport.input_rows) == (2, 18_000)


@pytest.mark.full
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", SHAPES)
def test_memory_of_a_worker_is_bounded(name: str, tmp_path: Path) -> None:
    with standalone_cluster(2, cores=1, memory="2g") as master:
        result = measure_shape(tmp_path, name, master)
    assert result.events == SHAPES[name].events
    assert 0 < result.executor_mib < MOST_MIB
    console = Console(width=110, record=True, file=io.StringIO())
    console.print(render_shape(result))
    assert f"{result.events:,}" in console.export_text()
