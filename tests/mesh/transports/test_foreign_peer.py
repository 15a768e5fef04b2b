"""A peer of another implementation in the tunnel: it sends the JSON of the protocol, unsigned."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mesh.transports.namespaces import (
    NamespacedProcess,
    joined_namespaces,
    missing_for_namespaces,
    run_ip,
)
from tests.waiting import wait_until

OWN = Path(__file__).with_name("wireguard_mesh_node.py")
FOREIGN = Path(__file__).with_name("wireguard_node.py")
KNOWN = {
    "node_id": "node-b",
    "wg_pubkey": "abc123...",
    "wg_endpoint": "192.168.1.2:51820",
    "tunnel_ip": "10.200.200.2",
}
# The payloads of the protocol's document, as they stand there.
HEARTBEAT: dict[str, object] = {
    "role": "publisher",
    "last_publish_ts": 1700000100,
    "known_peers": [KNOWN],
    "intro_point_count": 3,
}
EXAMPLES: dict[str, dict[str, object]] = {
    "heartbeat": HEARTBEAT,
    "peer_announce": {
        "cluster_token": "secret-token-here",
        "wg_pubkey": "xyz789...",
        "wg_endpoint": "192.168.1.3:51820",
        "tunnel_ip": "10.200.200.3",
    },
    "intro_points": {
        "intro_points": [
            {"data": "base64-encoded-intro-point-1"},
            {"data": "base64-encoded-intro-point-2"},
        ],
        "fetched_at": 1700000195,
    },
    "lease_claim": {"priority": 20},
    "lease_release": {},
    "backend_unhealthy": {"backend": "backend-2"},
}


class ForeignPeer:
    """Node-b, and node-a to which it speaks."""

    def __init__(self, own: NamespacedProcess, foreign: NamespacedProcess) -> None:
        self.own, self.foreign = own, foreign

    def send(self, type: str, payload: object) -> None:
        message = {"node_id": "node-b", "timestamp": int(time.time()), "type": type}
        text = json.dumps(message | {"payload": payload}, separators=(",", ":"))
        self.foreign.say("send", "10.201.0.1:7433", text)

    def verdict(self, type: str, payload: object) -> str:
        """What node-a says of the datagram. The first ones may get lost while the tunnel starts."""
        self.send(type, payload)
        return self.own.hear("judged")[2]


@pytest.fixture
def prefix() -> str:
    return f"gf{os.getpid() % 100_000}"


@pytest.fixture
def peer(prefix: str) -> Iterator[ForeignPeer]:
    if reason := missing_for_namespaces("wg", "wireguard-go"):
        pytest.skip(reason)
    with joined_namespaces(prefix, "192.0.2.1", "192.0.2.2") as (first, second):
        start = (first, OWN, f"{prefix}x", "10.201.0.1")
        other = (second, FOREIGN, f"{prefix}y", "bob", "10.201.0.2")
        with NamespacedProcess(*start) as own, NamespacedProcess(*other) as foreign:
            own_key, foreign_key = own.hear("ready")[1], foreign.hear("ready")[1]
            own.say("peer", foreign_key, "10.201.0.2", "192.0.2.2:51820")
            foreign.say("peer", own_key, "10.201.0.1", "192.0.2.1:51820")
            own.hear("done"), foreign.hear("done")
            # WireGuard keeps what is sent while it connects.
            yield ForeignPeer(own, foreign)


def test_every_message_of_the_protocol_counts_and_a_foreign_peer_leads(
    peer: ForeignPeer, prefix: str
) -> None:
    verdicts = {type: peer.verdict(type, payload) for type, payload in EXAMPLES.items()}
    assert verdicts == dict.fromkeys(EXAMPLES, "taken")
    peer.send("heartbeat", {key: HEARTBEAT[key] for key in HEARTBEAT if key != "last_publish_ts"})
    assert peer.own.hear("judged") == ["judged", "heartbeat", "taken"]

    # The release left the office to node-a; a claim of better rank takes it.
    peer.send("lease_claim", {"priority": 5})
    wait_until(lambda: peer.own.hear("publisher") == ["publisher", "node-b"])
    heard = [json.loads(peer.foreign.hear("got")[1]) for _ in range(3)]
    assert {each["node_id"] for each in heard} == {"node-a"}

    # The same address on another interface is nobody's.
    run_ip("-n", f"{prefix}b", "route", "add", "10.201.0.1/32", "dev", f"{prefix}1")
    message = {"node_id": "node-b", "timestamp": int(time.time()), "type": "lease_release"}
    text = json.dumps(message | {"payload": {}})
    script = (
        "import socket, sys; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM);"
        " s.bind(('10.201.0.2', 0)); s.sendto(sys.argv[1].encode(), ('10.201.0.1', 7433))"
    )
    enter = ["nsenter", f"--net=/run/netns/{prefix}b", sys.executable, "-c", script, text]
    subprocess.run(enter, check=True, timeout=20)
    assert peer.own.hears_nothing("judged", 1)
