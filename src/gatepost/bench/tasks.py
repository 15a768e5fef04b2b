"""Measures tasks: in sessions of the process runtime, by running agents, and between gateways.

Sessions are measured beside bare child processes of the same command, on the same machine and with
the same number at a time. Both take turns, so that other work on the machine slows both alike.
"""

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from statistics import median

from msgspec import Struct
from rich.table import Table

from gatepost.bench.joined_gateways import join_gateways
from gatepost.bench.mailbox import QUIET_SETTINGS
from gatepost.child_process import start_process, wait_for_exit
from gatepost.client import Agent, AgentTask, Client
from gatepost.errors import BenchFailed
from gatepost.testing import GatewayProcess
from gatepost.wire.tasks import TaskView

_SESSION_AGENT, _IDLE_AGENT, _LIVE_AGENT = "bench-session", "bench-idle", "bench-agent"
_WORK = (
    "import os; path = os.environ.get('GATEPOST_RESULT_FILE', os.devnull);"
    " open(path, 'w').write('1')"
)
_COMMAND = (sys.executable, "-S", "-c", _WORK)
_IDLE_COMMAND = (sys.executable, "-S", "-c", "import time; time.sleep(3600)")
_TIMEOUT_SECS = 600.0
_TURNS = 4


class TasksBenchOptions(Struct, frozen=True):
    """`at_once` is the number of sessions at a time, `outstanding` that of live tasks."""

    sessions: int = 200
    at_once: int = 8
    tasks: int = 5000
    outstanding: int = 1000


class TasksBenchResult(Struct, frozen=True, kw_only=True):
    """Rates are whole tasks per second: create, accept, two updates, complete, all durable.

    `running_ms` is the median from the creation of a task to its running session, if no task waits
    for another. `idle_session_kib` is the memory of a session without its command.
    """

    sessions_per_sec: float
    bare_per_sec: float
    running_ms: float
    idle_session_kib: float
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
            join_gateways(here, there, "there")
            return asyncio.run(_measure(here, there, options))


def _define_agent(state_dir: Path) -> None:
    folder = state_dir / "agents"
    folder.mkdir(parents=True)
    state_dir.chmod(0o700)
    for name, command in ((_SESSION_AGENT, _COMMAND), (_IDLE_AGENT, _IDLE_COMMAND)):
        definition = {"name": name, "command": command}
        (folder / f"{name}.json").write_text(json.dumps(definition))


async def _measure(
    here: GatewayProcess, there: GatewayProcess, options: TasksBenchOptions
) -> TasksBenchResult:
    async with Client("bench", state_dir=here.state_dir) as client:
        bare, sessions = await _measure_in_turns(client, options)
        running = await _measure_start(client, options)
        idle = await _measure_idle_sessions(client, here, options.at_once)
        live = await _measure_agent(client, here, _LIVE_AGENT, options)
        remote = await _measure_agent(client, there, f"{_LIVE_AGENT}-remote", options)
    return TasksBenchResult(
        sessions_per_sec=sessions,
        bare_per_sec=bare,
        running_ms=running,
        idle_session_kib=idle,
        live_per_sec=live,
        remote_per_sec=remote,
    )


async def _measure_in_turns(client: Client, options: TasksBenchOptions) -> tuple[float, float]:
    """The rates of bare processes and of sessions, measured in turns."""
    count, at_once = max(1, options.sessions // _TURNS), options.at_once
    await _run_task(client, _SESSION_AGENT, [])
    bare = sessions = 0.0
    for _ in range(_TURNS):
        bare += 1 / await _measure_rate(_spawn_bare, count, at_once)
        run_task = partial(_run_task, client, _SESSION_AGENT, [])
        sessions += 1 / await _measure_rate(run_task, count, 4 * at_once)
    return _TURNS / bare, _TURNS / sessions


async def _measure_start(client: Client, options: TasksBenchOptions) -> float:
    """The median milliseconds from the creation of a task to its running session."""
    ended: list[TaskView] = []
    count = max(1, options.sessions // _TURNS)
    await _measure_rate(partial(_run_task, client, _SESSION_AGENT, ended), count, options.at_once)
    return median((task.started_at or 0) - task.created_at for task in ended)


async def _measure_idle_sessions(client: Client, gateway: GatewayProcess, count: int) -> float:
    """KiB that each of several sessions takes in the gateway and in its supervisor."""
    before = _read_kib(gateway.pid, "Rss")
    created = [await client.create_task("bench", to=_IDLE_AGENT) for _ in range(count)]
    for task in created:
        await _wait_until_running(client, task.id)
    supervisors = [pid for spawner in _children(gateway.pid) for pid in _children(spawner)]
    private = sum(_read_kib(pid, "Private_Clean", "Private_Dirty") for pid in supervisors)
    grown = max(0, _read_kib(gateway.pid, "Rss") - before)
    for task in created:
        await client.cancel_task(task.id)
    return (private + grown) / count


async def _wait_until_running(client: Client, id: str) -> None:
    deadline = time.monotonic() + _TIMEOUT_SECS
    while (await client.show_task(id)).state != "running":
        if time.monotonic() > deadline:
            raise BenchFailed(f"task {id} did not begin")
        await asyncio.sleep(0.01)


def _children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _read_kib(pid: int, *fields: str) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.split(":")[0] in fields)


async def _measure_agent(
    client: Client, gateway: GatewayProcess, name: str, options: TasksBenchOptions
) -> float:
    """The rate of tasks for a self-hosted agent, behind this gateway."""
    agent = Agent(name, state_dir=gateway.state_dir, concurrency=options.outstanding, credit=1000)

    @agent.on_task
    async def work(task: AgentTask) -> int:
        await task.update(0.3)
        await task.update(0.6)
        return 1

    async with agent:
        await _wait_until_known(client, name)
        return await _measure_rate(
            partial(_run_task, client, name, []), options.tasks, options.outstanding
        )


async def _wait_until_known(client: Client, agent: str) -> None:
    """Wait until a gateway knows the agents of another one."""
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
    created = await client.create_task("bench", to=agent, timeout=_TIMEOUT_SECS)
    task = await client.await_task(created.id, timeout=_TIMEOUT_SECS)
    if task.state != "completed":
        raise BenchFailed(f"task {task.id} {task.state}: {task.error}")
    ended.append(task)


async def _spawn_bare() -> None:
    # As the command of a session: Linux shares a busy machine's CPU among process sessions.
    process = await start_process(*_COMMAND, start_new_session=True)
    if await wait_for_exit(process):
        raise BenchFailed("the command of the bench failed")


async def _measure_rate(work: Callable[[], Awaitable[None]], total: int, at_once: int) -> float:
    """Calls per second at this concurrency."""
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
    table.caption = (
        f"from create to running: {result.running_ms:.0f} ms (p50);"
        f" an idle session takes {result.idle_session_kib:,.0f} KiB besides its command"
    )
    return table
