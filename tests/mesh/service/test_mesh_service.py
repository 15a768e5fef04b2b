"""The mesh in a gateway: it follows the room, remembers its term, and outlives failures."""

import msgspec
import pytest
from msgspec.structs import replace

from gatepost.delivery.abuse import AbuseKind
from gatepost.errors import Conflict
from gatepost.journal import Tx
from gatepost.mesh.datagram_signature import NodeKeySigner, append_signature
from gatepost.mesh.heard_addresses import encode_point
from gatepost.mesh.messages import (
    ANNOUNCE_BYTES,
    BackendUnhealthy,
    Heartbeat,
    IntroPoints,
    KnownPeer,
    LeaseClaim,
    MeshMessage,
    MeshRole,
    Payload,
    encode_message,
)
from gatepost.mesh.peer_states import PeerState
from gatepost.mesh.rendezvous import merge_points
from gatepost.mesh.service.mesh_service import MeshService, read_term
from gatepost.mesh.service.mesh_status import MeshCollector, describe_mesh
from gatepost.room import TransportRecord
from gatepost.room.service.room_replica import RoomReplica
from gatepost.room.signed_record import sign_record
from gatepost.wire.mesh_views import Term
from tests.mesh.service.memory_transport import MemoryTransport
from tests.room.sample_records import key, update
from tests.room.service.replicas import admit_member
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
    # A gateway alone is the publisher at once, as one without a mesh is.
    shown = describe_mesh(replica, mesh, str)
    assert (shown.publisher, shown.state) == ("ann", "publisher") and mesh.publisher() == "ann"
    assert mesh.office_term() is None
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


async def test_a_gateway_leads_the_room_that_it_founds_though_others_come_at_once(
    mesh: MeshService, replica: RoomReplica, transport: MemoryTransport
) -> None:
    await mesh._beat()
    await replica.found_room(lambda tx: None)
    admit_member(replica, "bob")
    await mesh._beat()
    assert mesh.publisher() == "ann" and mesh.office_term() == Term(1, "ann")
    assert set(mesh._members) == {"ann", "bob"}
    # One that restarts has no office, for another may have taken it meanwhile.
    again = MeshService(replica, transport, mesh._read_token)
    await again._beat()
    assert again.office_term() is None


async def test_a_new_member_counts_at_once_and_a_heartbeat_makes_it_alive(
    mesh: MeshService, replica: RoomReplica
) -> None:
    await replica.found_room(lambda tx: None)
    await mesh._beat()
    admit_member(replica, "bob")
    assert mesh.peer_state("bob") is None
    beat = Heartbeat(role=MeshRole.STANDBY, known_peers=(), intro_point_count=0, priority=3)
    changes = replica.changes.count
    mesh._receive(datagram(replica, "bob", beat), "127.0.0.1:8")
    assert mesh.peer_state("bob") is PeerState.ALIVE
    assert replica.changes.count == changes + 1
    shown = describe_mesh(replica, mesh, str)
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
    mesh._receive(datagram(replica, "bob", BackendUnhealthy("ba")), "127.0.0.1:8")
    assert mesh.unhealthy_agents() == {("bob", "bo"), ("bob", "ba")}
    words = [f"agent {name} is unhealthy, as its gateway bob says" for name in ("ba", "bo")]
    assert describe_mesh(replica, mesh, str).problems == words
    metrics = {metric.name: metric for metric in MeshCollector(mesh).collect()}
    (sample,) = metrics["gatepost_mesh_unhealthy_agents"].samples
    assert (sample.labels, sample.value) == ({"node": "bob"}, 2)

    def incidents(tx: Tx) -> list[str]:
        rows = "SELECT detail FROM incident WHERE class = 'backend_unhealthy' ORDER BY subject"
        return [row[0] for row in tx.fetch_all(rows)]

    async def are_raised() -> bool:
        return await replica.core.read(incidents) == words

    await async_wait_until(are_raised)


async def test_a_publisher_that_fails_leaves_the_lease_to_others(
    mesh: MeshService, replica: RoomReplica
) -> None:
    await replica.found_room(lambda tx: None)
    failures = ["the journal cannot write"]
    mesh.watch_failures(lambda: failures)
    await mesh._beat()
    assert mesh.office_term() is not None, "where no other node may lead, it goes on"
    admit_member(replica, "bob")
    await mesh._beat()
    assert mesh.office_term() is None and mesh.publisher() is None
    words = "ann leaves the mesh to others to lead: the journal cannot write"
    assert describe_mesh(replica, mesh, str).problems == [words]
    assert describe_mesh(replica, mesh, str).is_barred
    failures.clear()
    await mesh._beat()
    assert describe_mesh(replica, mesh, str).problems == []


async def test_a_publisher_that_no_other_can_follow_does_not_release_the_lease(
    mesh: MeshService, replica: RoomReplica
) -> None:
    await replica.found_room(lambda tx: None)
    await mesh._beat()
    with pytest.raises(Conflict, match="no other gateway"):
        await mesh.release_office()
    admit_member(replica, "bob")
    beat = Heartbeat(role=MeshRole.STANDBY, known_peers=(), intro_point_count=0)
    mesh._receive(datagram(replica, "bob", beat), "127.0.0.1:8")
    await mesh.release_office()
    assert mesh.office_term() is None
    with pytest.raises(Conflict, match=r"does not lead the mesh; no gateway does$"):
        await mesh.release_office()


async def test_a_mesh_on_every_interface_follows_hints_on_loopback_if_its_peers_are_there(
    mesh: MeshService, transport: MemoryTransport
) -> None:
    """The operator's peers say that this mesh is on one machine."""
    transport.local_address = "0.0.0.0:7"
    assert mesh._accepts_address("127.0.0.1:8")
    mesh._settings = replace(mesh._settings, peers=("192.0.2.7:7433",))
    assert not mesh._accepts_address("127.0.0.1:8")


async def test_a_hint_on_loopback_that_is_not_followed_is_logged_once_with_the_setting(
    mesh: MeshService,
    replica: RoomReplica,
    transport: MemoryTransport,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A mesh on every interface of one machine, which its operator did not say."""
    transport.local_address = "0.0.0.0:7"
    mesh._settings = replace(mesh._settings, peers=())
    await replica.found_room(lambda tx: None)
    admit_member(replica, "bob")
    admit_member(replica, "cat")
    for number in range(3):
        await mesh._beat()
        hint = KnownPeer("cat", "", "127.0.0.1:9", "")
        beat = Heartbeat(role=MeshRole.STANDBY, known_peers=(hint,), intro_point_count=number)
        mesh._receive(datagram(replica, "bob", beat), "192.0.2.8:8")
    said = [record.message for record in caplog.records if "127.0.0.1:9" in record.message]
    assert said == [
        "the mesh does not call cat at 127.0.0.1:9, which is on this machine; if cat runs here,"
        " set room.dial_loopback = true or add 127.0.0.1:9 to mesh.peers"
    ]
    assert mesh.node is not None and mesh.node.engine.peers.find_peer("cat") is None


async def test_a_member_that_publishes_an_address_on_loopback_is_logged_once(
    mesh: MeshService,
    replica: RoomReplica,
    transport: MemoryTransport,
    caplog: pytest.LogCaptureFixture,
) -> None:
    transport.local_address = "192.0.2.7:7"
    mesh._settings = replace(mesh._settings, peers=())
    await replica.found_room(lambda tx: None)
    bob = admit_member(replica, "bob")
    record = TransportRecord(udp="127.0.0.1:9")
    signed = sign_record(bob, "transports", "bob", 1, replica.core.clock.now(), record)
    replica.current_room.apply_update(update(signed), "peer")
    for _ in range(3):
        await mesh._beat()
    assert sum("call bob at 127.0.0.1:9" in record.message for record in caplog.records) == 1


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


async def test_inside_a_tunnel_that_authenticates_no_signature_is_needed(
    mesh: MeshService, replica: RoomReplica, transport: MemoryTransport
) -> None:
    await replica.found_room(lambda tx: None)
    admit_member(replica, "bob")
    transport.authenticated_hosts = {"bob": "10.200.0.2"}
    await mesh._beat()
    secs = replica.core.clock.now() // 1000
    text = encode_message(MeshMessage("bob", LeaseClaim(5)), secs)
    assert not mesh._receive(text, "10.200.0.3:7433")
    assert mesh._receive(text, "10.200.0.2:7433")
    assert mesh.publisher() == "bob"
    transport.authenticated_hosts = {}
    await mesh._beat()
    later = encode_message(MeshMessage("bob", LeaseClaim(4)), secs)
    assert not mesh._receive(later, "10.200.0.2:7433")


def enter_tunnel(replica: RoomReplica, transport: MemoryTransport, number: int, name: str) -> None:
    """Admit a member of another implementation, to which WireGuard routes one address."""
    record = TransportRecord(
        wg_public_key=name[0] * 43 + "=",
        wg_endpoint=f"192.0.2.{number}:51820",
        tunnel_ip=f"10.200.0.{number}",
    )
    author, now = admit_member(replica, name), replica.core.clock.now()
    signed = sign_record(author, "transports", name, 1, now, record)
    replica.current_room.apply_update(update(signed), "peer")
    transport.authenticated_hosts[name] = f"10.200.0.{number}"


async def test_gossip_in_a_tunnel_names_endpoints_of_wireguard_and_datagrams_stay_inside(
    mesh: MeshService, replica: RoomReplica, transport: MemoryTransport
) -> None:
    """Bob, who knows the protocol alone, names cat; cat answers, and ann names it to bob."""
    transport.local_address = "10.200.0.1:7433"
    await replica.found_room(lambda tx: None)
    replica.transport = TransportRecord(
        udp="10.200.0.1:7433", tunnel_ip="10.200.0.1", wg_endpoint="192.0.2.1:51820"
    )
    enter_tunnel(replica, transport, 2, "bob")
    enter_tunnel(replica, transport, 3, "cat")
    secs = replica.core.clock.now() // 1000
    known = KnownPeer("cat", "c" * 43 + "=", "192.0.2.3:51820", "10.200.0.3")
    for number in range(6):
        await mesh._beat()
        beat = Heartbeat(role=MeshRole.STANDBY, known_peers=(known,), intro_point_count=number)
        text = encode_message(MeshMessage("bob", beat), secs)
        assert mesh._receive(text, "10.200.0.2:7433")
    announced_to = {address for address, sent in transport.sent if b"peer_announce" in sent}
    assert announced_to == {"127.0.0.1:9", "10.200.0.3:7433"}

    answer = Heartbeat(role=MeshRole.STANDBY, known_peers=(), intro_point_count=0)
    assert mesh._receive(encode_message(MeshMessage("cat", answer), secs), "10.200.0.3:7433")
    transport.sent.clear()
    await mesh._beat()
    (told,) = (sent for to, sent in transport.sent if to == "10.200.0.2:7433")
    named = msgspec.json.decode(told)["payload"]["known_peers"]
    assert next(each for each in named if each["node_id"] == "cat") == msgspec.to_builtins(known)


async def test_an_announcement_shows_the_cluster_token_to_a_place_in_the_tunnel_alone(
    mesh: MeshService, replica: RoomReplica, transport: MemoryTransport
) -> None:
    """As a peer of another implementation expects it; what leaves the tunnel has the HMAC alone."""

    async def read_token() -> str:
        return "secret-token"

    mesh._read_token = read_token
    transport.local_address = "10.200.0.1:7433"
    await replica.found_room(lambda tx: None)
    replica.transport = TransportRecord(udp="10.200.0.1:7433", tunnel_ip="10.200.0.1")
    enter_tunnel(replica, transport, 2, "bob")
    mesh._settings = replace(mesh._settings, peers=("10.200.0.2:7433", "192.0.2.2:7433"))
    await mesh._beat()
    shown = {to: msgspec.json.decode(sent)["payload"] for to, sent in transport.sent}
    assert shown["10.200.0.2:7433"]["cluster_token"] == "secret-token"
    assert shown["192.0.2.2:7433"]["cluster_token"] == "" and shown["192.0.2.2:7433"]["hmac"]
    assert {len(sent) for _, sent in transport.sent} == {ANNOUNCE_BYTES}
    # Once the room or WireGuard does not name it any more, its address is like any other.
    transport.authenticated_hosts.clear()
    transport.sent.clear()
    await mesh._beat()
    assert not any(b"secret-token" in sent for _, sent in transport.sent)


async def test_a_tunnel_sends_nothing_to_a_named_address_outside_of_it(
    mesh: MeshService, replica: RoomReplica, transport: MemoryTransport
) -> None:
    """Gossip names a member that has no place in the tunnel: nothing there could reach it."""
    transport.local_address = "10.200.0.1:7433"
    await replica.found_room(lambda tx: None)
    replica.transport = TransportRecord(udp="10.200.0.1:7433", tunnel_ip="10.200.0.1")
    enter_tunnel(replica, transport, 2, "bob")
    admit_member(replica, "cat")
    secs = replica.core.clock.now() // 1000
    known = KnownPeer("cat", "", "192.0.2.3:51820", "10.200.0.3")
    for number in range(6):
        await mesh._beat()
        beat = Heartbeat(role=MeshRole.STANDBY, known_peers=(known,), intro_point_count=number)
        mesh._receive(encode_message(MeshMessage("bob", beat), secs), "10.200.0.2:7433")
    assert {address for address, _ in transport.sent} == {"127.0.0.1:9", "10.200.0.2:7433"}


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
    mesh._receive(
        datagram(
            replica, "bob", Heartbeat(role=MeshRole.STANDBY, known_peers=(), intro_point_count=0)
        ),
        "b:8",
    )
    peer = mesh.node.engine.peers.find_peer("bob")
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
