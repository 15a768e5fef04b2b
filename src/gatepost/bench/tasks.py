"""Measures tasks: in sessions of the process runtime, by running agents, and between gateways.

Sessions are measured beside bare child processes of the same command, on the same machine and with
the same number at a time.
"""

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median

from msgspec import Struct
from rich.table import Table

from gatepost.bench.mailbox import QUIET_SETTINGS
from gatepost.bench.pipes import join_gateways
from gatepost.client import Agent, AgentTask, Client
from gatepost.errors import BenchFailed
from gatepost.task_wire import TaskView
from gatepost.testing import GatewayProcess

_SESSION_AGENT, _LIVE_AGENT = "bench-session", "bench-agent"
_WORK = (
    "import os; path = os.environ.get('GATEPOST_RESULT_FILE', os.devnull);"
    " open(path, 'w').write('1')"
)
_COMMAND = (sys.executable, "-S", "-c", _WORK)
_PATIENCE = 600.0


class TasksBenchOptions(Struct, frozen=True):
    """`at_once` is the number of sessions at a time, `outstanding` that of live tasks."""

    sessions: int = 200
    at_once: int = 8
    tasks: int = 5000
    outstanding: int = 256


class TasksBenchResult(Struct, frozen=True):
    """Rates are whole tasks per second: create, accept, two updates, complete, all durable."""

    sessions_per_sec: float
    bare_per_sec: float
    running_ms: float
    live_per_sec: float
    remote_per_sec: float

    @property
    def session_share(self) -> float:
        return self.sessions_per_sec / self.bare_per_sec


def bench_tasks(state_dir: Path, options: TasksBenchOptions) -> TasksBenchResult:
    """Measure with two fresh gateways below a directory."""
    with tempfile.TemporaryDirectory(prefix="bench-", dir=state_dir) as name:
        folder = Path(name)
        settings = {"hub__max_sessions": options.at_once, "hub__max_queued": 1_000_000}
        here = GatewayProcess(
            folder / "here", node__id="here", hub__sandbox="none", **settings, **QUIET_SETTINGS
        )
        there = GatewayProcess(folder / "there", node__id="there", **QUIET_SETTINGS)
        _define_agent(folder / "here")
        with here, there:
            join_gateways(here, there)
            return asyncio.run(_measure(here, there, options))


def _define_agent(state_dir: Path) -> None:
    folder = state_dir / "agents"
    folder.mkdir(parents=True)
    state_dir.chmod(0o700)
    definition = {"name": _SESSION_AGENT, "command": _COMMAND}
    (folder / "bench.json").write_text(json.dumps(definition))


async def _measure(
    here: GatewayProcess, there: GatewayProcess, options: TasksBenchOptions
) -> TasksBenchResult:
    async with Client("bench", state_dir=here.state_dir) as client:
        bare = await _measure_rate(_spawn_bare, options.sessions, options.at_once)
        ended: list[TaskView] = []
        sessions = await _measure_rate(
            lambda: _run_task(client, _SESSION_AGENT, ended), options.sessions, 4 * options.at_once
        )
        running = median((task.started_at or 0) - (task.accepted_at or 0) for task in ended)
        live = await _measure_agent(client, here, _LIVE_AGENT, options)
        remote = await _measure_agent(client, there, f"{_LIVE_AGENT}-remote", options)
    return TasksBenchResult(sessions, bare, running, live, remote)


async def _measure_agent(
    client: Client, gateway: GatewayProcess, name: str, options: TasksBenchOptions
) -> float:
    """The rate of tasks for an agent that runs by itself, behind this gateway."""
    agent = Agent(name, state_dir=gateway.state_dir, concurrency=options.outstanding, credit=1000)

    @agent.on_task
    async def work(task: AgentTask) -> int:
        await task.update(0.3)
        await task.update(0.6)
        return 1

    async with agent:
        await _wait_until_known(client, name)
        return await _measure_rate(
            lambda: _run_task(client, name, []), options.tasks, options.outstanding
        )


async def _wait_until_known(client: Client, agent: str) -> None:
    """A gateway hears of the agents of another one a moment later."""
    deadline = time.monotonic() + 30
    while True:
        try:
            await _run_task(client, agent, [])
            return
        except Exception:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.1)


async def _run_task(client: Client, agent: str, ended: list[TaskView]) -> None:
    created = await client.create_task("bench", to=agent, timeout=_PATIENCE)
    task = await client.await_task(created.id, timeout=_PATIENCE)
    if task.state != "completed":
        raise BenchFailed(f"task {task.id} {task.state}: {task.error}")
    ended.append(task)


async def _spawn_bare() -> None:
    process = await asyncio.create_subprocess_exec(*_COMMAND)
    if await process.wait():
        raise BenchFailed("the command of the bench failed")


async def _measure_rate(work: Callable[[], Awaitable[None]], total: int, at_once: int) -> float:
    """How often the work is done per second, with so many of it at a time."""
    numbers = iter(range(total))

    async def slot() -> None:
        for _ in numbers:
            await work()

    began = time.perf_counter()
    await asyncio.gather(*(slot() for _ in range(at_once)))
    return total / (time.perf_counter() - began)


def render_result(result: TasksBenchResult) -> Table:
    table = Table("", "per second", title="Tasks")
    rows = {
        "bare child processes": result.bare_per_sec,
        f"sessions ({result.session_share:.0%} of that)": result.sessions_per_sec,
        "whole tasks of a running agent": result.live_per_sec,
        "the same between two gateways": result.remote_per_sec,
    }
    for name, rate in rows.items():
        table.add_row(name, f"{rate:,.0f}")
    table.caption = f"from accepted to running: {result.running_ms:.0f} ms (p50)"
    return table
