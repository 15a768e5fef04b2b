"""Measures the pipeline on a synthetic archive: a full run, then a run with one percent more.

If DuckDB is installed, it runs the bare lifecycle query over the same files for comparison: Spark
on one machine is not fast. Spark pays off on several machines; the pipeline pays off because the
second run costs only as much as the new events. Other engines make the same tables on request.
"""

import os
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec import Struct
from rich.console import Group, RenderableType
from rich.table import Table

from gatepost.archive import manifest
from gatepost.archive.archive_store import ArchiveStore
from gatepost.archive.manifest import ArchiveManifest
from gatepost.bench.mailbox import BenchMachine, describe_machine
from gatepost.bench.process_memory import watch_memory
from gatepost.errors import BenchFailed

if TYPE_CHECKING:
    from gatepost.events import NodeKey
    from gatepost.pipeline.synth import ArchiveTruth
    from gatepost.pipeline.transport import Transport

_LIFECYCLE_QUERY = """
WITH told AS (
  SELECT CASE WHEN kind = 'ack' THEN ref_id ELSE event_id END AS id,
         CASE WHEN kind = 'ack' THEN to_node ELSE node END AS owner,
         min(created_at) FILTER (kind <> 'ack') AS sent,
         min(created_at) FILTER (status = 'accepted') AS accepted,
         min(created_at) FILTER (status = 'processed') AS processed
  FROM read_parquet(?, hive_partitioning = true)
  WHERE kind IN ('message', 'reply', 'task_create', 'task_cancel', 'ack') GROUP BY ALL)
SELECT owner, sent // 300000, count(*), quantile_cont(accepted - sent, [0.5, 0.95, 0.99]),
       quantile_cont(processed - sent, [0.5, 0.95, 0.99])
FROM told GROUP BY ALL
"""


Engine = Literal["local", "sql"]
"""`local` is this process with the same kernels, `sql` is Spark SQL alone."""

_HOUR_MS = 3_600_000
# A run with one percent more events may take this share of a full run.
_MORE_SHARE = 0.05


class PipelineBenchOptions(Struct, frozen=True):
    """`archives` are folders that an earlier benchmark kept; without them archives are written."""

    sizes: tuple[int, ...] = (10_000_000, 50_000_000)
    nodes: int = 8
    master: str = "local[*]"
    # The time that the events span; by default as long as they take at one event a second and node.
    hours: int | None = None
    # Engines that make the tables of all events too, after Spark with kernels.
    engines: tuple[Engine, ...] = ()
    archives: tuple[Path, ...] = ()


class TimedRun(Struct, frozen=True):
    """One run in its own session. `peak_mib` is the memory of driver, JVM and workers together."""

    events: int
    session_seconds: float
    seconds: float
    per_sec: float
    peak_mib: int


class SizeResult(Struct, frozen=True):
    """`share` is the time of the second run divided by the first, without session starts.

    `allowed_seconds` is the objective for the second run with its session start: five percent of
    the first run, and a session start. `levels` is a run of the lifecycle and service level tables
    alone. `hours` is the time that the events span.
    """

    events: int
    nodes: int
    hours: int
    archive_bytes: int
    levels: TimedRun
    full: TimedRun
    more: TimedRun
    share: float
    allowed_seconds: float
    duckdb_seconds: float | None = None
    engines: dict[str, TimedRun] = {}


class PipelineBenchResult(Struct, frozen=True):
    machine: BenchMachine
    options: PipelineBenchOptions
    sizes: list[SizeResult]
    durability: str = "tables are not fsynced: they can be rebuilt from the archive"


def bench_pipeline(
    folder: Path, options: PipelineBenchOptions, step: Callable[[str], object] = str
) -> PipelineBenchResult:
    """Measure every archive in a temporary folder; calls `step` with each step's description."""
    folder.mkdir(parents=True, exist_ok=True)
    results = []
    for made in options.archives or options.sizes:
        with tempfile.TemporaryDirectory(prefix="bench-", dir=folder) as work_dir:
            archive = Path(work_dir, "archive") if isinstance(made, int) else made
            if isinstance(made, int):
                step(f"{made:,} events: writing the archive")
                write_archive(archive, made, options)
            results.append(measure_archive(Path(work_dir), str(archive), options, step))
    return PipelineBenchResult(describe_machine(), options, results)


def write_archive(archive: Path, events: int, options: PipelineBenchOptions) -> None:
    from gatepost.pipeline.synth import SynthOptions as Synth
    from gatepost.pipeline.synth import generate_archive

    # With segments this small, the last four of a node are about one percent of its events.
    rows = max(1000, events // options.nodes // 400)
    jobs = os.cpu_count() or 1
    generate_archive(
        str(archive),
        Synth(
            events=events, nodes=options.nodes, segment_rows=rows, jobs=jobs, hours=options.hours
        ),
    )


def _read_truth(archive: str) -> "ArchiveTruth":
    from gatepost.pipeline.synth import ArchiveTruth
    from gatepost.pipeline.synth.ground_truth import TRUTH_FILE

    content = ArchiveStore.open(archive).read_file(TRUTH_FILE)
    if content is None:
        raise BenchFailed(f"{archive} is not an archive that `gatepost pipeline synth` wrote")
    return msgspec.json.decode(content, type=ArchiveTruth)


def measure_archive(
    work_dir: Path, archive: str, options: PipelineBenchOptions, step: Callable[[str], object]
) -> SizeResult:
    """Make tables of a synthetic archive; its last segments are held back from the first run."""
    from gatepost.pipeline.synth import SynthOptions as Synth
    from gatepost.pipeline.synth import node_keys

    truth, tables = _read_truth(archive), str(work_dir / "tables")
    events, nodes = truth.events, len(truth.nodes)
    hours = -(-(truth.end - truth.start) // _HOUR_MS)
    about = f"{events:,} events of {nodes:,} nodes over {hours} h"
    keys = node_keys(Synth(events=events, nodes=nodes, seed=truth.seed))
    kept = hold_back_segments(archive, events // 100, keys)
    try:
        step(f"{about}: lifecycles and service levels")
        levels = _time_job(archive, str(work_dir / "levels"), options.master, _run_service_levels)
        step(f"{about}: the full run")
        full = _time_job(archive, tables, options.master, _run_pipeline)
        step(f"{about}: the full run took {full.seconds:.1f} s, {full.per_sec:,.0f} events/s")
    finally:
        restore_manifests(archive, kept)
    step(f"{about}: one percent more")
    more = _time_job(archive, tables, options.master, _run_pipeline)
    if full.events + more.events != events:
        raise BenchFailed(f"{events} events were archived, {full.events + more.events} read")
    engines: dict[str, TimedRun] = {}
    for engine in options.engines:
        step(f"{about}: --engine {engine}")
        engines[engine] = _time_engine(engine, archive, str(work_dir / engine), options.master)
    step(f"{about}: DuckDB")
    size, duckdb = _parquet_bytes(Path(archive)), _time_duckdb(archive)
    share = more.seconds / full.seconds
    allowed = _MORE_SHARE * full.seconds + full.session_seconds
    figures = (levels, full, more, share, allowed, duckdb, engines)
    return SizeResult(events, nodes, hours, size, *figures)


def _run_pipeline(transport: "Transport", archive: str, tables: str) -> int:
    from gatepost.pipeline.jobs.pipeline import update_tables

    return update_tables(transport, archive, tables).events


def _run_service_levels(transport: "Transport", archive: str, tables: str) -> int:
    from gatepost.pipeline.archive_reader import ArchiveReader
    from gatepost.pipeline.delta_tables import begin_write, list_files
    from gatepost.pipeline.jobs.deliveries import NewEvents, write_deliveries
    from gatepost.pipeline.jobs.hourly_tables import write_hourly_tables
    from gatepost.pipeline.objectives import Objectives
    from gatepost.pipeline.read_plan import Slice
    from gatepost.pipeline.tables.schemas import DELIVERIES, SLO

    slices = [Slice(s, s.first, s.last) for s in ArchiveReader(archive).list_segments()]
    lives = begin_write(
        f"{tables}/deliveries", DELIVERIES.schema, partition_by=DELIVERIES.partitions
    )
    made = write_deliveries(transport, NewEvents(archive, slices), [], lives.path)
    lives.commit(made.deliveries)
    levels = begin_write(f"{tables}/slo", SLO.schema, partition_by=SLO.partitions)
    held = list_files(lives.path, "hour")
    levels.commit(write_hourly_tables(transport, held, {SLO: levels.path}, Objectives())[SLO])
    return sum(piece.rows for piece in slices)


def _time_job(
    archive: str, tables: str, master: str, job: "Callable[[Transport, str, str], int]"
) -> TimedRun:
    """Time a job as a user starts it: in a fresh JVM, where nothing is compiled yet."""
    from gatepost.pipeline.session import spark_session
    from gatepost.pipeline.transport import SparkTransport

    with watch_memory() as peak:
        start = time.perf_counter()
        with spark_session(master, name="bench", brief=True) as spark:
            session = time.perf_counter() - start
            events = job(SparkTransport(spark), archive, tables)
            seconds = time.perf_counter() - start - session
    return TimedRun(events, session, seconds, events / seconds, peak[0] // 2**20)


def _time_engine(engine: Engine, archive: str, tables: str, master: str) -> TimedRun:
    """Time a run that makes all tables with another engine."""
    from gatepost.pipeline.transport import LocalTransport

    if engine == "sql":
        return _time_job(archive, tables, master, _backfill_with_sql)
    with watch_memory() as peak:
        start = time.perf_counter()
        events = _run_pipeline(LocalTransport(), archive, tables)
        seconds = time.perf_counter() - start
    return TimedRun(events, 0.0, seconds, events / seconds, peak[0] // 2**20)


def _backfill_with_sql(transport: "Transport", archive: str, tables: str) -> int:
    from gatepost.pipeline.jobs.pipeline import backfill_with_sql
    from gatepost.pipeline.transport import SparkTransport

    assert isinstance(transport, SparkTransport)
    return backfill_with_sql(transport, archive, tables).events


def _parquet_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*.parquet"))


def hold_back_segments(
    archive: str, events: int, keys: "Mapping[str, NodeKey]"
) -> dict[str, bytes]:
    """Remove each node's last segments from its manifest: at least one, about `events` in all.

    Returns the original manifests by name.
    """
    store = ArchiveStore.open(archive)
    kept: dict[str, bytes] = {}
    for node in manifest.archived_nodes(store):
        whole = manifest.read_manifest(store, node)
        if whole is not None:
            kept[manifest.manifest_path(node)] = manifest.encode_manifest(whole)
            short = _shorten_manifest(whole, events // len(manifest.archived_nodes(store)))
            manifest.write_manifest(store, manifest.sign_manifest(short, keys[node]))
    return kept


def _shorten_manifest(whole: ArchiveManifest, events: int) -> ArchiveManifest:
    cut = len(whole.segments) - 1
    while cut > 1 and sum(s.rows for s in whole.segments[cut - 1 :]) <= events:
        cut -= 1
    return msgspec.structs.replace(whole, segments=whole.segments[:cut])


def restore_manifests(archive: str, kept: dict[str, bytes]) -> None:
    """Write back the manifests that `hold_back_segments` returned."""
    store = ArchiveStore.open(archive)
    for name, content in kept.items():
        store.write_file(name, content)


def _time_duckdb(archive: str) -> float | None:
    try:
        import duckdb
    except ImportError:
        return None
    start = time.perf_counter()
    with duckdb.connect() as connection:
        connection.execute(_LIFECYCLE_QUERY, [f"{archive}/node=*/date=*/*.parquet"]).fetchall()
    return time.perf_counter() - start


def render_result(result: PipelineBenchResult) -> RenderableType:
    table = Table(title="pipeline", title_justify="left")
    for heading in ("", "events", "seconds", "events/s", "session s", "peak MiB"):
        table.add_column(heading, justify="right" if heading else "left")
    for size in result.sizes:
        _add_rows(table, size, result.sizes[0])
    about = result.machine
    return Group(
        table,
        f"Durability: {result.durability}",
        f"Machine: {about.cores} cores, Python {about.python}, {about.system};"
        f" Spark on {result.options.master}",
    )


def _add_rows(table: Table, size: SizeResult, first: SizeResult) -> None:
    table.add_row(f"[bold]{size.nodes:,} nodes, {size.hours:,} h[/bold]")
    phases = {
        "lifecycle + SLO": size.levels,
        "full run, all tables": size.full,
        "one percent more": size.more,
        **{f"all tables, --engine {name}": timed for name, timed in size.engines.items()},
    }
    for name, phase in phases.items():
        figures = (f"{phase.seconds:.1f}", f"{phase.per_sec:,.0f}", f"{phase.session_seconds:.1f}")
        table.add_row(name, f"{phase.events:,}", *figures, f"{phase.peak_mib:,}")
    table.add_row("… of the full run's time", "", f"{size.share:.1%}")
    if size is not first:
        of_first = size.full.per_sec / first.full.per_sec
        table.add_row("rate of the full run, of the first's", "", f"{of_first:.2f}")
    took = size.more.session_seconds + size.more.seconds
    verdict = "within" if took <= size.allowed_seconds else "over"
    limit = f"… cold: {took:.1f} s, {verdict} 5 % and a session start"
    table.add_row(limit, "", f"{size.allowed_seconds:.1f}")
    if size.duckdb_seconds is not None:
        rate = f"{size.events / size.duckdb_seconds:,.0f}"
        bare = ("DuckDB, bare lifecycle", f"{size.events:,}", f"{size.duckdb_seconds:.1f}", rate)
        table.add_row(*bare)
    table.add_section()
