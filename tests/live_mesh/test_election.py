"""Real gateways over loopback UDP, with shortened timers: takeover, handover, and the room."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.live_mesh.tools import Gateway
from tests.waiting import wait_until

TIMERS = {
    "mesh__heartbeat_secs": 0.2,
    "mesh__suspect_secs": 2,
    "mesh__grace_secs": 1,
    "room__sweep_every_secs": 1,
}


def free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def mesh(gateway: Gateway) -> Any:
    return gateway.call("GET", "/mesh")


def leader(*gateways: Gateway) -> str | None:
    """The publisher that all of them name, with the same term."""
    found = {(each["publisher"], str(each["term"])) for each in map(mesh, gateways)}
    return next(iter(found))[0] if len(found) == 1 else None


def coordinator(gateway: Gateway) -> tuple[str, int] | None:
    """The coordinator that counts in the room: its name and term."""
    claims = [each for name, each in gateway.records().items() if name.startswith("coordination")]
    terms = [each["data"]["term"] for each in claims if each.get("data")]
    latest = max(terms, key=lambda term: (term["counter"], term["node"]), default=None)
    return None if latest is None else (latest["node"], latest["counter"])


@pytest.fixture
def four(tmp_path: Path) -> Iterator[list[Gateway]]:
    """Ann, the genesis, bob and cat may lead, with falling rank; dot is an edge.

    Bob is told the address of ann; the others find it in the room.
    """
    port = free_port()
    with ExitStack() as ends:

        def start(name: str, priority: int, own_port: int) -> Gateway:
            gateway = Gateway(
                tmp_path,
                name,
                mesh__transport="udp",
                mesh__port=own_port,
                mesh__priority=priority,
                mesh__peers=f"127.0.0.1:{port}" if name == "bob" else "",
                **TIMERS,
            )
            gateway.spawn()
            ends.push(gateway.__exit__)
            return gateway

        started = [start("ann", 10, port), start("bob", 20, 0), start("cat", 30, 0)]
        started.append(start("dot", 1, 0))
        for gateway in started:
            gateway.wait_ready()
        ann, bob, cat, dot = started
        bob.join(ann)
        cat.join(ann)
        dot.join(ann, tier="edge")
        wait_until(lambda: leader(*started) == "ann" and all(map(is_complete, started)))
        yield started


def is_complete(gateway: Gateway) -> bool:
    return [peer["state"] for peer in mesh(gateway)["peers"]] == ["alive"] * 3


def test_the_best_node_takes_over_from_a_killed_publisher_and_hands_over_when_it_stops(
    four: list[Gateway],
) -> None:
    ann, bob, cat, dot = four
    wait_until(lambda: coordinator(dot) is not None)
    wait_until(lambda: all(len(peer["intro_points"]) == 1 for peer in mesh(dot)["peers"]))
    first = mesh(dot)["term"][0]

    # A frozen gateway keeps its sockets open; the mesh knows all the same, and so does routing.
    with cat.frozen():
        wait_until(lambda: status(ann, "cat") == status(dot, "cat") == "offline")
    wait_until(lambda: status(ann, "cat") == status(dot, "cat") == "online")
    wait_until(lambda: leader(*four) == "ann")

    ann.kill9()
    wait_until(lambda: leader(bob, cat, dot) == "bob")
    term = mesh(dot)["term"]
    assert term[1] == "bob" and term[0] > first
    expected = {"ann": "dead", "bob": "alive", "dot": "alive"}
    wait_until(lambda: {p["node"]: p["state"] for p in mesh(cat)["peers"]} == expected)
    # The room follows: bob coordinates in his term, and everybody sees who is offline.
    wait_until(lambda: coordinator(dot) == ("bob", term[0]))
    wait_until(lambda: status(dot, "ann") == "offline")
    epoch = bob.call("POST", "/room/rotate")["epoch"]
    wait_until(lambda: all(g.call("GET", "/room")["epoch"] == epoch for g in (bob, cat, dot)))

    # A graceful stop skips suspicion and grace: cat claims with the release.
    before = len(cat.log.read_text())
    assert bob.stop() == 0
    wait_until(lambda: leader(cat, dot) == "cat")
    assert "bob is suspect" not in cat.log.read_text()[before:]
    shown = metrics(cat)
    assert "gatepost_mesh_publisher 1.0" in shown
    assert "gatepost_mesh_takeovers_total 0.0" not in shown

    # The genesis returns, and all agree again on one publisher and term.
    ann.start()
    wait_until(lambda: leader(ann, cat, dot) in ("ann", "cat"))
    wait_until(lambda: ann.call("GET", "/room")["epoch"] == epoch)
    wait_until(lambda: status(dot, "ann") == "online")


def status(gateway: Gateway, node: str) -> str | None:
    """None while the gateway moves to another document of the room."""
    found = gateway.nodes().get(node)
    return None if found is None else str(found["status"])


def metrics(gateway: Gateway) -> str:
    headers = {"authorization": f"Bearer {gateway.token}"}
    return httpx.get(f"{gateway.url}/metrics", headers=headers).text
