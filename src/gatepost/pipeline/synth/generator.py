"""The generator of synthetic archives.

It advances all nodes together, one chunk of messages at a time, so that memory stays small.
"""

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from multiprocessing.connection import Connection
from typing import NamedTuple, Protocol

import msgspec
import numpy as np
from msgspec import Struct

from gatepost.archive.archive_store import ArchiveStore
from gatepost.errors import PipelineError
from gatepost.events import NodeKey
from gatepost.pipeline.synth import ground_truth
from gatepost.pipeline.synth.event_records import RECORD_TYPE, Records, record_times
from gatepost.pipeline.synth.mesh import DAY, HOUR, SyntheticMesh, build_mesh, message_time
from gatepost.pipeline.synth.node_writer import MarkedEvent, NodeArchiveWriter, WrittenNode
from gatepost.pipeline.synth.ordinary_traffic import EVENTS_PER_MESSAGE, OrdinaryTraffic
from gatepost.pipeline.synth.planting import Planting

MESSAGES_PER_CHUNK = 50_000
MIN_NODES = 3
MIN_DURATION = 3 * HOUR
MAX_DURATION = 7 * DAY

_FOREVER = 1 << 58

ProgressCallback = Callable[[int], None]


class SynthOptions(Struct, frozen=True, kw_only=True):
    """Options of a synthetic archive. The same options give the same files, whatever `jobs` is.

    The archive spans `hours`, by default as many as its events take. `plant` adds events to those
    of ordinary traffic; every writing process calls it.
    """

    events: int
    nodes: int = 4
    seed: int = 0
    segment_rows: int = 100_000
    bodies: bool = False
    jobs: int = 1
    hours: int | None = None
    plant: Callable[[SyntheticMesh], Planting] = Planting

    def __post_init__(self) -> None:
        if self.nodes < MIN_NODES:
            raise PipelineError(f"a synthetic archive needs at least {MIN_NODES} nodes")

    @property
    def duration_ms(self) -> int:
        """That of `hours`, else about one event per second and node, within limits."""
        if self.hours is not None:
            return self.hours * HOUR
        return min(max(self.events * 1000 // self.nodes, MIN_DURATION), MAX_DURATION)


def generate_archive(
    root: str, options: SynthOptions, progress: ProgressCallback | None = None
) -> ground_truth.ArchiveTruth:
    """Write an archive into an empty folder, with `truth.json` beside it.

    `progress` is called with the number of events generated since its last call.
    """
    return write_archive(root, options, progress).truth


class WrittenArchive(NamedTuple):
    """An archive that was written: its truth, and its planted events with their positions."""

    truth: ground_truth.ArchiveTruth
    planting: Planting
    marked: list[MarkedEvent]


def write_archive(
    root: str, options: SynthOptions, progress: ProgressCallback | None = None
) -> WrittenArchive:
    store = ArchiveStore.open(root)
    if store.list_files():
        raise PipelineError(f"{root} is not empty: choose another folder, or remove it first")
    plan = _build_plan(options)
    mesh = plan.mesh
    traffic = OrdinaryTraffic(mesh, max(1, round(options.events / EVENTS_PER_MESSAGE)))
    with ExitStack() as stack:
        writers = _open_shard_writers(root, options, stack)
        for rows in _event_batches(traffic, plan.event_rows()):
            _dispatch_rows(rows, writers, len(mesh.nodes))
            if progress is not None:
                progress(len(rows))
        written = [node for writer in writers for node in writer.finish()]
    written.sort(key=lambda node: node.node)
    ground_truth.write_room_facts(store, mesh, plan, written)
    result = ground_truth.collect_truth(mesh, traffic, plan, written)
    store.write_file(ground_truth.TRUTH_FILE, msgspec.json.format(msgspec.json.encode(result)))
    return WrittenArchive(result, plan, [event for node in written for event in node.marked])


def node_keys(options: SynthOptions) -> dict[str, NodeKey]:
    """Node → the key with which its archive is signed."""
    mesh = build_mesh(options.seed, options.nodes, options.duration_ms)
    return dict(zip(mesh.nodes, mesh.keys, strict=True))


def _open_shard_writers(root: str, options: SynthOptions, stack: ExitStack) -> "list[ShardWriter]":
    if options.jobs == 1:
        return [_LocalShardWriter(root, options, 0)]
    return [stack.enter_context(_ShardWriterProcess(root, options, n)) for n in range(options.jobs)]


def _build_plan(options: SynthOptions) -> Planting:
    """Build the mesh and plant what is asked for; every process gets the same result."""
    return options.plant(build_mesh(options.seed, options.nodes, options.duration_ms))


def _event_batches(traffic: OrdinaryTraffic, waiting: Records) -> Iterator[Records]:
    """All events, chunk by chunk, each batch sorted by node and time.

    Events later than the first message of the next chunk wait for the next batch.
    """
    for first in range(0, traffic.message_count, MESSAGES_PER_CHUNK):
        last = min(first + MESSAGES_PER_CHUNK, traffic.message_count)
        rows = np.concatenate((waiting, traffic.generate_chunk(first, last)))
        limit = (
            message_time(traffic.mesh, last, traffic.message_count)
            if last < traffic.message_count
            else _FOREVER
        )
        ready = record_times(rows) < limit
        waiting = rows[~ready]
        rows = rows[ready]
        yield rows[np.argsort(rows["node"].astype(np.int64) << 48 | rows["key"], kind="stable")]


class ShardWriter(Protocol):
    """Writes the archives of a share of the nodes."""

    def add_rows(self, node: int, rows: Records) -> None: ...

    def finish(self) -> list[WrittenNode]: ...


def _dispatch_rows(rows: Records, writers: list[ShardWriter], nodes: int) -> None:
    cuts = np.searchsorted(rows["node"], np.arange(nodes + 1))
    for node in range(nodes):
        writers[node % len(writers)].add_rows(node, rows[cuts[node] : cuts[node + 1]])


class _LocalShardWriter:
    """Writes its share of the nodes in this process."""

    def __init__(self, root: str, options: SynthOptions, first: int) -> None:
        plan = _build_plan(options)
        mesh, tampering = plan.mesh, plan.tampering
        store = ArchiveStore.open(root)
        self._writers = {
            node: NodeArchiveWriter(
                mesh, node, store, options.segment_rows, options.bodies, tampering
            )
            for node in range(first, len(mesh.nodes), options.jobs)
        }

    def add_rows(self, node: int, rows: Records) -> None:
        self._writers[node].add_rows(rows)

    def finish(self) -> list[WrittenNode]:
        return [writer.finish() for writer in self._writers.values()]


class _ShardWriterProcess:
    """Writes its share of the nodes in a separate process.

    The pipe to the process is small, so that the process never falls far behind.
    """

    def __init__(self, root: str, options: SynthOptions, first: int) -> None:
        # Not fork: pyarrow has threads, which do not survive it.
        context = multiprocessing.get_context("spawn")
        self._pipe, child_pipe = context.Pipe()
        self._process = context.Process(
            target=_run_shard_writer, args=(child_pipe, root, options, first)
        )
        self._process.start()
        child_pipe.close()

    def __enter__(self) -> "_ShardWriterProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self._pipe.close()
        self._process.join()

    def add_rows(self, node: int, rows: Records) -> None:
        try:
            self._pipe.send(node)
            self._pipe.send_bytes(rows.tobytes())
        except BrokenPipeError:
            raise _writer_died_error() from None

    def finish(self) -> list[WrittenNode]:
        try:
            self._pipe.send(None)
            return msgspec.json.decode(self._pipe.recv_bytes(), type=list[WrittenNode])
        except (BrokenPipeError, EOFError):
            raise _writer_died_error() from None


def _writer_died_error() -> PipelineError:
    return PipelineError("a process that writes the archive ended early; see its error above")


def _run_shard_writer(pipe: Connection, root: str, options: SynthOptions, first: int) -> None:
    writer = _LocalShardWriter(root, options, first)
    try:
        while (node := pipe.recv()) is not None:
            writer.add_rows(node, np.frombuffer(pipe.recv_bytes(), RECORD_TYPE))
        pipe.send_bytes(msgspec.json.encode(writer.finish()))
    except EOFError:
        # The parent process is gone, and with it the reason to finish the archive.
        return
