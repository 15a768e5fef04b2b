from gatepost.config.mesh_settings import MeshSettings
from gatepost.mesh.members import TunnelPlace
from gatepost.mesh.service.room_members import kept_members, list_members, make_timers, own_identity
from gatepost.room import TransportRecord
from gatepost.room.signed_record import sign_record
from tests.room.sample_records import NOW, ROOT, author, entry, revocation, room

SETTINGS = MeshSettings(priority=9, heartbeat_secs=0.5, suspect_secs=2, grace_secs=3)


def test_backbone_nodes_may_lead_and_edges_may_not() -> None:
    shared = room(entry(ROOT), entry(author("hub", "backbone")), entry(author("edge")))
    members = list_members(shared)
    assert {id: member.may_lead for id, member in members.items()} == {
        ROOT.node: True,
        "hub": True,
        "edge": False,
    }
    assert members["edge"].public_key == author("edge").key.public
    assert own_identity(shared, "hub", SETTINGS, TransportRecord()).may_lead
    assert not own_identity(shared, "edge", SETTINGS, TransportRecord()).may_lead
    assert not own_identity(shared, "stranger", SETTINGS, TransportRecord()).may_lead
    assert list_members(None) == {}


def test_a_node_announces_its_place_in_the_tunnel() -> None:
    udp = TransportRecord(udp="192.0.2.7:7433")
    assert own_identity(None, "hub", SETTINGS, udp).address == "192.0.2.7:7433"
    tunnel = TransportRecord(
        udp="10.200.0.2:7433",
        wg_public_key="k" * 43 + "=",
        wg_endpoint="192.0.2.7:51820",
        tunnel_ip="10.200.0.2",
    )
    identity = own_identity(None, "hub", SETTINGS, tunnel)
    assert (identity.address, identity.tunnel_ip) == ("192.0.2.7:51820", "10.200.0.2")
    assert identity.wg_pubkey == tunnel.wg_public_key


def test_a_member_in_the_tunnel_is_named_with_an_endpoint_that_fits_into_gossip() -> None:
    hub = author("hub", "backbone")
    for endpoint, named in (("192.0.2.7:51820", "192.0.2.7:51820"), (f"{'n' * 200}:51820", "")):
        record = TransportRecord(wg_public_key="k" * 43 + "=", wg_endpoint=endpoint)
        shared = room(
            entry(ROOT), entry(hub), sign_record(hub, "transports", "hub", 1, NOW, record)
        )
        members = list_members(shared, {"hub": "10.200.0.2"})
        assert members["hub"].tunnel == TunnelPlace("10.200.0.2", "k" * 43 + "=", named)
        assert members[ROOT.node].tunnel is None


def test_a_member_counts_until_it_is_revoked_though_the_room_does_not_show_it_yet() -> None:
    known = list_members(room(entry(ROOT), entry(author("hub", "backbone"))))
    assert kept_members(known, room(entry(ROOT))) == known
    hub = author("hub", "backbone")
    revoked = room(entry(ROOT), entry(hub), revocation(ROOT, hub))
    assert set(kept_members(known, revoked)) == {ROOT.node}


def test_timers_are_in_milliseconds() -> None:
    timers = make_timers(SETTINGS)
    assert (timers.heartbeat_ms, timers.suspect_ms, timers.takeover_ms) == (500, 2000, 5000)
