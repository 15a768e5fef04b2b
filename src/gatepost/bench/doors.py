"""Measures the doors: the cost of a call beyond its operation, and of waiting sessions.

Sends through the tool and sends through the WebSocket take turns, and tasks in the same way, so
that other work on the machine slows both alike. Each is durable before it is answered.
"""

import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import httpx
from msgspec import Struct
from rich.table import Table

from gatepost.bench.waiting_sessions import (
    MAX_PER_PROCESS,
    PROTOCOL,
    call_message,
    check_answer,
    initialize_message,
)
from gatepost.child_process import PIPE, start_process
from gatepost.client import Client
from gatepost.errors import BenchFailed
from gatepost.testing import GatewayProcess

_RECEIVER, _AGENT = "bench-receiver", "bench-sender"
_SETTLE_SECS = 2.0
_TIMEOUT_SECS = 60.0

TimedSend = Callable[[], Awaitable[object]]


class DoorsBenchOptions(Struct, frozen=True):
    """`calls` are measured for each way; `sessions` wait at the same time, for `wait_secs`."""

    calls: int = 500
    sessions: int = 200
    wait_secs: float = 20.0


class DoorsBenchResult(Struct, frozen=True, kw_only=True):
    """Medians in milliseconds, the share of a core of all waiting sessions, and KiB of each.

    `task_ms` is a task over the WebSocket, `a2a_ms` one through A2A; both 0 without its extra.
    """

    websocket_ms: float
    stdio_ms: float
    http_ms: float
    task_ms: float
    a2a_ms: float
    waiting_core_share: float
    waiting_session_kib: float

    @property
    def stdio_extra_ms(self) -> float:
        return self.stdio_ms - self.websocket_ms

    @property
    def http_extra_ms(self) -> float:
        return self.http_ms - self.websocket_ms

    @property
    def a2a_extra_ms(self) -> float:
        return self.a2a_ms - self.task_ms


def bench_doors(state_dir: Path, options: DoorsBenchOptions) -> DoorsBenchResult:
    """Measure with a fresh gateway below a directory."""
    with tempfile.TemporaryDirectory(prefix="bench-", dir=state_dir) as name:
        settings = {
            "log__level": "error",
            "limits__max_unauthenticated": 4 * options.sessions,
            "a2a__agents": _RECEIVER,
        }
        with GatewayProcess(Path(name) / "state", **settings) as gateway:
            return asyncio.run(_measure(gateway, options))


async def _measure(gateway: GatewayProcess, options: DoorsBenchOptions) -> DoorsBenchResult:
    times = await _time_sends(gateway, options.calls)
    task_ms, a2a_ms = await _time_tasks(gateway, options.calls)
    share, kib = await _weigh_waiting(gateway, options)
    return DoorsBenchResult(
        websocket_ms=times[0],
        stdio_ms=times[1],
        http_ms=times[2],
        task_ms=task_ms,
        a2a_ms=a2a_ms,
        waiting_core_share=share,
        waiting_session_kib=kib,
    )


# -- the time of a call


async def _time_sends(gateway: GatewayProcess, calls: int) -> list[float]:
    """Medians of a send over the WebSocket, through stdio, and over HTTP."""
    async with AsyncExitStack() as opened:
        client = await opened.enter_async_context(Client(_AGENT, state_dir=gateway.state_dir))
        await client.register(_RECEIVER)
        await client.register(_AGENT)
        stdio = await opened.enter_async_context(_StdioClient(gateway))
        http = await opened.enter_async_context(_HttpClient(gateway))

        async def send_plainly() -> object:
            return await client.send(_RECEIVER, "x")

        return await _take_turns((send_plainly, stdio.send, http.send), calls)


async def _time_tasks(gateway: GatewayProcess, calls: int) -> list[float]:
    """Medians of a task over the WebSocket, and through A2A without waiting for its end."""
    if find_spec("a2a") is None:
        return [0.0, 0.0]
    async with (
        Client(_AGENT, state_dir=gateway.state_dir) as client,
        _A2aClient(gateway) as a2a,
    ):

        async def create_plainly() -> object:
            return await client.create_task("x", to=_RECEIVER)

        return await _take_turns((create_plainly, a2a.send), calls)


async def _take_turns(ways: tuple[TimedSend, ...], calls: int) -> list[float]:
    for way in ways:
        # The first calls open connections and fill caches.
        for _ in range(20):
            await way()
    times: list[list[float]] = [[] for _ in ways]
    for _ in range(calls):
        for way, taken in zip(ways, times, strict=True):
            begun = time.perf_counter()
            await way()
            taken.append((time.perf_counter() - begun) * 1000)
    return [median(taken) for taken in times]


def _send_call(id: int) -> dict[str, Any]:
    arguments = {"to": _RECEIVER, "body": "x"}
    return call_message(id, "tools/call", {"name": "send", "arguments": arguments})


class _StdioClient:
    """A client that started `gatepost mcp`."""

    def __init__(self, gateway: GatewayProcess) -> None:
        self._command = [sys.executable, "-m", "gatepost", "mcp", "--agent", _AGENT]
        self._command += ["--state-dir", str(gateway.state_dir)]
        self._id = 0

    async def __aenter__(self) -> "_StdioClient":
        self._process = await start_process(*self._command, stdin=PIPE, stdout=PIPE)
        await self._ask(initialize_message(0))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._process.kill()
        await asyncio.to_thread(self._process.wait)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    async def send(self) -> object:
        self._id += 1
        return await self._ask(_send_call(self._id))

    async def _ask(self, message: dict[str, Any]) -> object:
        # Pipes block, so a thread waits, as it would in a client; this adds the same cost to both
        # measurements.
        return await asyncio.to_thread(self._ask_blocking, message)

    def _ask_blocking(self, message: dict[str, Any]) -> object:
        sending, receiving = self._process.stdin, self._process.stdout
        assert sending is not None and receiving is not None
        sending.write(json.dumps(message).encode() + b"\n")
        line = bytearray()
        while not line.endswith(b"\n"):
            line += os.read(receiving.fileno(), 65_536)
        answer = json.loads(line)
        check_answer(answer)
        return answer


class _HttpClient:
    def __init__(self, gateway: GatewayProcess) -> None:
        self._url = f"{gateway.url}/mcp"
        headers = {
            "authorization": f"Bearer {gateway.token}",
            "gatepost-agent": _AGENT,
            "accept": "application/json, text/event-stream",
            "mcp-protocol-version": PROTOCOL,
        }
        self._http = httpx.AsyncClient(headers=headers, timeout=_TIMEOUT_SECS, trust_env=False)
        self._id = 0

    async def __aenter__(self) -> "_HttpClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def send(self) -> object:
        self._id += 1
        answer = await self._http.post(self._url, json=_send_call(self._id))
        _, _, data = answer.text.partition("data: ")
        check_answer(json.loads(data or answer.text))
        return answer


class _A2aClient:
    """A client of A2A over JSON-RPC."""

    def __init__(self, gateway: GatewayProcess) -> None:
        self._url = f"{gateway.url}/a2a/agents/{_RECEIVER}/rpc"
        headers = {
            "authorization": f"Bearer {gateway.token}",
            "gatepost-agent": _AGENT,
            "a2a-version": "1.0",
        }
        self._http = httpx.AsyncClient(headers=headers, timeout=_TIMEOUT_SECS, trust_env=False)
        self._id = 0

    async def __aenter__(self) -> "_A2aClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def send(self) -> object:
        self._id += 1
        said = {"messageId": f"bench-{self._id}", "role": "ROLE_USER", "parts": [{"text": "x"}]}
        params = {"message": said, "configuration": {"returnImmediately": True}}
        call = {"jsonrpc": "2.0", "id": self._id, "method": "SendMessage", "params": params}
        answer = json.loads((await self._http.post(self._url, json=call)).text)
        if "result" not in answer:
            raise BenchFailed(f"a task through A2A was refused: {answer}")
        return answer


# -- the cost of waiting


async def _weigh_waiting(
    gateway: GatewayProcess, options: DoorsBenchOptions
) -> tuple[float, float]:
    """The share of a core that all waiting sessions take, and the KiB that each of them takes."""
    before = _resident_kib(gateway.pid)
    idle = await _core_share(gateway.pid, options.wait_secs / 2)
    async with AsyncExitStack() as opened:
        for first in range(0, options.sessions, MAX_PER_PROCESS):
            count = min(MAX_PER_PROCESS, options.sessions - first)
            await opened.enter_async_context(_waiting_sessions(gateway, first, count))
        await asyncio.sleep(_SETTLE_SECS)
        share = await _core_share(gateway.pid, options.wait_secs) - idle
        after = _resident_kib(gateway.pid)
    return max(0.0, share), (after - before) / options.sessions


@asynccontextmanager
async def _waiting_sessions(gateway: GatewayProcess, first: int, count: int) -> AsyncIterator[None]:
    where = (str(gateway.state_dir), str(first), str(count))
    process = await start_process(
        sys.executable, "-m", "gatepost.bench.waiting_sessions", *where, stdin=PIPE, stdout=PIPE
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        async with asyncio.timeout(_TIMEOUT_SECS):
            if await asyncio.to_thread(process.stdout.readline) != b"ready\n":
                raise BenchFailed("sessions that were to wait for mail did not open")
        yield
    finally:
        process.stdin.close()
        await asyncio.to_thread(process.wait)
        process.stdout.close()


async def _core_share(pid: int, secs: float) -> float:
    """The share of one core that the process uses during the next `secs` seconds."""
    begun, used = time.perf_counter(), _processor_secs(pid)
    await asyncio.sleep(secs)
    return (_processor_secs(pid) - used) / (time.perf_counter() - begun)


def _processor_secs(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _resident_kib(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[21]) * os.sysconf("SC_PAGE_SIZE") / 1024


def render_result(result: DoorsBenchResult) -> Table:
    table = Table("", "ms (p50)", "more than the WebSocket", title="A durable send or task")
    table.add_row("operation over the WebSocket", f"{result.websocket_ms:.2f}", "")
    for name, took, extra in (
        ("tool call over stdio", result.stdio_ms, result.stdio_extra_ms),
        ("tool call over HTTP", result.http_ms, result.http_extra_ms),
    ):
        table.add_row(name, f"{took:.2f}", f"{extra:.2f}")
    if result.a2a_ms:
        table.add_row("task over the WebSocket", f"{result.task_ms:.2f}", "")
        shown = (f"{result.a2a_ms:.2f}", f"{result.a2a_extra_ms:.2f}")
        table.add_row("task through A2A", *shown)
    table.caption = (
        f"sessions that wait take {result.waiting_core_share:.1%} of a core together, and"
        f" {result.waiting_session_kib:,.0f} KiB each"
    )
    return table
