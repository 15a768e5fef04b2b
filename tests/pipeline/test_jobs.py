"""Whole runs over a synthetic archive: against its truth, against plain Python, against itself."""

import math
import shutil
from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from gatepost.errors import PipelineError
from gatepost.pipeline.jobs.apply import Apply
from gatepost.pipeline.jobs.run import Pipeline, Ran, backfill, compact
from gatepost.pipeline.synth import FAULTS, Options, Truth, generate
from gatepost.pipeline.tables import schemas
from gatepost.pipeline.tables.schemas import Table

# Whole runs of Spark, on machines that do other things too.
pytestmark = pytest.mark.timeout(400)

# A gap in a chain is for the audit; the pipeline's source refuses to read over it.
PLANTED = tuple(name for name in FAULTS if name != "chain_gap")
MADE = (
    *(schemas.DELIVERIES, schemas.TASKS, schemas.TURNS, schemas.SLO, schemas.TRAFFIC),
    *(schemas.CASES, schemas.INCIDENTS, schemas.REVIEWS, schemas.ETA),
)


class World:
    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.archive = str(folder / "archive")
        self.truth: Truth = generate(
            self.archive, Options(events=12_000, faults=PLANTED, segment_rows=1500)
        )
        self.tables = str(folder / "tables")
        self.ran = backfill(spark, self.archive, self.tables)
        self.rows = {table.name: self.read(self.tables, table) for table in MADE}

    def read(self, tables: str, table: Table) -> list[dict[str, Any]]:
        rows = Pipeline(self.spark, self.archive, tables).tables.read(self.spark, table).collect()
        return sorted((_plain(row.asDict(recursive=True)) for row in rows), key=repr)


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """Legs come in any order, and a mean may differ in its last bit with the order of adding."""
    for leg in (legs := row.get("legs") or []):
        leg["peer"] = leg["peer"] or ""
    legs.sort(key=lambda leg: leg["peer"])
    return {k: round(v, 6) if isinstance(v, float) else v for k, v in row.items()}


@pytest.fixture(scope="module")
def world(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(spark, tmp_path_factory.mktemp("world"))


def test_every_planted_incident_is_found_and_nothing_else(world: World) -> None:
    left = list(world.rows["incidents"])
    for known in world.truth.incidents:
        (row,) = [
            row
            for row in left
            if (row["class"], row["node"], row["agent"], row["capability_id"])
            == (known.cls, known.node, known.agent, known.capability_id)
        ]
        assert row["started_at"] < known.window[1]
        assert row["ended_at"] > known.window[0]
        if known.corr_ids:
            # Who came after the last whole window of a growing backlog is not counted.
            slack = 30 if known.cls == "backlog" else 1
            assert 0 <= known.count - row["count"] < slack
            assert set(row["samples"]) <= set(known.corr_ids)
        assert row["samples"]
        left.remove(row)
    assert left == []


def test_every_planted_misfire_is_found_and_nothing_else(world: World) -> None:
    def key(row: Any) -> tuple[Any, ...]:
        return tuple(row[name] for name in ("class", "capability_id", "executor_version", "count"))

    known = [
        {"class": m.cls, "executor_version": m.executor_version, "count": m.count}
        | {"capability_id": m.capability_id}
        for m in world.truth.misfires
    ]
    assert sorted(map(key, world.rows["reviews"])) == sorted(map(key, known))
    advice = {row["capability_id"]: row for row in world.rows["eta"]}
    assert advice["late"]["recommended_eta_seconds"] == 301
    assert advice["late"]["kept_rate"] == 0.0


def test_doubled_turns_show_in_the_table_of_turns(world: World) -> None:
    (known,) = [v for v in world.truth.violations if v.rule == "doubled_turn"]
    ok: dict[bytes, set[str]] = defaultdict(set)
    for turn in world.rows["turns"]:
        if turn["outcome"] == "ok":
            ok[bytes(turn["event_id"])].add(turn["turn_node"])
    doubled = [row for row in world.rows["deliveries"] if row["turns"] > 1]
    assert [row["corr_id"] for row in doubled] == known.corr_ids
    assert [len(ok[bytes(row["event_id"])]) for row in doubled] == [2]


# -- an independent reckoning


def _events(archive: str) -> list[dict[str, Any]]:
    rows = []
    for path in sorted(Path(archive).glob("node=*/date=*/*.parquet")):
        node = path.parent.parent.name.removeprefix("node=")
        rows += [row | {"node": node} for row in pq.ParquetFile(path).read().to_pylist()]
    return rows


def _reckoned(events: list[dict[str, Any]]) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Service levels by window, kind, node and capability, the slow and simple way."""
    lives: dict[tuple[str, bytes], dict[str, Any]] = {}
    tracked = ("message", "reply", "task_create", "task_cancel")
    for e in events:
        if e["kind"] in tracked:
            life = lives.setdefault(
                (e["node"], e["event_id"]), {"first": e, "asked": set(), "attempts": 0, "told": []}
            )
            life["asked"].add(e["to_node"])
            life["attempts"] = max(life["attempts"], e["attempt"])
    for e in events:
        owner = e["node"] if e["kind"] == "dead_letter" else e["to_node"]
        about = lives.get((owner, e["ref_id"]))
        counts = about and (e["kind"] == "dead_letter" or e["node"] in about["asked"])
        if about and counts and e["kind"] in ("ack", "reply", "dead_letter"):
            about["told"].append(e)
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for life in lives.values():
        e = life["first"]
        capability = e["capability_id"] if e["kind"] == "task_create" else None
        window = e["created_at"] // 300_000 * 300_000
        groups[window, e["kind"], e["node"], capability].append(life)
    return {key: _levels(group) for key, group in groups.items()}


def _levels(group: list[dict[str, Any]]) -> dict[str, Any]:
    def first(life: dict[str, Any], *what: str) -> int | None:
        times = [e["created_at"] for e in life["told"] if (e["status"] or e["kind"]) in what]
        return min(times, default=None)

    def percentile(values: list[int], share: float) -> int | None:
        return sorted(values)[math.ceil(share * len(values)) - 1] if values else None

    accept, process, dead = [], [], 0
    for life in group:
        at = life["first"]["created_at"]
        accepted, ended = first(life, "accepted"), first(life, "processed", "reply")
        accept += [accepted - at] if accepted is not None else []
        process += [ended - at] if ended is not None else []
        dead += first(life, "dead_letter") is not None
    return {
        "sent": len(group),
        "accepted": len(accept),
        "processed": len(process),
        "dead": dead,
        "retried": sum(life["attempts"] > 1 for life in group),
        "accept_p50": percentile(accept, 0.5),
        "accept_p95": percentile(accept, 0.95),
        "process_p95": percentile(process, 0.95),
        "process_p99": percentile(process, 0.99),
    }


def test_service_levels_equal_a_reckoning_in_plain_python(world: World) -> None:
    expected = _reckoned(_events(world.archive))
    found = {
        tuple(row[k] for k in ("window_start", "kind", "node", "capability_id")): row
        for row in world.rows["slo"]
    }
    assert len(found) == len(world.rows["slo"])
    assert found.keys() == expected.keys()
    for key, levels in expected.items():
        assert {name: found[key][name] for name in levels} == levels, key


def test_traffic_and_tasks_add_up_to_what_was_sent(world: World) -> None:
    totals = world.truth.totals
    sent = sum(row["sent"] for row in world.rows["traffic"])
    cancels = sum(1 for row in world.rows["deliveries"] if row["kind"] == "task_cancel")
    assert sent == totals.messages + totals.replies + totals.tasks + cancels
    assert len(world.rows["tasks"]) == totals.tasks
    assert world.ran.events == world.truth.events


# -- batches, streams and crashes


def _same(world: World, tables: str) -> None:
    for table in MADE:
        assert world.read(tables, table) == world.rows[table.name], table.name


def test_run_in_batches_survives_a_crash_and_equals_backfill(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = str(tmp_path / "tables")
    pipeline = Pipeline(world.spark, world.archive, tables)
    with monkeypatch.context() as patch:
        patch.setattr(Apply, "_by_hour", _crash)
        with pytest.raises(KeyboardInterrupt):
            pipeline.run(max_rows=7000)
    again = Pipeline(world.spark, world.archive, tables)
    assert again.run(max_rows=7000) == Ran(2, world.truth.events)
    _same(world, tables)
    assert again.run() == Ran(0, 0)
    with pytest.raises(PipelineError, match="already holds tables"):
        backfill(world.spark, world.archive, tables)
    assert compact(world.spark, tables, keep_hours=0)["deliveries"] > 0
    _same(world, tables)


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
    assert query.awaitTermination(60)
    # The node that was away comes back: what the others waited for falls into place.
    late.write_bytes(listed)
    assert pipeline.run().batches == 1
    _same(world, tables)
