"""The tunnel follows the room: members become peers, collisions are resolved, the revoked go."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from gatepost.errors import ConfigError
from gatepost.mesh.service.tunnel_peers import TunnelPeers, create_wireguard_transport
from gatepost.mesh.transports.wireguard import WireGuardPeer, WireGuardTransport
from gatepost.mesh.tunnel_addresses import derive_candidate, parse_network
from gatepost.mesh.wireguard_keys import WireGuardIdentity
from gatepost.room import RecordAuthor, RevocationRecord, TransportRecord, sign_admission
from gatepost.room.service.room_replica import RoomReplica
from gatepost.room.signed_record import sign_record
from tests.gateway.tools import settings
from tests.room.sample_records import key, node, update

pytestmark = pytest.mark.anyio
TUNNEL_KEYS = {name: WireGuardIdentity(name.encode().ljust(32)) for name in ("bob", "cat")}
KEYS = {name: identity.public_key for name, identity in TUNNEL_KEYS.items()}
NETWORK = parse_network("10.200.0.0/16")
ADDRESSES = {name: derive_candidate(NETWORK, key(name).fingerprint, 0) for name in KEYS}
BOB, CAT = ADDRESSES["bob"], ADDRESSES["cat"]


class RecordedTransport(WireGuardTransport):
    """A tunnel that is never opened: it keeps what it is told."""

    peers: dict[str, WireGuardPeer]

    async def configure(self, tunnel_ip: str, peers: Iterable[WireGuardPeer]) -> None:
        self.tunnel_ip = tunnel_ip
        self.peers = {peer.tunnel_ip: peer for peer in peers}


@pytest.fixture
async def founded(replica: RoomReplica) -> RoomReplica:
    await replica.found_room(lambda tx: None)
    return replica


@pytest.fixture
def transport(founded: RoomReplica) -> RecordedTransport:
    replica = founded
    made = create_wireguard_transport(replica.core.settings, replica.create_issuer(), 7433)
    made.__class__ = RecordedTransport
    assert isinstance(made, RecordedTransport)
    return made


@pytest.fixture
def tunnel(replica: RoomReplica, transport: RecordedTransport) -> TunnelPeers:
    return TunnelPeers(replica, transport)


def admit(replica: RoomReplica, name: str, **fields: str | None) -> RecordAuthor:
    """A member with a tunnel address, admitted by ann later than all before it."""
    own, room = replica.author, replica.current_room
    at = replica.core.clock.now() + len(room.effective.nodes)
    link = sign_admission(own.key, "ann", name, key(name).public, "edge", at)
    author = RecordAuthor(key(name), (link,))
    proof = TUNNEL_KEYS[name].prove_owner(author.key.public)
    addresses: dict[str, Any] = {"wg_public_key": KEYS[name], "wg_proof": proof}
    addresses |= {"tunnel_ip": ADDRESSES[name], **fields}
    records = {"nodes": node(author, room.genesis), "transports": TransportRecord(**addresses)}
    for map, data in records.items():
        room.apply_update(update(sign_record(author, map, name, 1, 1, data)), "peer")
    return author


async def test_members_become_peers_at_their_own_address(
    replica: RoomReplica, tunnel: TunnelPeers, transport: RecordedTransport
) -> None:
    admit(replica, "bob", wg_endpoint="192.0.2.2:51820")
    admit(replica, "cat", wg_endpoint="cat.example:51820")
    await tunnel.follow_room()
    assert transport.peers == {
        BOB: WireGuardPeer(KEYS["bob"], BOB, "192.0.2.2:51820", "bob"),
        CAT: WireGuardPeer(KEYS["cat"], CAT, None, "cat"),
    }
    assert replica.transport.wg_public_key == transport.public_key
    assert replica.transport.tunnel_ip == transport.tunnel_ip


async def test_nobody_takes_the_address_of_a_senior_node(
    replica: RoomReplica, tunnel: TunnelPeers, transport: RecordedTransport
) -> None:
    before = transport.tunnel_ip
    admit(replica, "bob", tunnel_ip=before)
    await tunnel.follow_room()
    assert transport.tunnel_ip == before
    assert transport.peers == {}
    admit(replica, "cat", wg_public_key=transport.public_key)
    await tunnel.follow_room()
    assert transport.peers == {}, "our own key is no peer"


async def test_a_revoked_node_loses_its_place(
    replica: RoomReplica, tunnel: TunnelPeers, transport: RecordedTransport
) -> None:
    bob = admit(replica, "bob")
    await tunnel.follow_room()
    assert BOB in transport.peers
    data = RevocationRecord(key=bob.key.fingerprint, revoked_at=1)
    revocation = sign_record(replica.author, "nodes", "bob@ann", 1, 1, data)
    replica.current_room.apply_update(update(revocation), "peer")
    await tunnel.follow_room()
    assert transport.peers == {}


@pytest.mark.parametrize("endpoint", ["host.example:1", "192.0.2.1", "0.0.0.0:1"])
async def test_an_endpoint_that_nobody_can_reach_is_a_mistake_of_the_settings(
    replica: RoomReplica, tmp_path: Path, endpoint: str
) -> None:
    wrong = settings(tmp_path, wireguard__endpoint=endpoint)
    with pytest.raises(ConfigError, match=r"wireguard\.endpoint"):
        create_wireguard_transport(wrong, replica.create_issuer(), 7433)


async def test_an_address_outside_the_network_is_routed_to_nobody(
    replica: RoomReplica, tunnel: TunnelPeers, transport: RecordedTransport
) -> None:
    admit(replica, "bob", tunnel_ip="192.0.2.99")
    await tunnel.follow_room()
    assert transport.peers == {}


PROOFS = {
    "none": None,
    "that of the owner": TUNNEL_KEYS["cat"].prove_owner(key("cat").public),
    "that of another key": TUNNEL_KEYS["bob"].prove_owner(key("bob").public),
}


@pytest.mark.parametrize("proof", PROOFS)
async def test_nobody_takes_the_key_of_another_node(
    replica: RoomReplica, tunnel: TunnelPeers, transport: RecordedTransport, proof: str
) -> None:
    """A senior node named the key of a junior one, which then had no place in the tunnel."""
    admit(replica, "bob", wg_public_key=KEYS["cat"], wg_proof=PROOFS[proof])
    admit(replica, "cat", wg_endpoint="192.0.2.3:51820")
    await tunnel.follow_room()
    assert transport.peers == {CAT: WireGuardPeer(KEYS["cat"], CAT, "192.0.2.3:51820", "cat")}


@pytest.mark.parametrize(
    "endpoint", ["127.0.0.1:22", "[::1]:22", "[::ffff:127.0.0.1]:22", "169.254.169.254:80"]
)
async def test_nobody_makes_others_send_to_their_own_machine(
    replica: RoomReplica, tunnel: TunnelPeers, transport: RecordedTransport, endpoint: str
) -> None:
    admit(replica, "bob", wg_endpoint=endpoint)
    await tunnel.follow_room()
    assert transport.peers == {BOB: WireGuardPeer(KEYS["bob"], BOB, None, "bob")}
