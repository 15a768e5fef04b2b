"""Measures complete lifecycles between two gateways: send → accepted → processed → closed.

The two gateways, the sender and the agent each run in their own process, connected over loopback.
A message counts once its sender's gateway has closed its delivery on disk. The run fails unless
every message arrives exactly once and in order.
"""

import asyncio
import multiprocessing
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Literal

import uvloop
from msgspec import Struct
from rich.console import Group, RenderableType
from rich.table import Table

from gatepost.bench.fsync import FsyncResult, measure_fsync, percentile
from gatepost.bench.joined_gateways import join_gateways
from gatepost.bench.mailbox import QUIET_SETTINGS, BenchMachine, CheckingConsumer, describe_machine
from gatepost.client import Client
from gatepost.errors import BenchFailed, UnknownAgent
from gatepost.testing import GatewayProcess

_AGENT = "bench"
_TIMEOUT_SECS = 60.0
_DURABILITY = {
    "send": "event and delivery, fsync before the answer",
    "accept": "inbox, mailbox, receipt and cursor, fsync before the sender is told",
    "engage": "ack and receipt, fsync before the confirmation",
    "close": "delivery closed, fsync before it is announced",
}


class PipesBenchOptions(Struct, frozen=True):
    messages: int = 40_000
    outstanding: int = 512
    size: int = 512
    singles: int = 500
    fsyncs: int = 2000


class LifecycleThroughput(Struct, frozen=True):
    messages: int
    seconds: float
    per_sec: float


class LifecycleLatency(Struct, frozen=True):
    """One message at a time: from `send` to the receipt's arrival at the sender."""

    messages: int
    accepted_p50_ms: float
    accepted_p99_ms: float
    processed_p50_ms: float
    processed_p99_ms: float


class PipesBenchResult(Struct, frozen=True):
    machine: BenchMachine
    options: PipesBenchOptions
    durability: dict[str, str]
    lifecycles: LifecycleThroughput
    latency: LifecycleLatency
    fsync: FsyncResult
    encrypted: str = "every payload, xchacha20-poly1305, one key per event"


def bench_pipes(state_dir: Path, options: PipesBenchOptions) -> PipesBenchResult:
    """Run all measurements on fresh gateways inside `state_dir`, so on the same disk."""
    state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=state_dir) as name:
        folder = Path(name)
        with _new_gateway(folder, "here") as here, _new_gateway(folder, "there") as there:
            join_gateways(here, there, "there")
            lifecycles, latency = _measure_lifecycles(here, there, options)
        fsync = measure_fsync(folder, size=options.size, count=options.fsyncs)
    return PipesBenchResult(describe_machine(), options, _DURABILITY, lifecycles, latency, fsync)


def _new_gateway(folder: Path, name: str) -> GatewayProcess:
    return GatewayProcess(folder / name, node__id=name, **QUIET_SETTINGS)


def _measure_lifecycles(
    here: GatewayProcess, there: GatewayProcess, options: PipesBenchOptions
) -> tuple[LifecycleThroughput, LifecycleLatency]:
    """Run the agent in its own process, so that it costs the sender nothing."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(
        target=_run_agent_process, args=(there.url, there.token, theirs), daemon=True
    )
    process.start()
    try:
        return uvloop.run(_run_sender(here, ours, options))
    finally:
        process.terminate()
        process.join(10)


async def _run_sender(
    here: GatewayProcess, agent: Connection, options: PipesBenchOptions
) -> tuple[LifecycleThroughput, LifecycleLatency]:
    async with Client("sender", url=here.url, token=here.token) as client:
        await _wait_until_known(client)
        await _measure_throughput(client, here, agent, options, max(1, options.messages // 10))
        lifecycles = await _measure_throughput(client, here, agent, options, options.messages)
        return lifecycles, await _measure_latency(client, agent, options)


async def _wait_until_known(client: Client) -> None:
    """Wait until the sender's gateway knows the agent from the room."""
    deadline = time.monotonic() + _TIMEOUT_SECS
    while True:
        try:
            await client.send(_AGENT, "hello", ttl_secs=_TIMEOUT_SECS)
        except UnknownAgent:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.05)
        else:
            return


async def _measure_throughput(
    client: Client, here: GatewayProcess, agent: Connection, options: PipesBenchOptions, total: int
) -> LifecycleThroughput:
    await _wait_until_closed(here)
    agent.send(total)
    await _expect_word(agent, "ready")
    pad = "x" * (options.size - 2 - 12)
    numbers = iter(range(total))

    async def slot() -> None:
        for number in numbers:
            await client.send(_AGENT, f"{number:012d}{pad}")

    began = time.perf_counter()
    await asyncio.gather(*(slot() for _ in range(options.outstanding)))
    await _expect_word(agent, "done")
    await _wait_until_closed(here)
    seconds = time.perf_counter() - began
    return LifecycleThroughput(total, seconds, total / seconds)


async def _measure_latency(
    client: Client, agent: Connection, options: PipesBenchOptions
) -> LifecycleLatency:
    pad = "x" * (options.size - 2 - 12)
    accepted: list[float] = []
    processed: list[float] = []
    waits: list[tuple[Literal["accepted", "processed"], list[float]]]
    waits = [("accepted", accepted), ("processed", processed)]
    for wait, times in waits:
        agent.send(options.singles)
        await _expect_word(agent, "ready")
        for number in range(options.singles):
            began = time.perf_counter()
            await client.send(_AGENT, f"{number:012d}{pad}", wait=wait)
            times.append(time.perf_counter() - began)
        await _expect_word(agent, "done")
    accepted.sort()
    processed.sort()
    spread = [percentile(times, p) * 1e3 for times in (accepted, processed) for p in (50, 99)]
    return LifecycleLatency(options.singles, *spread)


async def _wait_until_closed(here: GatewayProcess) -> None:
    """Wait until the sender's gateway has no open delivery left."""
    deadline = time.monotonic() + _TIMEOUT_SECS
    while here.get("/v1/status")["deliveries_open"]:
        if time.monotonic() > deadline:
            raise BenchFailed("some deliveries never ended")
        await asyncio.sleep(0.01)


async def _expect_word(agent: Connection, word: str) -> None:
    loop = asyncio.get_running_loop()
    ready = await loop.run_in_executor(None, agent.poll, _TIMEOUT_SECS)
    received = agent.recv() if ready else "nothing"
    if received != word:
        raise BenchFailed(f"the agent process sent {received!r} instead of {word!r}")


def _run_agent_process(url: str, token: str, parent: Connection) -> None:
    uvloop.run(_serve_agent(url, token, parent))


async def _serve_agent(url: str, token: str, parent: Connection) -> None:
    """For each number from the parent: take and check that many messages, then report."""
    loop = asyncio.get_running_loop()
    async with Client(url=url, token=token) as client:
        await client.register(_AGENT)
        for message in await client.dequeue(_AGENT, wait_secs=_TIMEOUT_SECS):
            await client.ack(_AGENT, message.receipt)
        while True:
            total = await loop.run_in_executor(None, parent.recv)
            consumer = CheckingConsumer(client, total, _AGENT)
            await client.subscribe(_AGENT, consumer.take_messages, credit=2048)
            parent.send("ready")
            try:
                await consumer.finished
            except BenchFailed as failure:
                parent.send(str(failure))
            else:
                parent.send("done")
            await client.unsubscribe(_AGENT)


def render_result(result: PipesBenchResult) -> RenderableType:
    """The result as a table with notes."""
    lifecycles, latency, fsync = result.lifecycles, result.latency, result.fsync
    table = Table(title=f"Between two gateways, {result.options.size} B messages, encrypted")
    for heading in ("", "per second", "p50 ms", "p99 ms"):
        table.add_column(heading, justify="right" if heading else "left")
    many = f"send → accepted → processed → closed, {result.options.outstanding} outstanding"
    table.add_row(many, f"{lifecycles.per_sec:,.0f}", "", "")
    accepted = (f"{latency.accepted_p50_ms:.2f}", f"{latency.accepted_p99_ms:.2f}")
    processed = (f"{latency.processed_p50_ms:.2f}", f"{latency.processed_p99_ms:.2f}")
    table.add_row("send → accepted, one at a time", "", *accepted)
    table.add_row("send → processed, one at a time", "", *processed)
    disk = (f"{fsync.p50_ms:.2f}", f"{fsync.p99_ms:.2f}")
    table.add_row("the disk: append + fdatasync", f"{fsync.per_sec:,.0f}", *disk)
    durability = "; ".join(f"{step}: {how}" for step, how in result.durability.items())
    about = result.machine
    return Group(
        table,
        f"Durability: {durability}",
        f"Encrypted: {result.encrypted}",
        f"All {lifecycles.messages:,} messages arrived exactly once, in order.",
        f"Machine: {about.cores} cores, Python {about.python}, SQLite {about.sqlite},"
        f" {about.system}; two gateways, the sender and the agent share it",
    )
