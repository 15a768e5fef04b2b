"""Gateways whose connection breaks at the worst moments."""

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gateway.tools import client
from tests.live_mesh.cable import Cable
from tests.live_mesh.tools import Gateway, converge
from tests.waiting import wait_until

Pair = tuple[Gateway, Gateway, Cable]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """ann, whom others reach through the cable only, and bob, who has not met her."""
    with contextlib.ExitStack() as ends:
        cable = ends.enter_context(Cable())
        ann = ends.enter_context(Gateway(tmp_path, "ann", room__public_url=cable.url))
        bob = ends.enter_context(Gateway(tmp_path, "bob"))
        cable.port = ann.port
        yield ann, bob, cable


def join(bob: Gateway, cable: Cable, token: str) -> int:
    with client(bob) as http:
        answer = http.post("/v1/room/join", json={"seed": cable.url, "token": token}, timeout=30)
        return answer.status_code


def used_by(ann: Gateway) -> list[str]:
    return [each["used_by"] for each in ann.call("GET", "/room/invites")]


def test_a_host_killed_between_consumption_and_reply_lets_the_joiner_in_afterwards(
    pair: Pair,
) -> None:
    ann, bob, cable = pair
    token = ann.invite("bob", "edge")
    cable.deaf = True
    first = threading.Thread(target=join, args=(bob, cable, token))
    first.start()
    wait_until(lambda: used_by(ann) == ["bob"])
    ann.kill9()
    cable.cut()
    first.join(30)
    assert not first.is_alive()
    with client(bob) as http:
        assert http.get("/v1/room").json()["code"] == "conflict", "bob never heard of it"
    cable.deaf = False
    with cable.broken():
        ann.start()
    cable.port = ann.port
    assert join(bob, cable, token) == 200
    converge(ann, bob)
    assert used_by(ann) == ["bob"]
    assert ann.nodes().keys() == bob.nodes().keys() == {"ann", "bob"}


def test_a_cut_network_heals(pair: Pair) -> None:
    ann, bob, cable = pair
    assert join(bob, cable, ann.invite("bob", "edge")) == 200
    converge(ann, bob)
    with cable.broken():
        wait_until(lambda: not ann.connected_to("bob") and not bob.connected_to("ann"))
        ann.call("PUT", "/agents/planner")
        bob.call("PUT", "/agents/builder")
        wait_until(lambda: "agents planner@ann" in ann.records())
        wait_until(lambda: "agents builder@bob" in bob.records())
        assert "agents planner@ann" not in bob.records()
        assert "agents builder@bob" not in ann.records()
    wait_until(lambda: "agents planner@ann" in bob.records(), 20)
    converge(ann, bob)
    assert ann.incidents() == bob.incidents() == {}
