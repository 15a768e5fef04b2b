"""Measures the pipeline on archives that are hard to divide: one busy sender, or very many nodes.

The nodes form a ring: each of the first `senders` sends to the next node, which accepts and
processes every message. All of it happens within one hour. The archives are signed, but not
chained: `run` takes them in, and an audit would not.
"""

import hashlib
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from rich.console import Group, RenderableType
from rich.table import Table

from gatepost.archive import manifest
from gatepost.archive.archive_store import ArchiveStore
from gatepost.archive.manifest import ArchivedIncarnation, ArchiveManifest, ArchiveSegment
from gatepost.bench.mailbox import BenchMachine, describe_machine
from gatepost.bench.process_memory import EXECUTOR_NAME, peak_rss, watch_largest_tree, watch_memory
from gatepost.errors import BenchFailed
from gatepost.events import NodeKey

if TYPE_CHECKING:
    import pyarrow as pa

    from gatepost.pipeline.jobs.pipeline import RunSummary
    from gatepost.pipeline.kernels.columns import Numbers
    from gatepost.pipeline.transport import FoldStep, PartBlock, SparkTransport

# 2026-03-03T08:00:00Z
_START: Final = 1_772_524_800_000
_HOUR_MS: Final = 3_600_000
_DATE: Final = "2026-03-03"
_INCARNATION: Final = "a1"
_ACCEPT_MS, _PROCESS_MS = 5, 50
_EVENTS_PER_DELIVERY = 3
# About how many deliveries of a node are made at once.
_BUILT_DELIVERIES = 50_000
_SMALL_DRIVER: Final = {"spark.driver.memory": "2g"}
# From this many events on, a second process pays off.
_MANY_EVENTS = 100_000


class ArchiveShape(Struct, frozen=True):
    nodes: int
    senders: int
    segments: int
    deliveries: int

    @property
    def deliveries_per_segment(self) -> int:
        return self.deliveries // self.senders // self.segments

    @property
    def events(self) -> int:
        return self.deliveries_per_segment * self.senders * self.segments * _EVENTS_PER_DELIVERY


SHAPES: Final = {
    "one-sender": ArchiveShape(nodes=2, senders=1, segments=100, deliveries=10_000_000),
    "many-nodes": ArchiveShape(nodes=1000, senders=1000, segments=100, deliveries=1_000_000),
}


def shape_named(name: str, nodes: int | None = None, segments: int | None = None) -> ArchiveShape:
    """The shape with other numbers of nodes and segments, and as many events in each segment."""
    known = SHAPES[name]
    per_segment = known.deliveries_per_segment
    senders = known.senders if nodes is None or known.senders < known.nodes else nodes
    parts = segments or known.segments
    return ArchiveShape(nodes or known.nodes, senders, parts, per_segment * senders * parts)


class ShapeResult(Struct, frozen=True):
    """`executor_mib` is the most memory of one executor with its Python workers.

    `driver_mib` is that of the driver with its children, `python_mib` that of its Python process
    alone. If only a plan was measured, no event was read.
    """

    machine: BenchMachine
    name: str
    shape: ArchiveShape
    master: str
    events: int
    session_seconds: float
    seconds: float
    driver_mib: int
    executor_mib: int
    python_mib: int
    is_plan: bool = False


def write_shaped_archive(root: Path, shape: ArchiveShape) -> None:
    """Write the archive into an empty folder of this machine, without syncing it to disk."""
    jobs = min(os.cpu_count() or 1, shape.nodes)
    if jobs == 1 or shape.events < _MANY_EVENTS:
        _write_nodes(root, shape, range(shape.nodes))
        return
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        shares = [range(first, shape.nodes, jobs) for first in range(jobs)]
        for done in [pool.submit(_write_nodes, root, shape, share) for share in shares]:
            done.result()


def _write_nodes(root: Path, shape: ArchiveShape, nodes: range) -> None:
    for node in nodes:
        folder = root / f"node={_node_name(node)}"
        segments = [_write_segment(folder, rows) for rows in _cut_segments(shape, node)]
        _write_manifest(root, node, segments)


def _write_manifest(root: Path, node: int, segments: Sequence[ArchiveSegment]) -> None:
    listed = ArchiveManifest(
        node=_node_name(node),
        public_key=b"",
        incarnations=(ArchivedIncarnation(_INCARNATION, 1),),
        segments=tuple(segments),
        archived_through=segments[-1].last if segments else 0,
    )
    key = NodeKey(node.to_bytes(32, "big"))
    manifest.write_manifest(ArchiveStore.open(str(root)), manifest.sign_manifest(listed, key))


def _cut_segments(shape: ArchiveShape, node: int) -> "Iterator[pa.Table]":
    """The events of a node, numbered, a segment at a time."""
    import numpy as np
    import pyarrow as pa

    at_once = max(1, _BUILT_DELIVERIES // shape.deliveries_per_segment)
    first = 1
    for part in range(0, shape.segments, at_once):
        parts = range(part, min(part + at_once, shape.segments))
        rows = _events_of_parts(shape, node, parts)
        numbers = pa.array(np.arange(first, first + rows.num_rows, dtype=np.int64))
        rows = rows.set_column(rows.schema.get_field_index("seq"), "seq", numbers)
        size = rows.num_rows // len(parts)
        yield from (rows.slice(index * size, size) for index in range(len(parts)) if size)
        first += rows.num_rows


def _node_name(node: int) -> str:
    return f"node-{node:04d}"


def _events_of_parts(shape: ArchiveShape, node: int, parts: range) -> "pa.Table":
    """The messages and answers of a node in these parts of the hour, in order of time."""
    import pyarrow as pa

    tables = [_event_table({}, 0)]
    if node < shape.senders:
        tables.append(_messages(shape, node, parts))
    asker = (node - 1) % shape.nodes
    if asker < shape.senders:
        tables += _receipts(shape, asker, parts)
    return pa.concat_tables(tables).sort_by("created_at")


def _messages(shape: ArchiveShape, node: int, parts: range) -> "pa.Table":
    import numpy as np
    import pyarrow as pa

    number, sent_at = _numbers_and_times(shape, parts)
    columns = {
        "event_id": _message_ids(node, number, sent_at),
        "kind": _repeat("message", len(number)),
        "source_agent": _repeat(f"sender-{node}", len(number)),
        "to_node": _repeat(_node_name((node + 1) % shape.nodes), len(number)),
        "to_agent": _repeat("receiver", len(number)),
        "pair_seq": pa.array(number + 1),
        "corr_id": pa.array(number).cast(pa.string()),
        "created_at": pa.array(sent_at),
        "expires_at": pa.array(sent_at + _HOUR_MS),
        "payload_size": pa.array(np.full(len(number), 286, np.int32)),
    }
    return _event_table(columns, len(number))


def _receipts(shape: ArchiveShape, asker: int, parts: range) -> "Iterator[pa.Table]":
    import pyarrow as pa

    number, sent_at = _numbers_and_times(shape, parts)
    for place, (status, outcome, later) in enumerate(
        (("accepted", None, _ACCEPT_MS), ("processed", "ok", _PROCESS_MS)), 1
    ):
        columns = {
            "event_id": _message_ids(asker, number, sent_at + later, place),
            "kind": _repeat("ack", len(number)),
            "to_node": _repeat(_node_name(asker), len(number)),
            "ref_id": _message_ids(asker, number, sent_at),
            "created_at": pa.array(sent_at + later),
            "status": _repeat(status, len(number)),
            "outcome": _repeat(outcome, len(number)),
        }
        yield _event_table(columns, len(number))


def _numbers_and_times(shape: ArchiveShape, parts: range) -> "tuple[Numbers, Numbers]":
    """The numbers of a sender's messages in these parts, and when they are sent."""
    import numpy as np

    count = shape.deliveries_per_segment
    number = np.arange(parts.start * count, parts.stop * count, dtype=np.int64)
    spread = _HOUR_MS - 2 * _PROCESS_MS
    return number, _START + number * spread // (count * shape.segments)


def _message_ids(node: int, number: "Numbers", at: "Numbers", place: int = 0) -> "pa.Array":
    import numpy as np

    from gatepost.pipeline.kernels.blocks import join_ids

    high = at.astype(np.uint64) << np.uint64(16)
    low = np.uint64((node << 2 | place) << 40) + number.astype(np.uint64)
    return join_ids(high, low)


def _repeat(text: str | None, rows: int) -> "pa.Array":
    import pyarrow as pa

    return pa.repeat(pa.scalar(text, pa.string()), rows)


def _event_table(columns: "dict[str, pa.Array]", rows: int) -> "pa.Table":
    """Events with these columns; the others are null, or zero where the schema demands a value."""
    import numpy as np
    import pyarrow as pa

    from gatepost.archive.schema import EVENT_SCHEMA

    common = {
        "incarnation": _repeat(_INCARNATION, rows),
        "source_agent": _repeat("gateway", rows),
        "attempt": pa.array(np.ones(rows, np.int32)),
        "digest": pa.repeat(pa.scalar(bytes(32)), rows),
    }
    known = common | columns
    fields = [field.with_nullable(True) for field in EVENT_SCHEMA]
    zeros = pa.array(np.zeros(rows, np.int8))
    numbers = {each.name for each in EVENT_SCHEMA if _is_required_number(each)}
    rest = {each.name: zeros if each.name in numbers else pa.nulls(rows) for each in fields}
    arrays = [(rest | known)[field.name].cast(field.type) for field in fields]
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def _is_required_number(field: "pa.Field") -> bool:
    import pyarrow as pa

    is_number = pa.types.is_integer(field.type) or pa.types.is_boolean(field.type)
    return is_number and not field.nullable


def _segment_path(first: int, last: int) -> str:
    return f"date={_DATE}/{first:020}-{last:020}.parquet"


def _write_segment(folder: Path, rows: "pa.Table") -> ArchiveSegment:
    import pyarrow.compute as pc

    from gatepost.archive.segment_encoding import encode_parquet

    first, last = rows["seq"][0].as_py(), rows["seq"][-1].as_py()
    content = encode_parquet(rows)
    path = _segment_path(first, last)
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_bytes(content)
    times = pc.min_max(rows["created_at"]).as_py()
    return ArchiveSegment(
        path=path,
        incarnation=_INCARNATION,
        first=first,
        last=last,
        rows=rows.num_rows,
        bytes=content.size,
        sha256=hashlib.sha256(content).hexdigest(),
        min_created_at=times["min"],
        max_created_at=times["max"],
        chain="0" * 64,
        archived_at=times["max"],
    )


def measure_shape(
    folder: Path,
    name: str,
    master: str,
    step: Callable[[str], object] = str,
    shape: ArchiveShape | None = None,
) -> ShapeResult:
    """Write an archive of this shape, and make all tables of it in one run."""
    from gatepost.pipeline.jobs.pipeline import update_tables

    shape = shape or SHAPES[name]
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=folder) as work_dir:
        archive, tables = Path(work_dir, "archive"), Path(work_dir, "tables")
        step(f"{name}: writing {shape.events:,} events of {shape.nodes:,} nodes")
        write_shaped_archive(archive, shape)
        step(f"{name}: the full run")
        return _time_job(update_tables, str(archive), str(tables), name, shape, master)


def measure_plan(
    folder: Path,
    name: str,
    master: str,
    step: Callable[[str], object] = str,
    shape: ArchiveShape | None = None,
) -> ShapeResult:
    """Plan a run over an archive of this shape of which only the manifests exist.

    The plan is made in this process and carried to executors, which count its rows. The JVM of the
    driver has a heap of 2 GB.
    """
    shape = shape or SHAPES[name]
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=folder) as work_dir:
        archive = Path(work_dir, "archive")
        step(f"{name}: writing the manifests of {shape.nodes:,} nodes")
        write_manifests(archive, shape)
        step(f"{name}: planning a run")
        return _time_job(plan_run, str(archive), "", name, shape, master, _SMALL_DRIVER)


def write_manifests(root: Path, shape: ArchiveShape) -> None:
    for node in range(shape.nodes):
        _write_manifest(root, node, [*_list_segments(shape, node)])


def _list_segments(shape: ArchiveShape, node: int) -> Iterator[ArchiveSegment]:
    """Segments as manifests list them; there are no files."""
    rows = shape.deliveries_per_segment * _EVENTS_PER_DELIVERY
    for number in range(shape.segments):
        first, last = number * rows + 1, (number + 1) * rows
        at = _START + number * _HOUR_MS // shape.segments
        yield ArchiveSegment(
            path=_segment_path(first, last),
            incarnation=_INCARNATION,
            first=first,
            last=last,
            rows=rows,
            bytes=10_000 + number,
            sha256=hashlib.sha256(f"{node}/{number}".encode()).hexdigest(),
            min_created_at=at,
            max_created_at=at + _HOUR_MS // shape.segments,
            chain="0" * 64,
            archived_at=at + _HOUR_MS,
        )


def plan_run(transport: "SparkTransport", archive: str, _: str) -> "RunSummary":
    """Plan as the first `run` does: once to check all files, and once to read them."""
    from gatepost.pipeline.archive_reader import ArchiveReader
    from gatepost.pipeline.jobs.batch_ledger import NO_BATCH, PipelineBatch
    from gatepost.pipeline.jobs.batch_plan import BatchPlanner
    from gatepost.pipeline.jobs.deliveries import NewEvents, plan_shares
    from gatepost.pipeline.jobs.pipeline import RunSummary
    from gatepost.pipeline.objectives import Objectives

    counting = _CountingTransport(transport)
    planner = BatchPlanner(counting, ArchiveReader(archive), Objectives())
    plan = planner.plan_next(NO_BATCH, None)
    assert plan is not None
    slices = planner.slices_of(PipelineBatch(1, {}, plan.end))
    counting.run(plan_shares(transport, NewEvents(archive, slices)), _count_share)
    return RunSummary(1, counting.last_rows)


class _CountingTransport:
    """Carries shares to executors, which count their rows and do nothing else."""

    queries = input_rows = last_rows = 0

    def __init__(self, transport: "SparkTransport") -> None:
        self._transport = transport
        self.slots = transport.slots

    def run(
        self, shares: Sequence[Any], read: Callable[[Any], object], *folds: "FoldStep"
    ) -> list[bytes]:
        counted = self._transport.run(shares, _count_share)
        self.last_rows = sum(map(int, counted))
        return []


def _count_share(share: object) -> "Iterator[PartBlock]":
    from gatepost.pipeline.transport import RESULT_PART, count_rows

    yield RESULT_PART, str(count_rows(share)).encode()


def _time_job(
    job: "Callable[[SparkTransport, str, str], RunSummary]",
    archive: str,
    tables: str,
    name: str,
    shape: ArchiveShape,
    master: str,
    conf: Mapping[str, str] = MappingProxyType({}),
) -> ShapeResult:
    from gatepost.pipeline.session import spark_session
    from gatepost.pipeline.transport import SparkTransport

    with watch_memory() as driver, watch_largest_tree(EXECUTOR_NAME) as executor:
        start = time.perf_counter()
        with spark_session(master, name="bench", conf=conf, brief=True) as spark:
            session = time.perf_counter() - start
            ran = job(SparkTransport(spark), archive, tables)
            seconds = time.perf_counter() - start - session
    if ran.events != shape.events or ran.aside:
        raise BenchFailed(f"{shape.events} events were archived, {ran.events} read")
    peaks = driver[0] // 2**20, executor[0] // 2**20, peak_rss() // 2**20
    figures = (ran.events, session, seconds, *peaks, job is plan_run)
    return ShapeResult(describe_machine(), name, shape, master, *figures)


def render_shape(result: ShapeResult) -> RenderableType:
    what = "planning a run alone" if result.is_plan else "a run"
    table = Table(title=f"pipeline, {result.name}: {what}", title_justify="left")
    for heading in ("nodes", "segments", "events", "seconds", "session s", "executor MiB"):
        table.add_column(heading, justify="right")
    shape = result.shape
    table.add_row(
        f"{shape.nodes:,}",
        f"{shape.nodes * shape.segments:,}",
        f"{result.events:,}",
        f"{result.seconds:.1f}",
        f"{result.session_seconds:.1f}",
        f"{result.executor_mib:,}" if result.executor_mib else "in the driver",
    )
    about = result.machine
    return Group(
        table,
        f"Memory of the driver and its children: {result.driver_mib:,} MiB;"
        f" of its Python process: {result.python_mib:,} MiB",
        f"Machine: {about.cores} cores, Python {about.python}, {about.system};"
        f" Spark on {result.master}",
    )
