"""Three machines in a line, in network namespaces: gossip makes them a full mesh."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.live_mesh.machines import Machine, MachineNetwork, require_machines
from tests.waiting import wait_until

pytestmark = pytest.mark.full
_TIMERS = (
    "GATEPOST_MESH__HEARTBEAT_SECS=0.3 GATEPOST_MESH__SUSPECT_SECS=2 GATEPOST_MESH__GRACE_SECS=2"
)


def start(machine: Machine, knows: str = "") -> None:
    """A gateway that listens everywhere, so that it names no address in the room."""
    machine.run(f".venv/bin/gatepost init --public --host {machine.name}.example")
    settings = f"{_TIMERS} GATEPOST_MESH__TRANSPORT=udp GATEPOST_MESH__HOST=0.0.0.0"
    peers = f"GATEPOST_MESH__PEERS={knows}" if knows else ""
    machine.run(f"env {settings} {peers} .venv/bin/gatepost up &")
    machine.wait_until_up()


def join(host: Machine, machine: Machine) -> None:
    host.run(f".venv/bin/gatepost invite --tier backbone --node {machine.host_name} > token")
    host.run(f"scp token {machine.name}:")
    url = f"https://{host.name}.example:7433"
    machine.run(f".venv/bin/gatepost join {url} --token-file token")


def mesh(machine: Machine) -> Any:
    return json.loads(machine.run(".venv/bin/gatepost mesh status --json"))


def alive_at(machine: Machine) -> dict[str, str]:
    """The peers that are alive, with their addresses."""
    return {p["node"]: p["address"] for p in mesh(machine)["peers"] if p["state"] == "alive"}


def test_a_line_becomes_a_full_mesh_that_survives_a_cut(tmp_path: Path) -> None:
    require_machines()
    with MachineNetwork(tmp_path, "one", "two", "three") as network:
        one, two, three = network.machines.values()
        # One and three know nobody but two, and two knows nobody.
        start(two)
        start(one, knows=f"{two.address}:7433")
        start(three, knows=f"{two.address}:7433")
        join(two, one)
        join(two, three)
        addresses = {each.host_name: f"{each.address}:7433" for each in (one, two, three)}
        for machine in (one, two, three):
            others = {name: each for name, each in addresses.items() if name != machine.host_name}
            wait_until(lambda m=machine, o=others: alive_at(m) == o, 60)  # type: ignore[misc]
        wait_until(lambda: {mesh(m)["publisher"] for m in (one, two, three)} == {two.host_name}, 60)
        with network.cut("two"):
            wait_until(lambda: mesh(three)["publisher"] == one.host_name, 60)
            assert set(alive_at(three)) == {one.host_name}
        # Both halves have a publisher. One has the better rank; all end up with it.
        wait_until(lambda: {mesh(m)["publisher"] for m in (one, two, three)} == {one.host_name}, 60)
        terms = {tuple(mesh(m)["term"]) for m in (one, two, three)}
        assert len(terms) == 1 and {name for _, name in terms} == {one.host_name}
        for machine in (one, two, three):
            assert "Traceback" not in machine.log(), machine.log()
