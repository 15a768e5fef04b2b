"""With `--full`: three machines in network namespaces, whose mesh is in a WireGuard tunnel."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.live_mesh.machines import Machine, MachineNetwork, require_machines
from tests.waiting import wait_until

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]
GATEPOST = ".venv/bin/gatepost"


def missing_for_wireguard() -> str:
    tools = ("wg", "wireguard-go", "curl")
    lacking = [tool for tool in tools if shutil.which(tool) is None]
    if lacking:
        return f"{', '.join(lacking)} not installed"
    return "" if Path("/dev/net/tun").exists() else "/dev/net/tun is missing"


def start(machine: Machine, **more: str) -> None:
    values = {
        "LISTEN__HOST": machine.address,
        "LISTEN__ALLOW_PUBLIC": "true",
        "ROOM__ALLOW_PLAIN": "true",
        "MESH__TRANSPORT": "wireguard",
        "MESH__HEARTBEAT_SECS": "0.5",
        "MESH__SUSPECT_SECS": "3",
        "MESH__GRACE_SECS": "3",
        "WIREGUARD__ENDPOINT": f"{machine.address}:51820",
    }
    settings = " ".join(f"GATEPOST_{name}={value}" for name, value in (values | more).items())
    machine.run(f"env {settings} {GATEPOST} up &")
    machine.wait_until_up()


def join(node: Machine, host: Machine) -> None:
    host.run(f"{GATEPOST} invite --tier backbone --node {node.host_name} > token")
    host.run(f"scp token {node.name}:")
    node.run(f"{GATEPOST} join http://{host.address}:7433 --token-file token")


def mesh_of(machine: Machine) -> dict[str, Any]:
    url = f"http://{machine.address}:7433/v1/mesh"
    header = '"authorization: Bearer $(cat .gatepost/token)"'
    return dict(json.loads(machine.run(f"curl -sS --max-time 5 -H {header} {url}")))


def is_in_tunnel(machine: Machine) -> bool:
    """Whether this machine sends to all others in the tunnel, each at an address of its own."""
    addresses = {peer["address"] for peer in mesh_of(machine)["peers"]}
    return len(addresses) == 2 and all(each.startswith("10.200.") for each in addresses)


def states(machine: Machine) -> dict[str, str]:
    return {peer["node"]: peer["state"] for peer in mesh_of(machine)["peers"]}


def test_a_mesh_in_a_tunnel_notices_a_cut_and_heals(tmp_path: Path) -> None:
    require_machines()
    if reason := missing_for_wireguard():
        pytest.skip(reason)
    with MachineNetwork(tmp_path, "vps", "lab", "mac") as network:
        machines = vps, lab, mac = list(network.machines.values())
        for machine in machines:
            start(machine)
        join(lab, vps)
        join(mac, vps)
        wait_until(lambda: all(set(states(each).values()) == {"alive"} for each in machines), 60)
        wait_until(lambda: all(len(states(each)) == 2 for each in machines), 60)
        wait_until(lambda: all(is_in_tunnel(each) for each in machines), 60)
        publisher = str(wait_until(lambda: agreed_publisher(machines), 60))
        (leader,) = (each for each in machines if each.host_name == publisher)
        others = [each for each in machines if each is not leader]
        with network.cut(leader.name):
            wait_until(lambda: all(states(each)[publisher] != "alive" for each in others), 30)
            wait_until(lambda: agreed_publisher(others) not in {None, publisher}, 60)
            assert states(others[0])[others[1].host_name] == "alive"
        wait_until(lambda: all(set(states(each).values()) == {"alive"} for each in machines), 60)
        wait_until(lambda: agreed_publisher(machines), 60)
        vps.run(f"{GATEPOST} revoke {mac.host_name} --yes")
        wait_until(lambda: peer_count(lab) == peer_count(vps) == 1, 30)


def agreed_publisher(machines: list[Machine]) -> str | None:
    """The node that leads, as all these machines say; None if they do not agree."""
    named = {mesh_of(each)["publisher"] for each in machines}
    return named.pop() if len(named) == 1 else None


def peer_count(machine: Machine) -> int:
    """The peers in the tunnel of this machine; `wg show all` shows those of all machines."""
    return machine.run("wg show $(ls /sys/class/net | grep ^gp) peers").count("=")
