"""Measures a work queue: several workers share the messages of one sender.

Without order all of them work at once. In order one works at a time, so that what a worker has to
do for each message decides the rate. Both are measured with some work, and the queue without order
also without any, which shows what the gateway itself can do.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack

from msgspec import Struct
from rich.table import Table

from gatepost.client import Client, Message
from gatepost.errors import BenchFailed
from gatepost.events import Order

_MAILBOX = "bench-workers"


class WorkQueueOptions(Struct, frozen=True):
    """`busy_messages` are those that take a worker `work_ms` each."""

    messages: int
    busy_messages: int
    outstanding: int
    size: int
    workers: int
    work_ms: float = 2.0


class WorkQueueResult(Struct, frozen=True):
    """Messages per second that all workers end together."""

    workers: int
    work_ms: float
    per_sec: float
    busy_per_sec: float
    busy_in_order_per_sec: float

    def add_rows(self, table: Table) -> None:
        workers = f"{self.workers} workers, one sender"
        rows = {
            f"{workers}, no order": self.per_sec,
            f"{workers}, no order, {self.work_ms:g} ms of work": self.busy_per_sec,
            f"{workers}, in order, {self.work_ms:g} ms of work": self.busy_in_order_per_sec,
        }
        for name, rate in rows.items():
            table.add_row(name, f"{rate:,.0f}", "", "")


async def measure_work_queue(
    new_client: Callable[[], Client], options: WorkQueueOptions
) -> WorkQueueResult:
    """Measure with one client for each worker, and one that sends."""
    async with AsyncExitStack() as stack:
        workers = [await stack.enter_async_context(new_client()) for _ in range(options.workers)]
        sender = await stack.enter_async_context(new_client())
        return WorkQueueResult(
            options.workers,
            options.work_ms,
            await _measure_rate(sender, workers, options, "none", 0.0),
            await _measure_rate(sender, workers, options, "none", options.work_ms),
            await _measure_rate(sender, workers, options, "fifo", options.work_ms),
        )


async def _measure_rate(
    sender: Client, workers: list[Client], options: WorkQueueOptions, order: Order, work_ms: float
) -> float:
    total = options.busy_messages if work_ms else options.messages
    tally = WorkTally(total)
    credit = 1 if work_ms else options.outstanding
    for client in workers:
        worker = Worker(client, tally, work_ms / 1000)
        await client.subscribe(_MAILBOX, worker.take_messages, credit=credit)
    began = time.perf_counter()
    await _send_numbers(sender, options, order, total)
    await tally.finished
    seconds = time.perf_counter() - began
    for client in workers:
        await client.unsubscribe(_MAILBOX)
    return total / seconds


async def _send_numbers(
    sender: Client, options: WorkQueueOptions, order: Order, total: int
) -> None:
    """Keep `outstanding` calls open at any time."""
    numbers = iter(range(total))

    async def slot() -> None:
        for number in numbers:
            payload = f"{number:0{options.size - 2}d}"
            await sender.enqueue(_MAILBOX, payload, from_="sender-0", order=order)

    await asyncio.gather(*(slot() for _ in range(options.outstanding)))


class WorkTally:
    """Counts the messages that all workers have ended, each once."""

    def __init__(self, total: int) -> None:
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._seen = bytearray(total)
        self._missing = total

    def note_arrival(self, number: int) -> None:
        if self._seen[number]:
            self._fail_run(f"message {number} arrived twice")
        self._seen[number] = 1

    def count_ack(self, ack: "asyncio.Future[None]") -> None:
        if (error := ack.exception()) is not None:
            self._fail_run(f"an ack failed: {error}")
        self._missing -= 1
        if not self._missing and not self.finished.done():
            self.finished.set_result(None)

    def _fail_run(self, reason: str) -> None:
        if not self.finished.done():
            self.finished.set_exception(BenchFailed(reason))


class Worker:
    """Acks each message after its work."""

    def __init__(self, client: Client, tally: WorkTally, work_secs: float) -> None:
        self._client = client
        self._tally = tally
        self._work_secs = work_secs

    def take_messages(self, messages: list[Message]) -> None:
        loop = asyncio.get_running_loop()
        for message in messages:
            self._tally.note_arrival(int(message.payload))
            if self._work_secs:
                loop.call_later(self._work_secs, self._end_turn, message)
            else:
                self._end_turn(message)

    def _end_turn(self, message: Message) -> None:
        ack = self._client.ack(_MAILBOX, message.receipt)
        ack.add_done_callback(self._tally.count_ack)
