"""Two joined gateways with the door for A2A, clients of the SDK, and agents that take tasks."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import httpx
import pytest
from a2a.client.client import Client, ClientConfig
from a2a.client.client_factory import create_client
from a2a.types import a2a_pb2 as pb

from gatepost.bench.joined_gateways import join_gateways
from gatepost.client import Agent, AgentTask
from gatepost.testing import GatewayProcess
from tests.waiting import wait_until

_numbers = itertools.count(1)
# The gateways of `pair`.
_joined: list[GatewayProcess] = []
S = pb.TaskState

# What the agents of these tests are called: settings name who can be reached.
EXPOSED = [f"worker{number}" for number in range(60)]
Handler = Callable[[AgentTask], Awaitable[Any]]


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[GatewayProcess, ...]]:
    """Two gateways of one room: `lap` and `vps`."""
    folder = tmp_path_factory.mktemp("a2a")
    settings = {"a2a__agents": " ".join(EXPOSED), "a2a__allow_private_push": "true"}
    lap = GatewayProcess(folder / "lap", node__id="lap", **settings)
    vps = GatewayProcess(folder / "vps", node__id="vps", **settings)
    with lap, vps:
        join_gateways(lap, vps, "vps")
        _joined.extend((lap, vps))
        yield lap, vps


@pytest.fixture
def worker() -> str:
    """The name of an agent that clients of A2A can reach, and that no other test uses."""
    return EXPOSED[next(_numbers)]


@contextlib.asynccontextmanager
async def serving(
    gateway: GatewayProcess, name: str, handle: Handler, **options: Any
) -> AsyncIterator[Agent]:
    """An agent that takes tasks, behind this gateway. Some of its turns never end."""
    agent = Agent(name, state_dir=gateway.state_dir, stop_timeout=0.5, **options)
    agent.on_task(handle)
    async with agent:
        if gateway in _joined:
            await asyncio.to_thread(wait_until, lambda: all(_knows(g, name) for g in _joined))
        yield agent


def _knows(gateway: GatewayProcess, agent: str) -> bool:
    """Whether mail for the agent has a route from there."""
    return agent in [each["id"] for each in gateway.get("/v1/room/agents")]


@contextlib.asynccontextmanager
async def opened(
    gateway: GatewayProcess,
    agent: str | None,
    *,
    caller: str = "visitor",
    binding: str = "JSONRPC",
    streaming: bool = True,
    polling: bool = False,
    token: str | None = None,
) -> AsyncIterator[Client]:
    """A client of the SDK at the door of an agent, or of the whole gateway."""
    headers = {"authorization": f"Bearer {token or gateway.token}"}
    if token is None:
        headers["gatepost-agent"] = caller
    async with httpx.AsyncClient(headers=headers, timeout=60, trust_env=False) as http:
        config = ClientConfig(
            httpx_client=http,
            streaming=streaming,
            polling=polling,
            supported_protocol_bindings=[binding],
        )
        door = f"{gateway.url}/a2a/agents/{agent}" if agent else gateway.url
        yield await create_client(door, client_config=config)


def message(id: str, text: str = "hello", **more: Any) -> pb.SendMessageRequest:
    said = pb.Message(message_id=id, role=pb.Role.ROLE_USER, parts=[pb.Part(text=text)], **more)
    return pb.SendMessageRequest(message=said)


async def send(client: Client, request: pb.SendMessageRequest) -> list[pb.StreamResponse]:
    """All that the answer to a message brings."""
    async with asyncio.timeout(60):
        return [event async for event in client.send_message(request)]


async def send_one(client: Client, request: pb.SendMessageRequest) -> pb.Task:
    (answer,) = await send(client, request)
    return answer.task


def states(events: list[pb.StreamResponse]) -> list[int]:
    shown = [
        event.task.status if event.HasField("task") else event.status_update.status
        for event in events
        if not event.HasField("artifact_update")
    ]
    return [status.state for status in shown]


async def wait_for_state(client: Client, id: str, *wanted: int) -> pb.Task:
    async with asyncio.timeout(60):
        while (task := await client.get_task(pb.GetTaskRequest(id=id))).status.state not in wanted:
            await asyncio.sleep(0.05)
    return task


def result_of(task: pb.Task) -> Any:
    (artifact,) = task.artifacts
    (part,) = artifact.parts
    return part.text


@pytest.fixture
def publish() -> Callable[[GatewayProcess, str, str], None]:
    """`publish(gateway, agent, id)` publishes a capability of an agent there."""

    def publish_one(gateway: GatewayProcess, agent: str, id: str) -> None:
        skill = {"ref": "skills/any", "version": "1.0"}
        capability = {
            "capability_id": id,
            "name": id.capitalize(),
            "version": "1.0",
            "owner_agent_id": agent,
            "delegation_skill": skill,
            "executor_skill": skill,
            "default_eta_seconds": 60,
            "max_attempts": 1,
            "contract": {},
        }
        headers = {"authorization": f"Bearer {gateway.token}"}
        url = f"{gateway.url}/v1/capabilities/{id}"
        answer = httpx.put(url, json=capability, headers=headers, timeout=60)
        assert answer.is_success, answer.text

    return publish_one
