"""Measures durable enqueue → push → ack over the WebSocket, with the public client.

The gateway runs in its own process. A message counts once the gateway has confirmed its ack. The
run fails unless every message arrives exactly once and each sender's messages arrive in order. A
work queue without order is measured beside that.
"""

import asyncio
import os
import platform
import tempfile
import time
from functools import partial
from pathlib import Path

import apsw
import uvloop
from msgspec import Struct
from rich.console import Group, RenderableType
from rich.table import Table

from gatepost.bench.fsync import FsyncResult, measure_fsync, percentile
from gatepost.bench.redis import RedisResult, is_redis_installed, measure_redis
from gatepost.bench.work_queue import WorkQueueOptions, WorkQueueResult, measure_work_queue
from gatepost.client import Client, Message
from gatepost.errors import BenchFailed
from gatepost.testing import GatewayProcess

# No Unix socket: its path is limited to about 100 bytes, and state directories may be longer.
QUIET_SETTINGS = {"log__level": "error", "listen__unix_socket": False}

_MAILBOX = "bench"
_DURABILITY = {
    "enqueue": "fsync before the answer",
    "lease": "fsync before the push",
    "ack": "fsync before the confirmation",
}


class MailboxBenchOptions(Struct, frozen=True):
    messages: int = 100_000
    outstanding: int = 256
    size: int = 512
    senders: int = 1
    singles: int = 2000
    fsyncs: int = 2000
    workers: int = 4


class BenchMachine(Struct, frozen=True):
    cores: int
    python: str
    sqlite: str
    system: str


class MailboxThroughput(Struct, frozen=True):
    messages: int
    seconds: float
    per_sec: float
    frames: int


class MailboxLatency(Struct, frozen=True):
    """One message at a time: `p50_ms` and `p99_ms` are from send to arrival."""

    messages: int
    p50_ms: float
    p99_ms: float
    per_sec: float


class MailboxBenchResult(Struct, frozen=True):
    machine: BenchMachine
    options: MailboxBenchOptions
    durability: dict[str, str]
    throughput: MailboxThroughput
    single: MailboxLatency
    work_queue: WorkQueueResult
    fsync: FsyncResult
    redis: RedisResult | None = None


def bench_mailbox(state_dir: Path, options: MailboxBenchOptions) -> MailboxBenchResult:
    """Run all measurements on a fresh gateway inside `state_dir`, and so on its disk."""
    state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="bench-", dir=state_dir) as folder,
        GatewayProcess(Path(folder) / "gateway", **QUIET_SETTINGS) as gateway,
    ):
        return measure_gateway(gateway.url, gateway.token, Path(folder), options)


def measure_gateway(
    url: str, token: str, folder: Path, options: MailboxBenchOptions
) -> MailboxBenchResult:
    """Measure the gateway at `url`, and the fsync of the disk that holds `folder`."""
    throughput, single = uvloop.run(_measure_mailbox(url, token, options))
    work_queue = uvloop.run(
        measure_work_queue(partial(Client, url=url, token=token), _work_queue_options(options))
    )
    fsync = measure_fsync(folder, size=options.size, count=options.fsyncs)
    redis = _measure_redis(folder, options) if is_redis_installed() else None
    return MailboxBenchResult(
        describe_machine(), options, _DURABILITY, throughput, single, work_queue, fsync, redis
    )


def _work_queue_options(options: MailboxBenchOptions) -> WorkQueueOptions:
    busy = max(1, options.messages // 100)
    return WorkQueueOptions(
        options.messages, busy, options.outstanding, options.size, options.workers
    )


def _measure_redis(folder: Path, options: MailboxBenchOptions) -> RedisResult:
    return measure_redis(
        folder,
        messages=options.messages,
        outstanding=options.outstanding,
        size=options.size,
        singles=options.singles,
    )


def describe_machine() -> BenchMachine:
    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    cores = len(os.sched_getaffinity(0))
    return BenchMachine(cores, platform.python_version(), apsw.sqlite_lib_version(), system)


def render_result(result: MailboxBenchResult) -> RenderableType:
    """The result as a table with notes."""
    single, throughput, fsync = result.single, result.throughput, result.fsync
    table = Table(title=f"Mailbox, {result.options.size} B messages: enqueue → push → ack")
    for heading in ("", "msg/s", "p50 ms", "p99 ms"):
        table.add_column(heading, justify="right" if heading else "left")
    senders = result.options.senders
    many = f"{result.options.outstanding} outstanding, {senders} sender" + "s" * (senders > 1)
    table.add_row(many, f"{throughput.per_sec:,.0f}", "", "")
    latency = (f"{single.p50_ms:.2f}", f"{single.p99_ms:.2f}")
    table.add_row("one at a time", f"{single.per_sec:,.0f}", *latency)
    result.work_queue.add_rows(table)
    disk = (f"{fsync.p50_ms:.2f}", f"{fsync.p99_ms:.2f}")
    table.add_row("the disk: append + fdatasync", f"{fsync.per_sec:,.0f}", *disk)
    comparison = (
        "To compare with Redis Streams, install redis-server and its Python client, redis,"
        " and run this again."
    )
    if result.redis is not None:
        name = f"Redis Streams {result.redis.version}"
        laps = (f"{result.redis.p50_ms:.2f}", f"{result.redis.p99_ms:.2f}")
        table.add_row(name, f"{result.redis.per_sec:,.0f}", *laps)
        comparison = (
            f"{name}: fsync before every answer, pipelines of {result.options.outstanding}."
            f" Gatepost has {throughput.per_sec / result.redis.per_sec:.2f} of its rate, and"
            f" {single.p50_ms / result.redis.p50_ms:.2f} of its time for one message."
        )
    durability = "; ".join(f"{step}: {how}" for step, how in result.durability.items())
    about = result.machine
    return Group(
        table,
        f"Durability: {durability}",
        comparison,
        f"All {throughput.messages + single.messages:,} messages arrived exactly once, in order;"
        " those of the work queue exactly once.",
        f"Machine: {about.cores} cores, Python {about.python}, SQLite {about.sqlite},"
        f" {about.system}",
    )


async def _measure_mailbox(
    url: str, token: str, options: MailboxBenchOptions
) -> tuple[MailboxThroughput, MailboxLatency]:
    async with Client(url=url, token=token) as client:
        await _measure_throughput(client, options, max(1, options.messages // 10))  # warm up
        throughput = await _measure_throughput(client, options, options.messages)
        await _measure_latency(client, options, max(1, options.singles // 10))
        return throughput, await _measure_latency(client, options, options.singles)


async def _measure_throughput(
    client: Client, options: MailboxBenchOptions, total: int
) -> MailboxThroughput:
    """Keep `outstanding` enqueue calls open at any time, each awaited on its own."""
    consumer = CheckingConsumer(client, total)
    await client.subscribe(_MAILBOX, consumer.take_messages, credit=4 * options.outstanding)
    pad = "x" * (options.size - 2 - len(_numbered_payload(0, "")))
    numbers = iter(range(total))

    async def slot() -> None:
        for number in numbers:
            sender = f"sender-{number % options.senders}"
            await client.enqueue(_MAILBOX, _numbered_payload(number, pad), from_=sender)

    frames, began = client.frames_sent, time.perf_counter()
    await asyncio.gather(*(slot() for _ in range(options.outstanding)))
    await consumer.finished
    seconds = time.perf_counter() - began
    frames = client.frames_sent - frames
    await client.unsubscribe(_MAILBOX)
    return MailboxThroughput(total, seconds, total / seconds, frames)


async def _measure_latency(
    client: Client, options: MailboxBenchOptions, total: int
) -> MailboxLatency:
    """Send each message after the ack of the previous one is confirmed."""
    pad = "x" * (options.size - 2 - len(_numbered_payload(0, "")))
    times: list[float] = []
    began = time.perf_counter()
    consumer = CheckingConsumer(client, total)
    await client.subscribe(_MAILBOX, consumer.take_messages)
    for number in range(total):
        confirmed = consumer.next_confirmed()
        sent = time.perf_counter()
        await client.enqueue(_MAILBOX, _numbered_payload(number, pad), from_="sender-0")
        await confirmed
        times.append(consumer.arrived_at - sent)
    per_sec = total / (time.perf_counter() - began)
    await client.unsubscribe(_MAILBOX)
    times.sort()
    return MailboxLatency(total, percentile(times, 50) * 1e3, percentile(times, 99) * 1e3, per_sec)


class CheckingConsumer:
    """Acks each message and checks that none is missing, doubled or out of order."""

    def __init__(self, client: Client, total: int, mailbox: str = _MAILBOX) -> None:
        loop = asyncio.get_running_loop()
        self.finished: asyncio.Future[None] = loop.create_future()
        self.arrived_at = 0.0
        self._client = client
        self._mailbox = mailbox
        self._missing = total
        self._seen = bytearray(total)
        self._latest: dict[str, int] = {}
        self._confirmed: asyncio.Future[None] = loop.create_future()

    def next_confirmed(self) -> "asyncio.Future[None]":
        """A future that is done when the next ack is confirmed."""
        self._confirmed = asyncio.get_running_loop().create_future()
        return self._confirmed

    def take_messages(self, messages: list[Message]) -> None:
        self.arrived_at = time.perf_counter()
        for message in messages:
            self._check_order(message.from_, int(message.payload[:12]))
            self._client.ack(self._mailbox, message.receipt).add_done_callback(self._count_ack)

    def _check_order(self, sender: str, number: int) -> None:
        if self._seen[number]:
            self._fail_run(f"message {number} arrived twice")
        if number <= self._latest.get(sender, -1):
            self._fail_run(f"message {number} of {sender} arrived out of order")
        self._seen[number] = 1
        self._latest[sender] = number

    def _count_ack(self, ack: "asyncio.Future[None]") -> None:
        if (error := ack.exception()) is not None:
            self._fail_run(f"an ack failed: {error}")
        self._missing -= 1
        if not self._confirmed.done():
            self._confirmed.set_result(None)
        if not self._missing and not self.finished.done():
            self.finished.set_result(None)

    def _fail_run(self, reason: str) -> None:
        for future in (self.finished, self._confirmed):
            if not future.done():
                future.set_exception(BenchFailed(reason))


def _numbered_payload(number: int, pad: str) -> str:
    return f"{number:012d}{pad}"
