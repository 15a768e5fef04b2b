"""Two gateways that cannot dial each other, and one that both can reach."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from gatepost.client import Agent, Client, Message
from gatepost.errors import UnknownAgent
from tests.live_mesh.tools import Gateway
from tests.waiting import async_wait_until

pytestmark = pytest.mark.anyio

# A public address nobody can dial: whoever wants this gateway has to wait until it dials.
UNREACHABLE = "http://127.0.0.1:9"


@pytest.fixture
def gateways(tmp_path: Path) -> Iterator[list[Gateway]]:
    seed = Gateway(tmp_path, "seed")
    left, right = (
        Gateway(tmp_path, name, room__public_url=UNREACHABLE) for name in ("left", "right")
    )
    with seed, left, right:
        left.join(seed, "edge")
        right.join(seed, "edge")
        yield [seed, left, right]


async def _request(client: Client, payload: object) -> object:
    async def ask() -> tuple[object, ...]:
        try:
            return (await client.request("echo", payload, timeout=30),)
        except UnknownAgent:
            return ()

    (answer,) = await async_wait_until(ask, 40)
    return answer


async def test_mail_and_blobs_pass_through_a_seed(gateways: list[Gateway]) -> None:
    _, left, right = gateways
    agent = Agent("echo", url=right.url, token=right.token)

    @agent.on_message
    async def handle(message: Message) -> object:
        return len(message.payload) if isinstance(message.payload, str) else message.payload

    async with agent, Client("asker", url=left.url, token=left.token) as client:
        assert await _request(client, {"n": 1}) == {"n": 1}
        answers = await asyncio.gather(*(_request(client, {"n": n}) for n in range(50)))
        assert answers == [{"n": n} for n in range(50)]
        assert await _request(client, "x" * 900_000) == 900_000
        sent = await client.send("echo", "traced", wait="processed")
    assert not left.connected_to("right") and not right.connected_to("left")
    (peer,) = [each for each in left.call("GET", "/status")["peers"] if each["id"] == "right"]
    assert (peer["linked"], peer["relay"]) == (False, "seed")
    journey = left.call("GET", f"/trace/{sent.event_id}")
    assert (journey["relays"], journey["unreachable"]) == ({"right": "seed"}, {})
    told = {step["what"] for step in journey["steps"] if step["node"] == "right"}
    assert {"taken", "accepted", "processed"} <= told
