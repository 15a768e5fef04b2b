"""Three real gateways under load while one is killed, frozen or cut off, again and again.

Afterwards everything is healed and drained, and the history checker reads the journals.
"""

import asyncio
import contextlib
import logging
import os
import random
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from gatepost.client import Agent, Client, Message
from gatepost.errors import GatepostError
from gatepost.events import NodeKey
from gatepost.testing import GatewayProcess
from simulation.history import (
    GatewayJournal,
    Observations,
    ObservedSend,
    check_history,
    read_journal,
)
from tests.live_mesh.cable import Cable
from tests.live_mesh.tools import Gateway
from tests.waiting import async_wait_until, wait_until_in_thread

pytestmark = pytest.mark.anyio

NAMES = ("vps-jane", "mbp-jane", "lab-jane")
PATIENT = {
    "delivery__accept_timeout_secs": 1.5,
    "delivery__base_backoff_secs": 0.2,
    "delivery__max_backoff_secs": 1,
    "delivery__max_attempts": 200,
    "delivery__offline_secs": 3,
    "mailbox__base_backoff_secs": 0.05,
    "mailbox__max_retries": 3,
    "mailbox__inflight_timeout_secs": 10,
}


class Place:
    """A gateway, the cable others reach it by, and the agent that lives there."""

    def __init__(self, folder: Path, name: str) -> None:
        self.cable = Cable()
        self.gateway = Gateway(folder, name, room__public_url=self.cable.url, **PATIENT)
        self.agent = f"agent-{name}"

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        with self.cable, self.gateway:
            self.cable.port = self.gateway.port
            yield


@pytest.fixture
def places(tmp_path: Path) -> Iterator[list[Place]]:
    places = [Place(tmp_path, name) for name in NAMES]
    with contextlib.ExitStack() as stack:
        for place in places:
            stack.enter_context(place.open())
        first = places[0]
        for place in places[1:]:
            token = first.gateway.invite(place.gateway.name)
            place.gateway.call("POST", "/room/join", {"seed": first.cable.url, "token": token})
        yield places


@pytest.mark.timeout(900)
async def test_nothing_is_lost_or_doubled_whatever_happens_to_whom(
    places: list[Place], count: Callable[[int, int], int], caplog: pytest.LogCaptureFixture
) -> None:
    # Turns fail on purpose.
    caplog.set_level(logging.CRITICAL, "gatepost.client")
    seed = int(os.environ.get("GATEPOST_CHAOS_SEED", random.randrange(2**32)))
    print(f"repeat with GATEPOST_CHAOS_SEED={seed}")
    chance, seen, ending = random.Random(seed), Observations(), asyncio.Event()
    async with contextlib.AsyncExitStack() as stack:
        for place in places:
            await stack.enter_async_context(working(place, chance))
        await everybody_known(places)
        senders = [asyncio.create_task(send(p, places, chance, seen, ending)) for p in places]
        for _ in range(count(4, 30)):
            await acknowledged(seen, chance.randint(20, 80))
            await harm(chance.choice(places), chance)
        ending.set()
        await asyncio.gather(*senders)
        await drained([place.gateway for place in places])
    for place in places:
        place.gateway.stop()
    verdict = check_history([journal(place.gateway) for place in places], seen)
    print(verdict)
    assert verdict.ok, f"seed {seed}\n{verdict}"
    assert verdict.counts.sent >= acknowledged_count(seen) > 100
    assert verdict.counts.dead_lettered > 0
    assert verdict.counts.waiting == verdict.counts.lost == verdict.counts.doubled == 0


@contextlib.asynccontextmanager
async def working(place: Place, chance: random.Random) -> AsyncIterator[None]:
    agent = Agent(place.agent, url=place.gateway.url, token=place.gateway.token)

    @agent.on_message
    async def handle(message: Message) -> str | None:
        # A turn takes some time, so that harm also comes in the middle of one.
        await asyncio.sleep(chance.uniform(0, 0.003))
        if chance.random() < 0.05 or message.payload["n"] % 200 == 7:
            raise RuntimeError("bad luck, or no luck ever")
        return "done" if chance.random() < 0.3 else None

    serving = asyncio.create_task(agent.serve())
    try:
        yield
    finally:
        agent.end()
        await asyncio.wait([serving], timeout=20)


async def everybody_known(places: list[Place]) -> None:
    names = {place.agent for place in places}
    for place in places:
        await wait_until_in_thread(lambda: names <= known_agents(place), 20)  # noqa: B023


def known_agents(place: Place) -> set[str]:
    return {str(agent["id"]) for agent in place.gateway.call("GET", "/room/agents")}


async def acknowledged(seen: Observations, count: int) -> None:
    """Wait until this many more sends were acknowledged."""
    wanted = acknowledged_count(seen) + count
    await async_wait_until(lambda: acknowledged_count(seen) >= wanted, 60)


def acknowledged_count(seen: Observations) -> int:
    return sum(send.result == "acknowledged" for send in seen.sends)


async def send(
    place: Place,
    places: list[Place],
    chance: random.Random,
    seen: Observations,
    ending: asyncio.Event,
) -> None:
    """Send until told to end; what the gateway acknowledged is written down."""
    url, token = place.gateway.url, place.gateway.token
    async with Client(f"sender-{place.gateway.name}", url=url, token=token) as client:
        while not ending.is_set():
            await asyncio.gather(
                *(one(client, place, chance.choice(places), seen) for _ in range(5))
            )
            # The load leaves the gateways time to recover.
            await asyncio.sleep(chance.uniform(0, 0.05))


async def one(client: Client, place: Place, to: Place, seen: Observations) -> None:
    sent = ObservedSend(place.gateway.name, f"sender-{place.gateway.name}", to.agent, "", 0)
    seen.sends.append(sent)
    try:
        answer = await client.send(to.agent, {"n": len(seen.sends)}, timeout=60)
    except GatepostError as error:
        sent.result = error.code
    else:
        sent.event_id, sent.result = answer.event_id, "acknowledged"


async def harm(place: Place, chance: random.Random) -> None:
    """The sleeps are the outages themselves, longer and shorter than the timeouts they meet."""
    secs = chance.uniform(0.2, 2.5)
    kind = chance.choice(("kill", "freeze", "cut"))
    if kind == "kill":
        await asyncio.to_thread(place.gateway.kill9)
        await asyncio.sleep(secs / 4)
        await asyncio.to_thread(place.gateway.start)
    elif kind == "freeze":
        with place.gateway.frozen():
            await asyncio.sleep(secs)
    else:
        with place.cable.broken():
            await asyncio.sleep(secs)


async def drained(gateways: list[Gateway]) -> None:
    def nothing_left() -> bool:
        states = [gateway.get("/v1/status") for gateway in gateways]
        return not any(s["deliveries_open"] + s["waiting"] + s["in_flight"] for s in states)

    await wait_until_in_thread(nothing_left, 120)


def journal(gateway: GatewayProcess) -> GatewayJournal:
    key = NodeKey((gateway.state_dir / "node.key").read_bytes())
    return read_journal(gateway.state_dir / "journal.db", key.public)
