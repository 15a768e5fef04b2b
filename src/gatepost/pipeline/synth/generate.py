"""The generator: time goes by in chunks, all nodes advance together, and memory stays small."""

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from multiprocessing.connection import Connection
from typing import Protocol

import msgspec
import numpy as np
from msgspec import Struct

from gatepost.archive.store import Store
from gatepost.errors import PipelineError
from gatepost.pipeline.synth import truth
from gatepost.pipeline.synth.faults import FAULTS, Planting
from gatepost.pipeline.synth.records import RECORD, Records, times_of
from gatepost.pipeline.synth.traffic import EVENTS_PER_MESSAGE, Traffic
from gatepost.pipeline.synth.world import DAY, HOUR, World, build, moment
from gatepost.pipeline.synth.write import NodeWriter, Tampering, Written

CHUNK = 50_000
MIN_NODES = 3
MIN_DURATION = 3 * HOUR
MAX_DURATION = 7 * DAY

_FOREVER = 1 << 58

Progress = Callable[[int], None]


class Options(Struct, frozen=True, kw_only=True):
    """What to generate. The same options give the same files, whatever `jobs` is."""

    events: int
    nodes: int = 4
    seed: int = 0
    faults: tuple[str, ...] = ()
    segment_rows: int = 100_000
    bodies: bool = False
    jobs: int = 1

    def __post_init__(self) -> None:
        if self.nodes < MIN_NODES:
            raise PipelineError(f"a synthetic archive needs at least {MIN_NODES} nodes")
        if unknown := set(self.faults) - set(FAULTS):
            names = ", ".join(FAULTS)
            raise PipelineError(f"unknown fault {', '.join(sorted(unknown))}; known are: {names}")

    @property
    def duration(self) -> int:
        """About one event a second from each node, within limits; in ms."""
        return min(max(self.events * 1000 // self.nodes, MIN_DURATION), MAX_DURATION)


def generate(root: str, options: Options, progress: Progress | None = None) -> truth.Truth:
    """Write an archive into an empty folder, with `truth.json` beside it.

    `progress` is told how many events were handed on since it was last called.
    """
    store = Store.open(root)
    if store.files():
        raise PipelineError(f"{root} is not empty: choose another folder, or remove it first")
    world, planting = _plan(options)
    traffic = Traffic(world, max(1, round(options.events / EVENTS_PER_MESSAGE)))
    with ExitStack() as stack:
        desks = _desks(root, options, stack)
        for rows in _batches(traffic, planting.rows()):
            _hand_on(rows, desks, len(world.nodes))
            if progress is not None:
                progress(len(rows))
        written = [node for desk in desks for node in desk.finish()]
    written.sort(key=lambda node: node.node)
    truth.write_room(store, world, planting, written)
    found = truth.reckon(world, traffic, planting, written)
    store.write(truth.NAME, msgspec.json.format(msgspec.json.encode(found)))
    return found


def _desks(root: str, options: Options, stack: ExitStack) -> "list[Desk]":
    if options.jobs == 1:
        return [_Desk(root, options, 0)]
    return [stack.enter_context(_Worker(root, options, n)) for n in range(options.jobs)]


def _plan(options: Options) -> tuple[World, Planting]:
    """The world with all that is planted in it: the same in every process."""
    planting = Planting(build(options.seed, options.nodes, options.duration))
    for name, plant in FAULTS.items():
        if name in options.faults:
            plant(planting)
    return planting.world, planting


def _batches(traffic: Traffic, waiting: Records) -> Iterator[Records]:
    """All events in order of node and time, as far as each chunk of messages settles them."""
    for first in range(0, traffic.total, CHUNK):
        last = min(first + CHUNK, traffic.total)
        rows = np.concatenate((waiting, traffic.chunk(first, last)))
        border = moment(traffic.world, last, traffic.total) if last < traffic.total else _FOREVER
        ready = times_of(rows) < border
        waiting = rows[~ready]
        rows = rows[ready]
        yield rows[np.argsort(rows["node"].astype(np.int64) << 48 | rows["key"], kind="stable")]


class Desk(Protocol):
    """Whoever writes some of the nodes."""

    def add(self, node: int, rows: Records) -> None: ...

    def finish(self) -> list[Written]: ...


def _hand_on(rows: Records, desks: list[Desk], nodes: int) -> None:
    cuts = np.searchsorted(rows["node"], np.arange(nodes + 1))
    for node in range(nodes):
        desks[node % len(desks)].add(node, rows[cuts[node] : cuts[node + 1]])


class _Desk:
    """Writes its share of the nodes in this process."""

    def __init__(self, root: str, options: Options, first: int) -> None:
        world, planting = _plan(options)
        marks = planting.marks
        tampering = Tampering(
            marks.get("chain_gap", -1), marks.get("chain_fork", -1), marks.get("bad_signature", -1)
        )
        store = Store.open(root)
        self._writers = {
            node: NodeWriter(world, node, store, options.segment_rows, options.bodies, tampering)
            for node in range(first, len(world.nodes), options.jobs)
        }

    def add(self, node: int, rows: Records) -> None:
        self._writers[node].add(rows)

    def finish(self) -> list[Written]:
        return [writer.finish() for writer in self._writers.values()]


class _Worker:
    """A desk in a process of its own. A pipe to it holds little, so it is never far behind."""

    def __init__(self, root: str, options: Options, first: int) -> None:
        # Not fork: pyarrow has threads.
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, root, options, first))
        self._process.start()
        theirs.close()

    def __enter__(self) -> "_Worker":
        return self

    def __exit__(self, *_: object) -> None:
        self._pipe.close()
        self._process.join()

    def add(self, node: int, rows: Records) -> None:
        try:
            self._pipe.send(node)
            self._pipe.send_bytes(rows.tobytes())
        except BrokenPipeError:
            raise _died() from None

    def finish(self) -> list[Written]:
        try:
            self._pipe.send(None)
            return msgspec.json.decode(self._pipe.recv_bytes(), type=list[Written])
        except (BrokenPipeError, EOFError):
            raise _died() from None


def _died() -> PipelineError:
    return PipelineError("a process that writes the archive ended early; its error stands above")


def _serve(pipe: Connection, root: str, options: Options, first: int) -> None:
    desk = _Desk(root, options, first)
    try:
        while (node := pipe.recv()) is not None:
            desk.add(node, np.frombuffer(pipe.recv_bytes(), RECORD))
        pipe.send_bytes(msgspec.json.encode(desk.finish()))
    except EOFError:
        # Whoever wanted the archive is gone, and with them the reason to finish it.
        return
