"""A standby takes over while the owner is away, and gives way when it returns."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gatepost.client import Agent, Client, Message
from tests.gateway.tools import client
from tests.live_mesh.conftest import running
from tests.live_mesh.test_moving import live_behind, nothing_open, post
from tests.live_mesh.tools import Gateway
from tests.waiting import wait_until, wait_until_in_thread

pytestmark = pytest.mark.anyio

OLD = [f"old-{n}" for n in range(5)]
NEW = [f"new-{n}" for n in range(5)]
EACH = 40
_NEW = {"from_agent": "al", "payload": 1}


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Gateway]]:
    """Ann founded the room; bob is a backbone node too, cat an edge node that can do `gpu`."""
    folder = tmp_path_factory.mktemp("fallback")
    with running(
        folder,
        "ann",
        "bob",
        "cat",
        delivery__offline_secs=0.5,
        delivery__accept_timeout_secs=1,
        delivery__base_backoff_secs=0.1,
        node__capabilities="gpu",
    ) as gateways:
        gateways[1].join(gateways[0])
        gateways[2].join(gateways[0], tier="edge")
        yield gateways


class Work:
    """What the agent's turns saw, wherever they were taken: (gateway, sender, payload)."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.done: list[tuple[str, str, Any]] = []

    @asynccontextmanager
    async def at(self, gateway: Gateway, *, standby: bool = False) -> AsyncIterator[None]:
        agent = Agent(self.name, url=gateway.url, token=gateway.token, standby=standby)

        @agent.on_message
        async def take(message: Message) -> None:
            self.done.append((gateway.name, message.from_, message.payload))

        async with agent:
            yield

    def by(self, gateway: str) -> int:
        return sum(name == gateway for name, _, _ in self.done)

    def of(self, sender: str) -> list[Any]:
        return [payload for _, name, payload in self.done if name == sender]


async def send_slowly(gateway: Gateway, to: str, senders: list[str]) -> None:
    async with Client("al", url=gateway.url, token=gateway.token) as sending:
        for n in range(EACH):
            for sender in senders:
                await sending.send(to, n, from_=sender)
                # Slowly, so that there is mail before, during and after the outage.
                await asyncio.sleep(0.002)


@pytest.mark.parametrize("how", ["stopped", "killed"])
async def test_each_message_has_one_turn_wherever_it_is_taken(
    three: list[Gateway], how: str
) -> None:
    ann, bob, cat = three
    work = Work(f"job-{how}")
    undelivered = _count_undelivered(three)
    async with work.at(bob), work.at(cat, standby=True):
        await wait_until_in_thread(lambda: _is_known(ann, work.name))
        ann.call("PUT", f"/room/routes/{work.name}", {"fallbacks": ["cat"]})
        # Of these, some have mail in bob's hands when he goes, and so wait for him.
        old = asyncio.create_task(send_slowly(ann, work.name, OLD))
        await wait_until_in_thread(lambda: work.by("bob") > 20)
        await asyncio.to_thread(bob.stop if how == "stopped" else bob.kill9)
        new = asyncio.create_task(send_slowly(ann, work.name, NEW))
        await wait_until_in_thread(lambda: work.by("cat") > 20)
        await asyncio.to_thread(bob.start)
        await asyncio.gather(old, new)
        everything = EACH * len(OLD + NEW)
        await wait_until_in_thread(
            lambda: len(work.done) >= everything and nothing_open(*three), 15
        )
        async with asyncio.timeout(15):
            await _owner_is_back(ann, work)
    assert all(work.of(sender) == list(range(EACH)) for sender in OLD + NEW), "once, and in order"
    assert _count_undelivered(three) == undelivered


def _count_undelivered(gateways: list[Gateway]) -> list[int]:
    return [each.call("GET", "/status")["undelivered"] for each in gateways]


async def _owner_is_back(gateway: Gateway, work: Work) -> None:
    """A gateway may take a moment to hear of it, and asks the standby until then."""
    async with Client("al", url=gateway.url, token=gateway.token) as asking:
        while ("bob", "al", 1) not in work.done:
            await asking.send(work.name, 1, wait="processed")


def _is_known(gateway: Gateway, agent: str) -> bool:
    agents = {each["id"]: each for each in gateway.call("GET", "/room/agents")}
    return agent in agents and agents[agent]["standbys"] == ["cat"]


async def test_a_route_sets_the_priority_of_mail(three: list[Gateway]) -> None:
    ann, bob, _ = three
    live_behind(bob, "clerk", three)
    post(ann, "slow", "clerk", "first")
    wait_until(lambda: _waiting(bob, "clerk") == 1)
    ann.call("PUT", "/room/routes/clerk", {"priority": 600})
    wait_until(lambda: bob.call("GET", "/room/routes/clerk")["priority"] == 600)
    post(ann, "urgent", "clerk", "second")
    wait_until(lambda: _waiting(bob, "clerk") == 2)
    taken = bob.call("POST", "/mailboxes/clerk/dequeue", {"limit": 2})["messages"]
    assert [mail["payload"] for mail in taken] == ["second", "first"]
    receipts = [mail["receipt"] for mail in taken]
    bob.call("POST", "/mailboxes/clerk/ack", {"receipts": receipts})
    wait_until(lambda: nothing_open(*three))


def _waiting(gateway: Gateway, mailbox: str) -> int:
    boxes = {each["name"]: each["waiting"] for each in gateway.call("GET", "/mailboxes")}
    return int(boxes.get(mailbox, 0))


def test_capabilities_are_in_the_room_and_asked_for(three: list[Gateway]) -> None:
    ann, bob, _ = three
    assert ann.records()["nodes cat"]["data"]["capabilities"] == ["gpu"]
    live_behind(bob, "painter", three)
    ann.call("PUT", "/room/routes/painter", {"requires": ["gpu"]})
    sent = _send(ann, "painter")
    assert (sent["state"], sent["node"]) == ("emitted", "bob")
    ann.call("PUT", "/room/routes/painter", {"requires": ["gpu", "oven"]})
    wait_until(lambda: _send(ann, "painter")["state"] == "dead_letter")
    lost = _send(ann, "painter")
    assert (lost["state"], lost["reason"]) == ("dead_letter", "no_route")
    with client(ann) as http:
        answer = http.post("/v1/messages", json={**_NEW, "to_agent": "nobody-ever"})
    assert (answer.status_code, answer.json()["code"]) == (404, "unknown_agent")
    wait_until(lambda: _purge(bob, "painter") and nothing_open(*three))


def _purge(gateway: Gateway, mailbox: str) -> bool:
    """End its mail, which would stay open for the tests that follow."""
    return bool(gateway.call("DELETE", f"/mailboxes/{mailbox}"))


def _send(gateway: Gateway, to: str) -> Any:
    return gateway.call("POST", "/messages", {**_NEW, "to_agent": to})


def test_routes_are_set_listed_and_removed_by_who_has_a_say(three: list[Gateway]) -> None:
    ann, bob, cat = three
    live_behind(bob, "target", three)
    path = "/room/routes/target"
    set_ = bob.call("PUT", path, {"fallbacks": ["cat"]})
    assert (set_["owner"], set_["epoch"], set_["set_by"]) == ("bob", 1, "bob")
    wait_until(lambda: any(r["target"] == "target" for r in cat.call("GET", "/room/routes")))
    with client(cat) as http:
        answer = http.put(f"/v1{path}", json={})
        assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
        assert "edge node" in answer.json()["message"]
        answer = http.delete(f"/v1{path}")
        assert (answer.status_code, answer.json()["code"]) == (409, "conflict")
        assert "bob" in answer.json()["message"]
        answer = http.put("/v1/room/routes/cat", json={"fallbacks": ["nowhere"]})
        assert (answer.status_code, answer.json()["code"]) == (404, "unknown_node")
        assert http.put("/v1/room/routes/cat", json={"fallbacks": ["ann"]}).is_success
    wait_until(lambda: "routing target@bob" in ann.records())
    again = ann.call("PUT", path, {"priority": 3})
    assert (again["epoch"], again["set_by"]) == (2, "ann"), "the later word counts"
    wait_until(lambda: bob.call("GET", path)["set_by"] == "ann")
    ann.call("DELETE", path)
    wait_until(lambda: bob.call("GET", path)["set_by"] == "bob")
    bob.call("DELETE", path)
    wait_until(lambda: _status(cat, path) == 404)


def _status(gateway: Gateway, path: str) -> int:
    with client(gateway) as http:
        return http.get(f"/v1{path}").status_code
