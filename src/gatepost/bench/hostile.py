"""Measures how long honest agents wait while strangers or sessions crowd the same gateway.

Each agent sends a message to the next one every now and then, and waits until it is processed. That
is measured in quiet, beside the connections of `hostile_connections`, which come from the same
address, and beside the sessions of `hostile_sessions`. The gateway, the agents, the strangers and
the sessions are separate processes.
"""

import asyncio
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO

import msgspec
import uvloop
from msgspec import Struct
from rich.console import Group, RenderableType
from rich.table import Table

from gatepost.bench.fsync import percentile
from gatepost.bench.hostile_connections import READY
from gatepost.bench.hostile_sessions import (
    define_hostile_agent,
    end_hostile_sessions,
    start_hostile_sessions,
)
from gatepost.bench.mailbox import QUIET_SETTINGS, BenchMachine, describe_machine
from gatepost.client import Agent
from gatepost.errors import BenchFailed
from gatepost.testing import GatewayProcess

_TURN_SECS = 20.0
# From the first connection of the strangers to the last.
_CROWD_SECS = 60.0
_ATTACK = "gatepost.bench.hostile_connections"


class HostileBenchOptions(Struct, frozen=True):
    connections: int = 2000
    sessions: int = 2
    # The connections of each session.
    session_connections: int = 700
    agents: int = 50
    per_sec: float = 4.0
    secs: float = 15.0


class TurnLatency(Struct, frozen=True):
    turns: int
    p50_ms: float
    p99_ms: float


class HostileBenchResult(Struct, frozen=True):
    """`opened` counts the connections of each sort of stranger, with those opened again."""

    machine: BenchMachine
    options: HostileBenchOptions
    quiet: TurnLatency
    crowded: TurnLatency
    beside_sessions: TurnLatency
    opened: dict[str, int]

    @property
    def ratio(self) -> float:
        return self.crowded.p99_ms / self.quiet.p99_ms

    @property
    def session_ratio(self) -> float:
        return self.beside_sessions.p99_ms / self.quiet.p99_ms


def bench_hostile(state_dir: Path, options: HostileBenchOptions) -> HostileBenchResult:
    """Measure a fresh gateway inside `state_dir`."""
    state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=state_dir) as folder:
        home = Path(folder) / "gateway"
        define_hostile_agent(home, options.session_connections)
        with GatewayProcess(home, **QUIET_SETTINGS) as gateway:
            try:
                return uvloop.run(_measure_gateway(gateway, options))
            finally:
                # They would outlive their gateway.
                end_hostile_sessions(gateway)


async def _measure_gateway(
    gateway: GatewayProcess, options: HostileBenchOptions
) -> HostileBenchResult:
    url, token = gateway.url, gateway.token
    agents = [Agent(f"honest{n}", url=url, token=token) for n in range(options.agents)]
    async with asyncio.TaskGroup() as starting:
        for agent in agents:
            agent.on_message(lambda message: None)
            starting.create_task(agent.__aenter__())
    try:
        await _measure_turns(agents, options, min(2.0, options.secs))
        quiet = await _measure_turns(agents, options, options.secs)
        with _start_crowd(url, options) as crowd:
            crowded, opened = await _measure_beside(crowd, agents, options)
        await asyncio.to_thread(start_hostile_sessions, gateway, options.sessions)
        beside = await _measure_turns(agents, options, options.secs)
    finally:
        for agent in agents:
            await agent.__aexit__(None, None, None)
    return HostileBenchResult(describe_machine(), options, quiet, crowded, beside, opened)


def _start_crowd(url: str, options: HostileBenchOptions) -> "subprocess.Popen[bytes]":
    secs = _CROWD_SECS + options.secs
    command = [sys.executable, "-m", _ATTACK, url, str(options.connections), str(secs)]
    return subprocess.Popen(command, stdout=subprocess.PIPE)


async def _measure_beside(
    crowd: "subprocess.Popen[bytes]", agents: list[Agent], options: HostileBenchOptions
) -> tuple[TurnLatency, dict[str, int]]:
    said = crowd.stdout
    assert said is not None, "it is a pipe"
    try:
        if await _read_line(said) != READY:
            raise BenchFailed("the strangers could not open all their connections")
        found = await _measure_turns(agents, options, options.secs)
        crowd.terminate()
        return found, msgspec.json.decode(await _read_line(said), type=dict[str, int])
    finally:
        crowd.kill()


async def _read_line(said: IO[bytes]) -> str:
    return (await asyncio.to_thread(said.readline)).decode().strip()


async def _measure_turns(
    agents: list[Agent], options: HostileBenchOptions, secs: float
) -> TurnLatency:
    receivers = [*agents[1:], agents[0]]
    end = time.monotonic() + secs
    rounds = (
        _take_turns(agent, receiver.name, options.per_sec, end)
        for agent, receiver in zip(agents, receivers, strict=True)
    )
    waits = sorted(wait for each in await asyncio.gather(*rounds) for wait in each)
    if not waits:
        raise BenchFailed("no agent had a turn; measure for longer")
    return TurnLatency(len(waits), percentile(waits, 50), percentile(waits, 99))


async def _take_turns(agent: Agent, receiver: str, per_sec: float, end: float) -> list[float]:
    """Send at intervals; return the milliseconds until each message was processed."""
    waits: list[float] = []
    while (pause := random.expovariate(per_sec)) < end - time.monotonic():
        await asyncio.sleep(pause)
        start = time.monotonic()
        await agent.send(receiver, "hello", wait="processed", timeout=_TURN_SECS)
        waits.append((time.monotonic() - start) * 1000)
    return waits


def render_result(result: HostileBenchResult) -> RenderableType:
    options = result.options
    table = Table(
        title=f"{options.agents} agents beside {options.connections:,} hostile connections"
    )
    for heading in ("", "turns", "p50 ms", "p99 ms"):
        table.add_column(heading, justify="right" if heading else "left")
    measured = (
        ("quiet", result.quiet),
        ("beside strangers", result.crowded),
        (f"beside {options.sessions} hostile sessions", result.beside_sessions),
    )
    for name, found in measured:
        table.add_row(name, f"{found.turns:,}", f"{found.p50_ms:.1f}", f"{found.p99_ms:.1f}")
    opened = ", ".join(f"{name} {count:,}" for name, count in sorted(result.opened.items()))
    notes = (
        f"p99 is {result.ratio:.1f} times its quiet value beside strangers, and"
        f" {result.session_ratio:.1f} times beside sessions. Connections of strangers: {opened}."
    )
    return Group(table, notes)
