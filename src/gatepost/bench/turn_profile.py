"""Measures where the time of one mailbox turn goes, one message at a time.

A turn is an enqueue, until the message arrives, and its ack, until it is confirmed. The gateway
notes when each step begins (`marked_gateway.py`); these are the medians of the steps.
"""

import asyncio
import statistics
import tempfile
import time
from bisect import bisect_left
from collections.abc import Iterator
from functools import partial
from itertools import islice, takewhile
from operator import itemgetter
from pathlib import Path
from typing import ClassVar

import uvloop
from msgspec import Struct
from rich.console import Group, RenderableType
from rich.table import Table

from gatepost.bench.fsync import measure_fsync
from gatepost.bench.mailbox import QUIET_SETTINGS
from gatepost.bench.marked_gateway import Mark, MarkName, read_marks
from gatepost.client import Client, Message
from gatepost.testing import GatewayProcess
from gatepost.testing.gateway import GatewayLauncher, launch_gateway

_MAILBOX = "bench-turns"
_WARM_UP = 10  # one turn in so many is not counted
_FSYNCS = 500

# Each step ends with its mark, and the last with the client's callback.
_STEPS: tuple[tuple[str, MarkName | None], ...] = (
    ("client before the send, socket, WebSocket parse", "received"),
    ("decode, plan", "submitted"),
    ("wait for the writer's thread", "group"),
    ("begin, operation, leases, participants", "commit"),
    ("COMMIT with its fsync", "committed"),
    ("after the commit", "outcomes"),
    ("back to the event loop", "woken"),
    ("encode", "encoded"),
    ("WebSocket frame, socket, client", None),
)


class StepTime(Struct, frozen=True):
    """Medians in microseconds."""

    step: str
    enqueue_us: float
    ack_us: float


class TurnProfile(Struct, frozen=True):
    """`turns_per_sec` and the whole times are of the same turns, with their marks."""

    turns: int
    turns_per_sec: float
    steps: list[StepTime]
    whole: StepTime
    fsync_us: float


class Span(Struct, frozen=True):
    """One operation as its client saw it, in ns."""

    begin: int
    end: int


class MarkedGateway(GatewayProcess):
    launch: ClassVar[GatewayLauncher] = staticmethod(
        partial(launch_gateway, program=("-m", "gatepost.bench.marked_gateway"))
    )


def profile_turns(state_dir: Path, turns: int, size: int) -> TurnProfile:
    """Measure a fresh gateway inside `state_dir`, and so on its disk."""
    state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=state_dir) as folder:
        with MarkedGateway(Path(folder) / "gateway", **QUIET_SETTINGS) as gateway:
            enqueues, acks = uvloop.run(_make_turns(gateway, turns, size))
            gateway.stop()
            marks = read_marks(gateway.state_dir)
        fsync = measure_fsync(Path(folder), size=size, count=_FSYNCS)
    seconds = sum(span.end - span.begin for span in (*enqueues, *acks)) / 1e9
    steps = [
        StepTime(name, *times)
        for (name, _), times in zip(
            _STEPS,
            zip(step_medians(enqueues, marks), step_medians(acks, marks), strict=True),
            strict=True,
        )
    ]
    whole = StepTime("whole", _median_us(enqueues), _median_us(acks))
    return TurnProfile(len(acks), len(acks) / seconds, steps, whole, fsync.p50_ms * 1000)


async def _make_turns(
    gateway: GatewayProcess, turns: int, size: int
) -> tuple[list[Span], list[Span]]:
    """Return the spans of enqueues, each until its message arrived, and of acks."""
    enqueues: list[Span] = []
    acks: list[Span] = []
    payload = "x" * (size - 2)
    async with Client(url=gateway.url, token=gateway.token) as client:
        arrived: asyncio.Queue[tuple[int, Message]] = asyncio.Queue()

        def take(messages: list[Message]) -> None:
            for message in messages:
                arrived.put_nowait((time.perf_counter_ns(), message))

        await client.subscribe(_MAILBOX, take)
        for _ in range(turns + turns // _WARM_UP):
            begin = time.perf_counter_ns()
            await client.enqueue(_MAILBOX, payload, from_="sender")
            at, message = await arrived.get()
            enqueues.append(Span(begin, at))
            begin = time.perf_counter_ns()
            await client.ack(_MAILBOX, message.receipt)
            acks.append(Span(begin, time.perf_counter_ns()))
        await client.unsubscribe(_MAILBOX)
    return enqueues[-turns:], acks[-turns:]


def step_medians(spans: list[Span], marks: list[Mark]) -> list[float]:
    """The median of each step in microseconds; an operation that lacks a mark does not count."""
    found = [times for span in spans if (times := _step_times(span, marks)) is not None]
    return [statistics.median(times) / 1000 for times in zip(*found, strict=True)]


def _step_times(span: Span, marks: list[Mark]) -> list[int] | None:
    """The length of each step, in ns; None if the span has not all marks in their order."""
    times, before = [], span.begin
    own = _marks_within(span, marks)
    for _, name in _STEPS:
        at = span.end if name is None else next((at for mark, at in own if mark == name), None)
        if at is None:
            return None
        times.append(at - before)
        before = at
    return times


def _marks_within(span: Span, marks: list[Mark]) -> Iterator[Mark]:
    first = bisect_left(marks, span.begin, key=itemgetter(1))
    return takewhile(lambda mark: mark[1] <= span.end, islice(marks, first, None))


def _median_us(spans: list[Span]) -> float:
    return statistics.median(span.end - span.begin for span in spans) / 1000


def render_profile(profile: TurnProfile) -> RenderableType:
    """The profile as a table with notes."""
    table = Table(title="One mailbox turn, one message at a time: medians in µs")
    for heading in ("", "enqueue", "ack"):
        table.add_column(heading, justify="right" if heading else "left")
    for step in (*profile.steps, profile.whole):
        table.add_row(step.step, f"{step.enqueue_us:,.0f}", f"{step.ack_us:,.0f}")
    return Group(
        table,
        f"{profile.turns:,} turns, {profile.turns_per_sec:,.0f} a second. The enqueue lasts until"
        " the message arrives, the ack until it is confirmed.",
        f"The disk alone, append and fdatasync: {profile.fsync_us:,.0f} µs. The marks cost about"
        " 1 µs each.",
    )
