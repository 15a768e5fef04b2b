"""Real gateways of which the publisher hands over: as its operator wishes, or because it fails."""

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from tests.gateway.tools import client
from tests.live_mesh.test_election import TIMERS, free_port, leader, mesh
from tests.live_mesh.tools import Gateway
from tests.waiting import wait_until

GatewayType = TypeVar("GatewayType", bound=Gateway)
pytestmark = pytest.mark.timeout(300)

# Takeover by silence takes this long, so a handover within the test's patience is a release.
_LONG: dict[str, object] = {"mesh__suspect_secs": 20, "mesh__grace_secs": 600}


def is_whole(gateway: Gateway) -> bool:
    return [peer["state"] for peer in mesh(gateway)["peers"]] == ["alive"] * 2


@contextmanager
def three_leaders(
    folder: Path, kind: type[GatewayType], **settings: object
) -> Iterator[list[GatewayType]]:
    """Ann, bob and cat may lead, with falling rank, and ann does."""
    port = free_port()
    with ExitStack() as ends:
        started: list[GatewayType] = []
        # One after the other, so that each has the processor while it starts.
        for number, name in enumerate(("ann", "bob", "cat")):
            (folder / name).mkdir(exist_ok=True)
            own: dict[str, object] = {
                "mesh__transport": "udp",
                "mesh__port": 0 if number else port,
                "mesh__priority": 10 * number,
                "mesh__peers": f"127.0.0.1:{port}" if number else "",
            }
            gateway = kind(folder / name, name, **(own | TIMERS | settings))
            ends.enter_context(gateway)
            started.append(gateway)
            if number:
                gateway.join(started[0])
        # On a busy machine an announcement may be missed; the next one comes up to 120 s later.
        wait_until(lambda: leader(*started) == "ann" and all(map(is_whole, started)), 180)
        yield started


def test_an_operator_hands_the_lease_over_and_the_gateway_does_not_take_it_back(
    tmp_path: Path,
) -> None:
    with three_leaders(tmp_path, Gateway, **_LONG) as gateways:
        ann, bob, cat = gateways
        with client(bob) as http:
            refused = http.post("/v1/mesh/release", json={})
        assert refused.status_code == 409 and "ann does" in refused.text
        ann.call("POST", "/mesh/release", {})
        wait_until(lambda: leader(*gateways) == "bob")
        bob.call("POST", "/mesh/release", {})
        wait_until(lambda: leader(*gateways) == "cat", 30)
        received = mesh(ann)["received"]
        wait_until(lambda: mesh(ann)["received"] > received + 40)
        assert leader(*gateways) == "cat"
        assert "suspect" not in cat.log.read_text()


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=24m", "gatepost-test", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a disk of its own needs the right to mount")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def refuses_mail(gateway: Gateway) -> bool:
    with client(gateway) as http:
        body = {"from_agent": "al", "to_agent": "al", "payload": "x" * 20_000}
        return http.post("/v1/messages", json=body).status_code == 503


def test_a_publisher_whose_disk_is_full_hands_over_and_says_why(tmp_path: Path) -> None:
    with small_disk(tmp_path / "ann"), three_leaders(tmp_path, Gateway, **_LONG) as gateways:
        ann, bob, cat = gateways
        ann.call("PUT", "/agents/al")
        ballast = tmp_path / "ann" / "ballast"
        with ballast.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
            while True:
                file.write(bytes(4096))
        wait_until(lambda: refuses_mail(ann))
        wait_until(lambda: leader(bob, cat) == "bob", 40)
        assert "suspect" not in cat.log.read_text()
        (problem,) = mesh(ann)["problems"]
        assert problem.startswith("ann leaves the mesh to others to lead: the journal cannot write")
        assert ann.call("GET", "/status")["mesh_problems"] == [problem]
        wait_until(lambda: [p["is_barred"] for p in mesh(cat)["peers"]] == [True, False])

        ballast.unlink()
        wait_until(lambda: not mesh(ann)["problems"])
        wait_until(lambda: leader(*gateways) == "bob")
