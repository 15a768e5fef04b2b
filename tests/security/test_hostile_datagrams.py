"""Datagrams of strangers and of an admitted edge, against the mesh of a real gateway."""

import socket
import time
from collections.abc import Iterator
from random import Random
from typing import Any

import httpx
import pytest

from gatepost.delivery.abuse import STRANGERS
from gatepost.mesh.datagram_signature import NodeKeySigner, append_signature
from gatepost.mesh.messages import (
    BackendUnhealthy,
    Heartbeat,
    KnownPeer,
    LeaseClaim,
    LeaseRelease,
    MeshMessage,
    MeshRole,
    Payload,
    PeerAnnounce,
    encode_message,
)
from gatepost.wire.mesh_views import Term
from simulation.hostile import HostileNode
from tests.live_mesh.conftest import running
from tests.live_mesh.tools import Gateway
from tests.waiting import wait_until

# Addresses of this machine from which wrong datagrams come, and wrong tokens.
_ADDRESSES = [f"127.0.{1 + number // 200}.{1 + number % 200}" for number in range(400)]
# So many datagrams are sent at once, for the socket of a gateway that is busy holds only some.
_BATCH = 50
# Signatures that are checked at once, and in a second, for senders that proved no address.
_UNPROVEN_BURST, _UNPROVEN_RATE = 400, 200


class DatagramAttacker:
    """Eve, an admitted edge node without a gateway, with a socket of her own."""

    def __init__(self, ann: Gateway, node: HostileNode) -> None:
        self.ann = ann
        self.node = node
        self.seq = 0
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))
        host, _, port = str(self.mesh()["address"]).rpartition(":")
        self.target = (host, int(port))

    def mesh(self) -> Any:
        return self.ann.call("GET", "/mesh")

    def refused(self, reason: str) -> int:
        return int(self.mesh()["refused"].get(reason, 0))

    def send(self, *datagrams: bytes) -> None:
        for datagram in datagrams:
            self.socket.sendto(datagram, self.target)

    def sign(
        self, payload: Payload, *, name: str | None = None, to: str = "ann", ahead: int = 0
    ) -> bytes:
        self.seq += 1
        message = MeshMessage(name or self.node.name, payload, to)
        text = encode_message(message, int(time.time()) + ahead, self.seq)
        return append_signature(text, NodeKeySigner(self.node.key, self.node.genesis.key))

    def expect_refused(self, reason: str, *datagrams: bytes) -> None:
        """All of them are refused for this reason, and the state stays as it was."""
        before = self.refused(reason)
        self.send(*datagrams)
        wait_until(lambda: self.refused(reason) >= before + len(datagrams))


@pytest.fixture(scope="module")
def eve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DatagramAttacker]:
    """Ann leads her mesh, and has admitted eve as an edge."""
    settings = {
        "mesh__transport": "udp",
        "mesh__port": 0,
        "mesh__heartbeat_secs": 0.2,
        "room__join_burst": 10_000,
        "limits__wrong_tokens_per_min": 1,
    }
    folder = tmp_path_factory.mktemp("datagrams")
    with running(folder, "ann", **settings) as (ann,):
        node = HostileNode(ann.url, "eve")
        with node.join(ann.invite("eve", "edge")) as connection:
            connection.send_records(node.sign_node())
            wait_until(lambda: "nodes eve" in ann.records())
        wait_until(lambda: ann.call("GET", "/mesh")["publisher"] == "ann")
        attacker = DatagramAttacker(ann, node)
        yield attacker
        attacker.socket.close()


@pytest.fixture(autouse=True)
def state_stays(eve: DatagramAttacker) -> Iterator[None]:
    """Whatever is sent: ann goes on leading in her term, and nobody else appears."""
    before = eve.mesh()
    yield
    after = eve.mesh()
    for name in ("publisher", "term", "state", "takeovers"):
        assert after[name] == before[name], name
    assert {peer["node"] for peer in after["peers"]} <= {"eve"}


def test_lies_of_strangers_are_counted(eve: DatagramAttacker) -> None:
    beat = Heartbeat(
        role=MeshRole.PUBLISHER,
        known_peers=(),
        intro_point_count=0,
        priority=0,
        term=Term(9, "eve"),
    )
    eve.expect_refused("unknown_sender", eve.sign(beat, name="nobody"), eve.sign(beat, name="ann"))
    eve.expect_refused("malformed", b"", b"{}", b"\xff" * 500, b"[" * 1100)
    eve.expect_refused("clock_skew", eve.sign(beat, ahead=9), eve.sign(beat, ahead=-9))
    eve.expect_refused("wrong_receiver", eve.sign(beat, to="bob"))
    eve.send(bytes(1500), b"[" * 1300)


def test_a_replayed_datagram_counts_once(eve: DatagramAttacker) -> None:
    good = eve.sign(PeerAnnounce("", "", "", ""))
    eve.send(good)
    eve.expect_refused("replayed", good, good)


def test_an_edge_deposes_nobody(eve: DatagramAttacker) -> None:
    eve.expect_refused(
        "not_allowed",
        eve.sign(LeaseClaim(0, Term(50, "eve"))),
        eve.sign(LeaseRelease()),
        eve.sign(LeaseRelease(Term(1, "ann"))),
        eve.sign(
            Heartbeat(
                role=MeshRole.PUBLISHER,
                known_peers=(),
                intro_point_count=0,
                priority=0,
                term=Term(50, "eve"),
            )
        ),
        eve.sign(
            Heartbeat(
                role=MeshRole.STANDBY,
                known_peers=(),
                intro_point_count=0,
                priority=0,
                term=Term(2**50, "ann"),
            )
        ),
    )


def test_hints_and_reports_of_an_edge_move_nobody(eve: DatagramAttacker) -> None:
    named = (KnownPeer("ann", "", "127.0.0.1:9", ""), KnownPeer("zed", "", "127.0.0.1:9", ""))
    before = eve.mesh()["received"]
    eve.send(
        eve.sign(Heartbeat(role=MeshRole.STANDBY, known_peers=named, intro_point_count=0)),
        eve.sign(BackendUnhealthy("bo")),
    )
    wait_until(lambda: eve.mesh()["received"] >= before + 2)


def test_mutated_datagrams_are_judged_and_the_gateway_goes_on(eve: DatagramAttacker) -> None:
    random, good = (
        Random(3),
        eve.sign(Heartbeat(role=MeshRole.STANDBY, known_peers=(), intro_point_count=0)),
    )
    before = eve.mesh()["received"]
    for _ in range(300):
        mutated = bytearray(good)
        for _ in range(random.randint(1, 9)):
            mutated[random.randrange(len(mutated))] = random.randrange(256)
        eve.send(bytes(mutated[: random.randint(1, len(mutated))]))
    wait_until(lambda: eve.mesh()["received"] > before)
    assert not eve.ann.log.read_text().count("Traceback")


def test_wrong_datagrams_and_tokens_of_400_addresses_are_one_incident(
    eve: DatagramAttacker,
) -> None:
    for first in range(0, len(_ADDRESSES), _BATCH):
        before = eve.refused("malformed")
        for address in _ADDRESSES[first : first + _BATCH]:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
                stranger.bind((address, 0))
                stranger.sendto(b"{", eve.target)
        wait_until(lambda least=before + _BATCH: eve.refused("malformed") >= least)  # type: ignore[misc]
    for address in _ADDRESSES[::10]:
        transport = httpx.HTTPTransport(local_address=address)
        with httpx.Client(base_url=eve.ann.url, transport=transport, timeout=30) as http:
            for _ in range(3):
                answer = http.get("/v1/status", headers={"authorization": "Bearer wrong"})
            assert answer.status_code == 429
    kinds = ["datagram_flood", "token_guessing"]
    wait_until(lambda: len(_incidents_of_strangers(eve)) >= len(kinds))
    named = sorted(each["subject"] for each in _incidents_of_strangers(eve))
    assert [subject.partition("@")[0] for subject in named] == [f"{STRANGERS}/{k}" for k in kinds]


def _incidents_of_strangers(eve: DatagramAttacker) -> list[Any]:
    found = eve.ann.call("GET", "/incidents?limit=500")["incidents"]
    return [each for each in found if not each["subject"].startswith(eve.node.name)]


def test_a_flood_costs_few_signature_checks(eve: DatagramAttacker) -> None:
    """Each check of a signature is costly; a forged datagram reaches it at a bounded rate."""
    text = encode_message(MeshMessage("eve", LeaseClaim(0), "ann"), int(time.time()))
    before, start = eve.refused("bad_signature"), time.monotonic()
    for number in range(4000):
        forged = b',"signature":"' + b"%086d" % number + b'=="}'
        eve.send(text[:-1] + forged)
    wait_until(lambda: eve.refused("rate_limited") > 0)
    checked = eve.refused("bad_signature") - before
    assert checked <= _UNPROVEN_BURST + _UNPROVEN_RATE * (time.monotonic() - start + 1)
