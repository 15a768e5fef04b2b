"""The pipeline over a synthetic archive: a full run, then a run over one percent more.

DuckDB, where it is installed, answers the bare lifecycle question over the same files, so that
nobody takes Spark on one machine for fast. What Spark is for is more than one machine; what the
pipeline is for is that the second run costs what is new.
"""

import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct
from rich.console import RenderableType
from rich.table import Table

from gatepost.archive import manifest
from gatepost.archive.manifest import Manifest
from gatepost.archive.store import Store
from gatepost.errors import BenchFailed

if TYPE_CHECKING:
    from gatepost.pipeline.jobs.run import Pipeline

_LIFECYCLE = """
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


class Options(Struct, frozen=True):
    events: int = 5_000_000
    nodes: int = 8
    master: str = "local[*]"


class Phase(Struct, frozen=True):
    events: int
    seconds: float
    per_sec: float


class Result(Struct, frozen=True):
    """`peak_mib` is the most that driver, JVM and Python workers held together."""

    options: Options
    cores: int
    session_seconds: float
    full: Phase
    more: Phase
    share: float
    peak_mib: int
    duckdb_seconds: float | None = None


def bench(folder: Path, options: Options) -> Result:
    """Everything, in a folder of its own that is removed at the end."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=folder) as place:
        return measure(Path(place), options)


def measure(place: Path, options: Options) -> Result:
    from gatepost.pipeline.jobs.run import Pipeline
    from gatepost.pipeline.session import spark_session
    from gatepost.pipeline.synth import Options as Synth
    from gatepost.pipeline.synth import generate

    archive, tables = str(place / "archive"), str(place / "tables")
    # A segment is about one percent of its node, so one percent can be held back.
    rows = max(1000, options.events // options.nodes // 100)
    shape = Synth(events=options.events, nodes=options.nodes, segment_rows=rows)
    truth = generate(archive, shape)
    kept = hold_back(archive, truth.events // 100)
    with watched() as peak:
        start = time.perf_counter()
        with spark_session(options.master, name="bench") as spark:
            session = time.perf_counter() - start
            pipeline = Pipeline(spark, archive, tables)
            full = _timed(pipeline)
            give_back(archive, kept)
            more = _timed(pipeline)
    if full.events + more.events != truth.events:
        raise BenchFailed(f"{truth.events} events were archived, {full.events + more.events} read")
    return Result(
        options,
        os.cpu_count() or 1,
        session,
        full,
        more,
        more.seconds / full.seconds,
        peak[0] // 2**20,
        _duckdb(archive),
    )


def _timed(pipeline: "Pipeline") -> Phase:
    start = time.perf_counter()
    ran = pipeline.run()
    seconds = time.perf_counter() - start
    return Phase(ran.events, seconds, ran.events / seconds)


def hold_back(archive: str, events: int) -> dict[str, bytes]:
    """Take the last segments of all nodes off the list; returns the manifests as they were."""
    store = Store.open(archive)
    kept: dict[str, bytes] = {}
    for node in manifest.nodes(store):
        whole = manifest.read(store, node)
        if whole is not None:
            kept[manifest.name_of(node)] = manifest.encode(whole)
            manifest.write(store, _shorter(whole, events // len(manifest.nodes(store))))
    return kept


def _shorter(whole: Manifest, events: int) -> Manifest:
    cut = len(whole.segments)
    while cut > 1 and sum(s.rows for s in whole.segments[cut:]) < events:
        cut -= 1
    return msgspec.structs.replace(whole, segments=whole.segments[:cut])


def give_back(archive: str, kept: dict[str, bytes]) -> None:
    store = Store.open(archive)
    for name, content in kept.items():
        store.write(name, content)


@contextmanager
def watched() -> Iterator[list[int]]:
    """The most memory this process and all its children hold while the block runs."""
    peak, done = [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.5):
            peak[0] = max(peak[0], _resident())

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield peak
    finally:
        done.set()
        watcher.join(5)


def _resident() -> int:
    """By the kernel's own account: pages of this process and everything below it."""
    children: dict[int, list[int]] = {}
    pages: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        pid = int(stat.parent.name)
        children.setdefault(int(fields[1]), []).append(pid)
        pages[pid] = int(fields[21])
    total, todo = 0, [os.getpid()]
    while todo:
        pid = todo.pop()
        total += pages.get(pid, 0)
        todo += children.get(pid, [])
    return total * os.sysconf("SC_PAGE_SIZE")


def _duckdb(archive: str) -> float | None:
    try:
        import duckdb
    except ImportError:
        return None
    start = time.perf_counter()
    with duckdb.connect() as connection:
        connection.execute(_LIFECYCLE, [f"{archive}/node=*/date=*/*.parquet"]).fetchall()
    return time.perf_counter() - start


def render(result: Result) -> RenderableType:
    table = Table(title="pipeline", title_justify="left")
    for heading in ("", "events", "seconds", "events/s"):
        table.add_column(heading, justify="right" if heading else "left")
    for name, phase in (("full run", result.full), ("one percent more", result.more)):
        row = (f"{phase.events:,}", f"{phase.seconds:.1f}", f"{phase.per_sec:,.0f}")
        table.add_row(name, *row)
    if result.duckdb_seconds is not None:
        bare = (result.full.events + result.more.events) / result.duckdb_seconds
        seconds = f"{result.duckdb_seconds:.1f}"
        table.add_row("DuckDB, bare lifecycle only", "", seconds, f"{bare:,.0f}")
    table.caption = (
        f"{result.cores} cores; session start {result.session_seconds:.1f} s;"
        f" peak memory {result.peak_mib:,} MiB; the second run took {result.share:.1%} of the first"
    )
    return table
