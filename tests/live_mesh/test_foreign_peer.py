"""A gateway and a peer of another implementation, which only sends the protocol's JSON over UDP.

The machines are network namespaces; between them is a WireGuard tunnel.
"""

import json
import os
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.live_mesh.machines import ROOT, Machine, MachineNetwork, require_machines
from tests.live_mesh.test_foreign_newcomer import split_join_secret
from tests.live_mesh.test_wireguard import mesh_of, missing_for_wireguard, start
from tests.mesh.transports.test_foreign_peer import EXAMPLES, HEARTBEAT
from tests.waiting import wait_until

GATEPOST, PYTHON = ".venv/bin/gatepost", ".venv/bin/python"
# Everything that the foreign peer does: it fills in the time, and sends the text.
SEND = """
import json, socket, sys, time
own, to, type, payload = sys.argv[1:]
said = {"node_id": "node-b", "timestamp": int(time.time()), "type": type}
text = json.dumps(said | {"payload": json.loads(payload)}, indent=2)
wire = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
wire.bind((own, 7433))
wire.sendto(text.encode(), (to, 7433))
"""


class ForeignPeer:
    """Node-b on a machine of its own, in the tunnel of the gateway `vps`."""

    def __init__(self, vps: Machine, machine: Machine) -> None:
        self._vps, self._machine = vps, machine
        secret = wait_until(lambda: vps.run(f"{GATEPOST} mesh secret || true").strip())
        self.cluster_token, _ = split_join_secret(secret)
        script = ROOT / "tests" / "live_mesh" / "foreign_member.py"
        command = shlex.join([str(script), vps.address, machine.address, secret])
        joined = json.loads(machine.run(f"PYTHONPATH=$PYTHONPATH:{ROOT} {PYTHON} {command}"))
        self._ip, self._responder_ip = joined["tunnel_ip"], joined["answer"]["responder_tunnel_ip"]
        self._make_tunnel(joined["private_key"], joined["answer"])

    def _make_tunnel(self, private_key: str, answer: Any) -> None:
        """Follow the answer to the join request, with the tools of the system."""
        name, run = f"fp{os.getpid()}", self._machine.run
        run(f"wireguard-go -f {name} &")
        wait_until(lambda: name in run("ip -brief link"))
        (self._machine.home / "wg.conf").write_text(
            f"[Interface]\nPrivateKey = {private_key}\nListenPort = 51820\n"
            f"[Peer]\nPublicKey = {answer['responder_wg_pubkey']}\n"
            f"AllowedIPs = {self._responder_ip}/32\nEndpoint = {answer['responder_wg_endpoint']}\n"
        )
        run(f"wg setconf {name} wg.conf")
        run(f"ip address add {self._ip}/16 dev {name}")
        run(f"ip link set dev {name} up")

    def send(self, type: str, payload: object) -> dict[str, Any]:
        """Send a message; return the gateway's view of the mesh once it has it."""
        before = mesh_of(self._vps)["received"]
        arguments = [self._ip, self._responder_ip, type, json.dumps(payload)]
        self._machine.run(f"{PYTHON} -c {shlex.join([SEND, *arguments])}")
        wait_until(lambda: mesh_of(self._vps)["received"] > before, 30)
        return mesh_of(self._vps)


def test_the_six_messages_of_the_protocol_count_at_a_gateway_and_a_foreign_peer_leads(
    tmp_path: Path,
) -> None:
    require_machines()
    if reason := missing_for_wireguard():
        pytest.skip(reason)
    with MachineNetwork(tmp_path, "vps", "foreign") as network:
        vps, machine = network.machines.values()
        start(vps, BOOTSTRAP__TIER="backbone", MESH__SUSPECT_SECS="30")
        vps.run(f"{GATEPOST} invite --node nobody")
        own = mesh_of(vps)["node"]
        peer = ForeignPeer(vps, machine)
        standby = HEARTBEAT | {"role": "standby"}
        # The gateway may not have seen yet that the room names the peer's place in the tunnel.
        wait_until(lambda: peer.send("heartbeat", standby)["peers"])
        before = mesh_of(vps)
        assert (before["publisher"], before["peers"][0]["state"]) == (own, "alive")

        announcement = EXAMPLES["peer_announce"] | {"cluster_token": peer.cluster_token}
        peer.send("peer_announce", announcement)
        peer.send("heartbeat", HEARTBEAT)
        peer.send("intro_points", EXAMPLES["intro_points"])
        peer.send("backend_unhealthy", EXAMPLES["backend_unhealthy"])
        unhealthy = "agent backend-2 is unhealthy, as its gateway node-b says"
        assert unhealthy in vps.run(f"{GATEPOST} status")
        assert peer.send("lease_claim", EXAMPLES["lease_claim"])["publisher"] == "node-b"
        peer.send("lease_release", EXAMPLES["lease_release"])
        wait_until(lambda: mesh_of(vps)["publisher"] == own)
        after = peer.send("lease_claim", {"priority": 5})
        assert (after["publisher"], after["state"]) == ("node-b", "standby")
        assert after["refused"] == before["refused"]
