"""Agents that move between real gateways, with mail waiting and senders that do not stop."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gatepost.client import Agent, Client, Message
from tests.gateway.tools import client
from tests.live_mesh.conftest import running
from tests.live_mesh.tools import Gateway, converge
from tests.waiting import (
    assert_stays_true,
    async_assert_stays_true,
    wait_until,
    wait_until_in_thread,
)

pytestmark = pytest.mark.anyio

GRACE = 0.3
DEAD_AFTER = 1.0


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Gateway]]:
    """Ann, bob and cat in one room. Tests share them, each with an agent of its own."""
    folder = tmp_path_factory.mktemp("moving")
    values = {
        "delivery__transfer_grace_secs": GRACE,
        "ownership__takers": "*",
        "ownership__dead_after_secs": DEAD_AFTER,
    }
    with running(folder, "ann", "bob", "cat", **values) as gateways:
        for other in gateways[1:]:
            other.join(gateways[0])
        yield gateways


def live_behind(gateway: Gateway, agent: str, three: list[Gateway]) -> None:
    """Register an agent, and wait until all know of it."""
    gateway.call("PUT", f"/agents/{agent}")
    wait_until(lambda: all(owner(each, agent) == gateway.name for each in three))


def post(gateway: Gateway, sender: str, to: str, *payloads: object) -> None:
    new = [{"from_agent": sender, "to_agent": to, "payload": payload} for payload in payloads]
    gateway.call("POST", "/messages/batch", {"messages": new})


def owner(gateway: Gateway, agent: str) -> str | None:
    agents = {each["id"]: each for each in gateway.call("GET", "/room/agents")}
    return agents[agent]["owner"] if agent in agents else None


def hosted(gateway: Gateway) -> dict[str, Any]:
    return {each["id"]: each for each in gateway.call("GET", "/agents")}


class Turns:
    """What an agent's handler saw, by sender."""

    def __init__(self) -> None:
        self.seen: dict[str, list[Any]] = defaultdict(list)

    @asynccontextmanager
    async def by(self, gateway: Gateway, name: str) -> AsyncIterator[None]:
        agent = Agent(name, url=gateway.url, token=gateway.token)
        agent.on_message(self._take)
        async with agent:
            yield

    async def _take(self, message: Message) -> None:
        self.seen[message.from_].append(message.payload)

    @property
    def count(self) -> int:
        return sum(map(len, self.seen.values()))


def nothing_open(*gateways: Gateway) -> bool:
    return not any(gateway.call("GET", "/status")["deliveries_open"] for gateway in gateways)


async def keep_sending(gateway: Gateway, sender: str, to: str, first: int, last: int) -> None:
    async with Client(sender, url=gateway.url, token=gateway.token) as sending:
        for n in range(first, last):
            await sending.send(to, n)
            # Slowly, so that the agent moves in the middle of it.
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("killed", [False, True], ids=["in peace", "bob is killed"])
async def test_an_agent_moves_with_all_its_mail(three: list[Gateway], killed: bool) -> None:
    ann, bob, cat = three
    name = "mover-2" if killed else "mover-1"
    live_behind(bob, name, three)
    post(ann, "al", name, *range(200))
    post(bob, "bo", name, *range(50))
    sending = asyncio.create_task(keep_sending(ann, "al", name, 200, 400))
    turns = Turns()
    async with turns.by(cat, name):
        if killed:
            await wait_until_in_thread(lambda: turns.count > 0)
            bob.kill9()
            await wait_until_in_thread(lambda: not ann.connected_to("bob"))
            bob.start()
        await sending
        await wait_until_in_thread(lambda: turns.count >= 450 and nothing_open(*three), 20)
        # Nothing has a second turn.
        await async_assert_stays_true(lambda: turns.count == 450, 0.1)
    assert turns.seen == {"al": list(range(400)), "bo": list(range(50))}
    assert {owner(each, name) for each in three} == {"cat"}
    assert name not in hosted(bob)
    assert all(each.call("GET", "/status")["undelivered"] == 0 for each in three)


async def test_replies_come_back_though_the_agent_moved(three: list[Gateway]) -> None:
    ann, bob, cat = three
    live_behind(bob, "oracle", three)
    async with Client("al", url=ann.url, token=ann.token) as al:
        asked = asyncio.create_task(al.request("oracle", 20, timeout=15))
        await wait_until_in_thread(lambda: bob.call("GET", "/status")["waiting"] == 1)
        agent = Agent("oracle", url=cat.url, token=cat.token)

        @agent.on_message
        async def double(message: Message) -> int:
            return int(message.payload) * 2

        async with agent:
            assert await asked == 40


async def test_who_is_served_stays_and_the_other_is_told(three: list[Gateway]) -> None:
    ann, bob, cat = three
    here, there = Turns(), Turns()
    async with here.by(bob, "twin"):
        await wait_until_in_thread(lambda: owner(cat, "twin") == "bob")
        async with there.by(cat, "twin"):
            await wait_until_in_thread(lambda: "bob serves it" in hosted(cat)["twin"]["problem"])
            post(ann, "al", "twin", 1)
            await wait_until_in_thread(lambda: here.count == 1)
            assert (owner(cat, "twin"), there.count) == ("bob", 0)
            with client(cat) as http:
                refused = http.post("/v1/room/agents/twin/claim", json={}).json()
            assert refused["code"] == "forbidden"
            assert "`gatepost agent give twin cat`" in refused["message"]
            bob.call("POST", "/room/agents/twin/give", {"node": "cat"})
            await wait_until_in_thread(lambda: owner(ann, "twin") == "cat")
            post(ann, "al", "twin", 2)
            await wait_until_in_thread(lambda: there.count == 1)
    assert (here.seen, there.seen) == ({"al": [1]}, {"al": [2]})


async def test_registering_again_where_it_lives_changes_nothing(three: list[Gateway]) -> None:
    ann, bob, cat = three
    live_behind(bob, "stayer", three)
    cat.call("PUT", "/agents/stayer?standby=true")
    wait_until(lambda: "agents stayer@cat" in ann.records())
    before = ann.records()["agents stayer@bob"]
    bob.call("PUT", "/agents/stayer")
    # A standby never claims.
    assert_stays_true(lambda: {owner(each, "stayer") for each in three} == {"bob"}, 3 * GRACE)
    assert ann.records()["agents stayer@bob"] == before
    assert hosted(cat)["stayer"]["standby"]


def _override(gateway: Gateway, agent: str, wanted: object) -> tuple[str | None, int | None]:
    """Override the owner, once it was silent for long enough."""
    with client(gateway) as http:
        answer = http.post(f"/v1/room/agents/{agent}/claim", json=wanted).json()
    return answer.get("owner"), answer.get("epoch")


async def test_a_dead_owner_is_overridden_and_hands_over_when_it_returns(
    three: list[Gateway],
) -> None:
    ann, bob, cat = three
    live_behind(bob, "orphan", three)
    post(ann, "al", "orphan", *range(10))
    wait_until(lambda: bob.call("GET", "/status")["waiting"] == 10)
    bob.kill9()
    turns = Turns()
    async with turns.by(cat, "orphan"):
        assert hosted(cat)["orphan"]["owner"] == "bob", "it was asked, and cannot answer"
        wanted = {"override": True, "node": "cat"}
        wait_until(lambda: _override(ann, "orphan", wanted) == ("cat", 2), 10)
        await wait_until_in_thread(lambda: owner(cat, "orphan") == "cat")
        post(ann, "al", "orphan", 10)
        post(ann, "ed", "orphan", 0)
        await wait_until_in_thread(lambda: turns.seen.get("ed") == [0])
        assert "al" not in turns.seen, "what bob accepted goes first"
        bob.start()
        await wait_until_in_thread(lambda: turns.count == 12 and nothing_open(*three), 15)
    assert turns.seen == {"al": list(range(11)), "ed": [0]}
    await wait_until_in_thread(lambda: "orphan" not in hosted(bob))
    assert {owner(each, "orphan") for each in three} == {"cat"}


async def test_the_request_waits_for_an_owner_that_is_away(three: list[Gateway]) -> None:
    _, bob, cat = three
    live_behind(bob, "patient", three)
    bob.stop()
    cat.call("PUT", "/agents/patient")
    bob.start()
    await wait_until_in_thread(lambda: {owner(each, "patient") for each in three} == {"cat"}, 15)


def test_in_the_end_all_gateways_hold_the_same(three: list[Gateway]) -> None:
    converge(*three)
    assert [gateway.incidents() for gateway in three] == [{}, {}, {}]


def test_an_edge_node_overrides_nobody(start: Callable[..., list[Gateway]]) -> None:
    ann, bob = start("ann", "bob")
    bob.join(ann, tier="edge")
    ann.call("PUT", "/agents/job")
    wait_until(lambda: owner(bob, "job") == "ann")
    for agent, body, status, code in (
        ("job", {"override": True}, 403, "forbidden"),
        ("nobody", {}, 404, "unknown_agent"),
        ("job", {"node": "ann"}, 400, "invalid_request"),
    ):
        with client(bob) as http:
            answer = http.post(f"/v1/room/agents/{agent}/claim", json=body)
        assert (answer.status_code, answer.json()["code"]) == (status, code)


async def test_an_agent_at_the_wrong_gateway_is_told_where_its_mail_goes(
    three: list[Gateway], caplog: pytest.LogCaptureFixture
) -> None:
    ann, bob, _ = three
    live_behind(ann, "astray", three)
    turns = Turns()
    with caplog.at_level("INFO", "gatepost.client"):
        async with turns.by(ann, "astray"):
            assert "agent astray is ready for mail" in caplog.messages
            caplog.clear()
            async with turns.by(bob, "astray"):
                (told,) = caplog.messages
    assert told.startswith("agent astray gets no mail here: it lives behind ann")
    assert "gatepost agent give astray bob" in told
