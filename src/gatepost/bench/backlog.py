"""Measures catching up: messages wait for a gateway that was away, and it comes back.

With fallbacks each message is an offer, which the sender's gateway confirms before the agent gets
it. The fallback is away all the time. The clock starts when the gateway is back and answers.
"""

import asyncio
import multiprocessing
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import uvloop
from msgspec import Struct
from rich.console import RenderableType
from rich.table import Table

from gatepost.bench.joined_gateways import call_gateway, join_gateways
from gatepost.bench.mailbox import QUIET_SETTINGS, CheckingConsumer
from gatepost.client import Client, Message
from gatepost.errors import BenchFailed
from gatepost.testing import GatewayProcess

_AGENT = "returning"
_PROBE_MAILBOX = "probe"
_TIMEOUT_SECS = 600.0
_POLL_SECS = 0.02


class BacklogOptions(Struct, frozen=True):
    messages: int
    size: int
    outstanding: int
    fallbacks: bool


class AgentResult(Struct, frozen=True):
    """What the agent saw, by the monotonic clock that all processes of the machine share."""

    first_at: float
    last_at: float
    failure: str | None = None


class BacklogResult(Struct, frozen=True):
    """`longest_call_ms` is the longest of the enqueue calls to either gateway meanwhile.

    No commit took longer than that.
    """

    messages: int
    fallbacks: bool
    first_ms: float
    seconds: float
    per_sec: float
    closed_per_sec: float
    longest_call_ms: float


def bench_backlog(state_dir: Path, options: BacklogOptions) -> BacklogResult:
    """Measure on fresh gateways inside `state_dir`, so on the same disk."""
    state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="bench-", dir=state_dir) as home,
        ExitStack() as stack,
    ):
        folder = Path(home)
        names = ("here", "there", "fallback") if options.fallbacks else ("here", "there")
        here, there, *others = (
            stack.enter_context(_new_gateway(folder, f"{name}-backlog")) for name in names
        )
        for gateway, name in zip((there, *others), names[1:], strict=True):
            join_gateways(here, gateway, f"{name}-backlog")
        _register_agent(here, there, others)
        # The fallback goes first: otherwise the messages wait for it.
        for gateway in others:
            gateway.stop()
            _wait_for(partial(_is_offline, here, gateway), "the fallback still seems to be there")
        # A message for a gateway that is known to be away is an offer too, even without fallbacks.
        there.kill9()
        asyncio.run(_send_backlog(here, options))
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_run_agent, args=(theirs,), daemon=True)
        process.start()
        try:
            return _measure_return(here, there, ours, options)
        finally:
            process.terminate()
            process.join(10)


def _new_gateway(folder: Path, name: str) -> GatewayProcess:
    return GatewayProcess(folder / name, node__id=name, **QUIET_SETTINGS)


def _register_agent(
    here: GatewayProcess, there: GatewayProcess, fallbacks: list[GatewayProcess]
) -> None:
    call_gateway(there, "PUT", f"/v1/agents/{_AGENT}")
    for gateway in fallbacks:
        _wait_for(partial(_knows_agent, gateway), "the agent is not known")
        call_gateway(gateway, "PUT", f"/v1/agents/{_AGENT}?standby=true")
    standbys = [gateway.state_dir.name for gateway in fallbacks]
    _wait_for(lambda: _known_agents(here).get(_AGENT) == standbys, "the standby is not known")
    if fallbacks:
        call_gateway(here, "PUT", f"/v1/room/routes/{_AGENT}", {"fallbacks": standbys})


def _is_offline(here: GatewayProcess, gateway: GatewayProcess) -> bool:
    peers = {each["id"]: each for each in here.get("/v1/status")["peers"]}
    return bool(peers[gateway.state_dir.name]["status"] != "online")


def _knows_agent(gateway: GatewayProcess) -> bool:
    return _AGENT in _known_agents(gateway)


def _known_agents(gateway: GatewayProcess) -> dict[str, list[str]]:
    return {each["id"]: each["standbys"] for each in gateway.get("/v1/room/agents")}


def _wait_for(condition: Callable[[], bool], problem: str) -> None:
    deadline = time.monotonic() + _TIMEOUT_SECS
    while not condition():
        if time.monotonic() > deadline:
            raise BenchFailed(problem)
        time.sleep(_POLL_SECS)


async def _send_backlog(here: GatewayProcess, options: BacklogOptions) -> None:
    pad = "x" * (options.size - 2 - 12)
    numbers = iter(range(options.messages))
    async with Client("sender", url=here.url, token=here.token) as client:

        async def slot() -> None:
            for number in numbers:
                await client.send(_AGENT, f"{number:012d}{pad}")

        await asyncio.gather(*(slot() for _ in range(options.outstanding)))


def _measure_return(
    here: GatewayProcess, there: GatewayProcess, agent: Connection, options: BacklogOptions
) -> BacklogResult:
    _expect(agent, "started")
    there.start()
    began = time.monotonic()
    agent.send((there.url, there.token, options.messages))
    longest = asyncio.run(_probe_until(agent.poll, [here, there]))
    report = agent.recv()
    _wait_for(lambda: not here.get("/v1/status")["deliveries_open"], "some deliveries never ended")
    closed_at = time.monotonic()
    if report.failure is not None:
        raise BenchFailed(report.failure)
    seconds = report.last_at - began
    return BacklogResult(
        options.messages,
        options.fallbacks,
        (report.first_at - began) * 1e3,
        seconds,
        options.messages / seconds,
        options.messages / (closed_at - began),
        longest * 1e3,
    )


async def _probe_until(done: Callable[[], bool], gateways: list[GatewayProcess]) -> float:
    """Enqueue one message at a time at each gateway until `done`; returns the longest wait."""
    deadline = time.monotonic() + _TIMEOUT_SECS
    stop = asyncio.Event()
    probes = [asyncio.create_task(_probe_gateway(gateway, stop)) for gateway in gateways]
    while not await asyncio.to_thread(done):
        if time.monotonic() > deadline:
            raise BenchFailed("some messages never arrived")
        await asyncio.sleep(_POLL_SECS)
    stop.set()
    return max(await asyncio.gather(*probes))


async def _probe_gateway(gateway: GatewayProcess, stop: asyncio.Event) -> float:
    longest = 0.0
    async with Client("prober", url=gateway.url, token=gateway.token) as client:
        while not stop.is_set():
            began = time.monotonic()
            await client.enqueue(_PROBE_MAILBOX, "probe", from_="prober", order="none")
            longest = max(longest, time.monotonic() - began)
            await asyncio.sleep(_POLL_SECS)
    return longest


def _expect(agent: Connection, word: str) -> None:
    received = agent.recv() if agent.poll(_TIMEOUT_SECS) else "nothing"
    if received != word:
        raise BenchFailed(f"the agent process sent {received!r} instead of {word!r}")


def _run_agent(parent: Connection) -> None:
    parent.send("started")
    parent.send(uvloop.run(_take_backlog(*parent.recv())))


async def _take_backlog(url: str, token: str, total: int) -> AgentResult:
    first_at = 0.0
    async with Client(url=url, token=token) as client:
        consumer = CheckingConsumer(client, total, _AGENT)

        def take(messages: list[Message]) -> None:
            nonlocal first_at
            first_at = first_at or time.monotonic()
            consumer.take_messages(messages)

        await client.subscribe(_AGENT, take, credit=2048)
        try:
            await consumer.finished
        except BenchFailed as failure:
            return AgentResult(first_at, time.monotonic(), str(failure))
        return AgentResult(first_at, time.monotonic())


def render_backlog(result: BacklogResult) -> RenderableType:
    """The result as a table."""
    how = "offers" if result.fallbacks else "without fallbacks"
    table = Table(title=f"{result.messages:,} messages waited for a gateway, {how}")
    for heading in ("", "value"):
        table.add_column(heading, justify="right" if heading else "left")
    table.add_row("first message at the agent, ms", f"{result.first_ms:,.0f}")
    table.add_row("messages per second, until the last was acked", f"{result.per_sec:,.0f}")
    table.add_row("messages per second, until all were closed", f"{result.closed_per_sec:,.0f}")
    table.add_row("longest call to either gateway, ms", f"{result.longest_call_ms:,.0f}")
    return table
