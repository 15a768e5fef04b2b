"""Two joined gateways, and clients of MCP over both transports."""

import asyncio
import contextlib
import itertools
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any

import httpx2
import pytest
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client

from gatepost.bench.joined_gateways import join_gateways
from gatepost.testing import GatewayProcess

_numbers = itertools.count(1)

# Opens a client of MCP at a gateway, as an agent.
OpenClient = Callable[[GatewayProcess, str], AbstractAsyncContextManager[Client]]


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[GatewayProcess, ...]]:
    """Two gateways of one room: `lap` and `vps`."""
    folder = tmp_path_factory.mktemp("mcp")
    lap = GatewayProcess(folder / "lap", node__id="lap")
    vps = GatewayProcess(folder / "vps", node__id="vps")
    with lap, vps:
        join_gateways(lap, vps, "vps")
        yield lap, vps


@pytest.fixture
def name() -> Callable[[str], str]:
    """`name("bob")` is the name of an agent that no other test has used."""
    return lambda stem: f"{stem}{next(_numbers)}"


@contextlib.asynccontextmanager
async def open_over_http(
    gateway: GatewayProcess, agent: str | None, token: str | None = None, **options: Any
) -> AsyncIterator[Client]:
    headers = {"authorization": f"Bearer {token or gateway.token}"}
    if agent is not None:
        headers["gatepost-agent"] = agent
    async with (
        httpx2.AsyncClient(headers=headers, timeout=70) as http,
        Client(streamable_http_client(f"{gateway.url}/mcp", http_client=http), **options) as client,
    ):
        yield client


@contextlib.asynccontextmanager
async def open_over_stdio(
    gateway: GatewayProcess, agent: str, *more: str, **options: Any
) -> AsyncIterator[Client]:
    arguments = ["-m", "gatepost", "mcp", "--agent", agent, "--state-dir", str(gateway.state_dir)]
    parameters = StdioServerParameters(command=sys.executable, args=[*arguments, *more])
    async with Client(stdio_client(parameters), **options) as client:
        yield client


@pytest.fixture(params=["http", "http-legacy", "stdio", "stdio-legacy"])
def open_client(request: pytest.FixtureRequest) -> OpenClient:
    """Opens a client over HTTP or stdio, with the newest protocol or with an older one."""
    transport, _, era = request.param.partition("-")
    opened: Any = open_over_http if transport == "http" else open_over_stdio
    mode = "legacy" if era else "auto"
    return lambda gateway, agent: opened(gateway, agent, mode=mode)


async def call(client: Client, tool: str, **arguments: Any) -> Any:
    """The structured result of a tool; AssertionError with its text if it failed."""
    answer = await asyncio.wait_for(client.call_tool(tool, arguments), 70)
    text = answer.content[0].text  # type: ignore[union-attr]
    assert not answer.is_error, text
    return answer.structured_content


async def refusal(client: Client, tool: str, **arguments: Any) -> str:
    answer = await asyncio.wait_for(client.call_tool(tool, arguments), 70)
    assert answer.is_error
    return str(answer.content[0].text)  # type: ignore[union-attr]


async def wait_for_agent(client: Client, agent: str) -> Any:
    """Wait until the room has told the client's gateway of an agent."""
    async with asyncio.timeout(20):
        while not (found := (await call(client, "find", query=agent))["agents"]):
            await asyncio.sleep(0.02)
    return found
