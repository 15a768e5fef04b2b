"""The mesh in a gateway: it follows the room, remembers its term, and outlives failures."""

import msgspec
import pytest
from msgspec.structs import replace

from gatepost.delivery.abuse import AbuseKind
from gatepost.gateway.mesh.mesh_report import MeshCollector, describe_mesh
from gatepost.gateway.mesh.mesh_service import MeshService, read_term
from gatepost.gateway.peers.room_replica import RoomReplica
from gatepost.mesh.datagram_signature import NodeKeySigner, append_signature
from gatepost.mesh.heard_addresses import encode_point
from gatepost.mesh.messages import (
    BackendUnhealthy,
    Heartbeat,
    IntroPoints,
    LeaseClaim,
    MeshMessage,
    MeshRole,
    Payload,
    Term,
    encode_message,
)
from gatepost.mesh.peer_states import PeerState
from gatepost.mesh.rendezvous import merge_points
from gatepost.room import TransportRecord
from tests.gateway.mesh.memory_transport import MemoryTransport
from tests.gateway.peers.replicas import admit_member
from tests.room.sample_records import key
from tests.waiting import async_wait_until

pytestmark = pytest.mark.anyio


def datagram(replica: RoomReplica, name: str, payload: Payload) -> bytes:
    """A datagram of a member to ann."""
    secs = replica.core.clock.now() // 1000
    text = encode_message(MeshMessage(name, payload, "ann"), secs)
    return append_signature(text, NodeKeySigner(key(name), replica.current_room.genesis.key))


async def test_a_gateway_in_no_room_is_silent(
    mesh: MeshService, replica: RoomReplica, transport: MemoryTransport
) -> None:
    await mesh._beat()
    transport.sent.clear()
    assert describe_mesh(replica, mesh).state == "waiting"
    assert list(MeshCollector(mesh).collect()) == [] and not transport.sent


async def test_a_gateway_alone_in_its_room_leads_and_remembers_its_term(
    mesh: MeshService, replica: RoomReplica, transport: MemoryTransport
) -> None:
    await replica.found_room(lambda tx: None)
    await mesh._beat()
    assert mesh.publisher() == "ann" and mesh.office_term() == Term(1, "ann")
    await async_wait_until(lambda: replica.core.read(read_term))
    assert await replica.core.read(read_term) == Term(1, "ann")
    assert [address for address, _ in transport.sent] == ["127.0.0.1:9"]
    again = MeshService(replica, transport, mesh._read_token)
    await again._beat()
    assert again.office_term() == Term(2, "ann")


async def test_a_new_member_counts_at_once_and_a_heartbeat_makes_it_alive(
    mesh: MeshService, replica: RoomReplica
) -> None:
    await replica.found_room(lambda tx: None)
    await mesh._beat()
    admit_member(replica, "bob")
    assert mesh.peer_state("bob") is None
    beat = Heartbeat(MeshRole.STANDBY, None, (), 0, 3)
    changes = replica.changes.count
    mesh._receive(datagram(replica, "bob", beat), "127.0.0.1:8")
    assert mesh.peer_state("bob") is PeerState.ALIVE
    assert replica.changes.count == changes + 1
    shown = describe_mesh(replica, mesh)
    assert [(p.node, p.state, p.priority, p.may_lead) for p in shown.peers] == [
        ("bob", "alive", 3, True)
    ]


async def test_an_agent_that_its_gateway_calls_unhealthy_is_avoided(
    mesh: MeshService, replica: RoomReplica
) -> None:
    await replica.found_room(lambda tx: None)
    await mesh._beat()
    admit_member(replica, "bob", "edge")
    mesh._receive(datagram(replica, "bob", BackendUnhealthy("bo")), "127.0.0.1:8")
    assert mesh.unhealthy_agents() == {("bob", "bo")}


async def test_an_address_that_a_member_names_comes_into_the_descriptor(
    mesh: MeshService, replica: RoomReplica
) -> None:
    await replica.found_room(lambda tx: None)
    await mesh._beat()
    admit_member(replica, "bob")
    secs = replica.core.clock.now() // 1000
    points = IntroPoints((encode_point("wss://moved:7433"),), secs)
    mesh._receive(datagram(replica, "bob", points), "127.0.0.1:8")
    merged = merge_points(replica.current_room, mesh.heard)
    assert [p.endpoint_ws for p in merged if p.node == "bob"] == ["wss://moved:7433"]
    assert mesh.heard.find_address("bob", key("bob").public) is not None
    mesh.heard.keep_members(())
    assert mesh.heard.find_address("bob", key("bob").public) is None


async def test_an_announcement_has_the_place_in_the_tunnel(
    mesh: MeshService, replica: RoomReplica, transport: MemoryTransport
) -> None:
    await replica.found_room(lambda tx: None)
    replica.transport = TransportRecord(
        wg_public_key="k" * 43 + "=", wg_endpoint="192.0.2.7:51820", tunnel_ip="10.200.0.2"
    )
    await mesh._beat()
    ((_, sent),) = transport.sent
    payload = msgspec.json.decode(sent)["payload"]
    fields = [payload[name] for name in ("wg_pubkey", "wg_endpoint", "tunnel_ip")]
    assert fields == ["k" * 43 + "=", "192.0.2.7:51820", "10.200.0.2"]


async def test_an_edge_that_claims_the_lease_is_named(
    mesh: MeshService, replica: RoomReplica
) -> None:
    await replica.found_room(lambda tx: None)
    await mesh._beat()
    admit_member(replica, "eve", "edge")
    mesh._receive(datagram(replica, "eve", LeaseClaim(0, Term(9, "eve"))), "127.0.0.1:8")
    assert mesh.publisher() == "ann"
    counts = replica.core.abuse.counts()
    assert [(source, kind) for source, kind in counts] == [("eve", AbuseKind.MESH_ROLE)]


async def test_a_gateway_that_stops_releases_its_lease_several_times(
    mesh: MeshService, replica: RoomReplica, transport: MemoryTransport
) -> None:
    await replica.found_room(lambda tx: None)
    await mesh._beat()
    assert mesh.node is not None
    admit_member(replica, "bob")
    mesh._receive(datagram(replica, "bob", Heartbeat(MeshRole.STANDBY, None, (), 0)), "b:8")
    peer = mesh.node.coordinator.peers.find_peer("bob")
    assert peer is not None
    peer.address = "b:8"
    transport.sent.clear()
    await mesh.leave()
    assert len(transport.sent) == 3 and b"lease_release" in transport.sent[0][1]
    assert mesh.office_term() is None


async def nobody() -> tuple[str, ...]:
    return ()


async def test_a_failing_heartbeat_is_reported_and_does_not_end_the_loop(
    mesh: MeshService, replica: RoomReplica, transport: MemoryTransport
) -> None:
    await replica.found_room(lambda tx: None)
    failures = 0

    async def fail() -> tuple[str, ...]:
        nonlocal failures
        failures += 1
        raise ValueError("no health today")

    mesh.timers = replace(mesh.timers, heartbeat_ms=1)
    mesh.watch_agents(fail)
    async with mesh.running():
        await async_wait_until(lambda: failures > 2)
        assert "a heartbeat of the mesh failed" in replica.core.background.failing
        mesh.watch_agents(nobody)
        await async_wait_until(lambda: mesh.office_term() is not None)
    assert not transport.is_open
