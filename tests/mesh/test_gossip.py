from gatepost.mesh.gossip import choose_gossip
from gatepost.mesh.messages import Heartbeat, MeshMessage, MeshRole
from gatepost.mesh.peer_table import MeshPeer
from gatepost.mesh.transport import MAX_DATAGRAM_BYTES
from gatepost.wire.mesh_views import Term
from tests.mesh.harness import WirePeer, at

LONG = "n" * 125


def peers(count: int) -> list[MeshPeer]:
    return [MeshPeer(f"n{n:03}", 0, address=f"192.168.100.{n}:51820") for n in range(count)]


def test_all_peers_are_named_over_several_heartbeats() -> None:
    known = peers(50)
    rounds = [{peer.node_id for peer in choose_gossip(known, {}, 30)} for _ in range(10)]
    assert set.union(*rounds) == {peer.id for peer in known}
    assert all(len(names) >= 8 for names in rounds)


def test_a_new_peer_is_named_at_once() -> None:
    known = peers(50)
    for _ in range(30):
        choose_gossip(known, {}, 30)
    known.append(MeshPeer("zed", 0, address="192.168.100.200:51820"))
    assert choose_gossip(known, {}, 30)[0].node_id == "zed"


def test_the_longest_heartbeat_fits_into_a_datagram() -> None:
    sender = WirePeer(LONG + "abc")
    sender.engine.members = {}
    for known in (
        [MeshPeer(f"{LONG}{n:03}", 0, address="x" * 60, wg_pubkey="k" * 44) for n in range(9)],
        peers(50),
    ):
        heartbeat = Heartbeat(
            role=MeshRole.PUBLISHER,
            last_publish_ts=2**53 - 1,
            known_peers=choose_gossip(known, {}, 3 * 128),
            intro_point_count=2**32 - 1,
            priority=2**32 - 1,
            term=Term(2**53 - 1, sender.name),
        )
        message = MeshMessage(sender.name, heartbeat, LONG + "xyz", "0" * 16, "1" * 32)
        assert len(sender.judge.sign_message(message, at(0))) <= MAX_DATAGRAM_BYTES
