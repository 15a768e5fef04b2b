"""Gossip: the peers that a heartbeat names. The others wait for the next heartbeats."""

from collections.abc import Iterable

from gatepost.mesh.members import MeshMember, MeshMembers
from gatepost.mesh.messages import MAX_KNOWN_PEERS, KnownPeer
from gatepost.mesh.peer_table import MeshPeer
from gatepost.mesh.transport import MAX_DATAGRAM_BYTES

# The longest heartbeat without its known peers, and without the names of nodes.
_HEARTBEAT_BYTES = 460
# The JSON of an entry without its texts.
_ENTRY_OVERHEAD = 64


def choose_gossip(
    peers: Iterable[MeshPeer], members: MeshMembers, name_bytes: int
) -> tuple[KnownPeer, ...]:
    """The peers to name now, least named first, so that changes travel at once.

    The names of sender, receiver and publisher take `name_bytes` of the datagram.
    """
    chosen: list[KnownPeer] = []
    free = MAX_DATAGRAM_BYTES - _HEARTBEAT_BYTES - name_bytes
    for peer in sorted(peers, key=_gossip_order):
        known = _describe_peer(peer, members.get(peer.id))
        free -= _entry_bytes(known)
        if free < 0 or len(chosen) >= MAX_KNOWN_PEERS:
            break
        peer.gossip_count += 1
        chosen.append(known)
    return tuple(chosen)


def _describe_peer(peer: MeshPeer, member: MeshMember | None) -> KnownPeer:
    """In a tunnel the endpoint is that of WireGuard; elsewhere it takes datagrams."""
    tunnel = None if member is None else member.tunnel
    if tunnel is None:
        return KnownPeer(peer.id, peer.wg_pubkey, peer.address, peer.tunnel_ip)
    return KnownPeer(peer.id, tunnel.wg_pubkey, tunnel.wg_endpoint, tunnel.ip)


def _gossip_order(peer: MeshPeer) -> tuple[int, str]:
    return peer.gossip_count, peer.id


def _entry_bytes(known: KnownPeer) -> int:
    texts = (known.node_id, known.wg_pubkey, known.wg_endpoint, known.tunnel_ip)
    return _ENTRY_OVERHEAD + sum(map(len, texts))
