"""The messages of one node, addressed to its peers."""

from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from gatepost.mesh.address_cookie import AddressCookies
from gatepost.mesh.datagram_signature import compute_hmac
from gatepost.mesh.decisions import SendMessage
from gatepost.mesh.members import MeshMembers
from gatepost.mesh.messages import MeshMessage, Payload, PeerAnnounce
from gatepost.mesh.peer_table import PeerTable


class MeshIdentity(Struct, frozen=True, kw_only=True):
    """This node in the mesh. `address` is where others reach it, if it knows that.

    In a tunnel that is the endpoint of WireGuard, and all nodes take datagrams at `datagram_port`
    of their addresses inside.
    """

    node: str
    priority: int
    may_lead: bool
    address: str = ""
    wg_pubkey: str = ""
    tunnel_ip: str = ""
    datagram_port: str = ""


class OutgoingMessages:
    """`cluster_token` proves announcements; without one the signature has to do.

    Inside the tunnel the token itself is sent, as the protocol requires; elsewhere an HMAC replaces
    it.
    """

    def __init__(self, identity: MeshIdentity, peers: PeerTable, cookies: AddressCookies) -> None:
        self.identity = identity
        self.cluster_token = ""
        self.members: MeshMembers = {}
        self._peers = peers
        self._cookies = cookies

    def announce_to(self, address: str, node: str | None) -> SendMessage:
        me = self.identity
        announce = PeerAnnounce("", me.wg_pubkey, me.address, me.tunnel_ip, me.priority)
        if self.cluster_token:
            hmac = compute_hmac(self.cluster_token, me.node, node or "", announce)
            shown = self.cluster_token if self._is_in_tunnel(address) else ""
            announce = replace(announce, cluster_token=shown, hmac=hmac)
        return self.send_to(address, node, announce)

    def _is_in_tunnel(self, address: str) -> bool:
        """Whether the tunnel brings a datagram for this address to one member, and encrypts it."""
        return any(member.is_in_tunnel(address) for member in self.members.values())

    def broadcast(self, payload: Payload) -> Iterable[SendMessage]:
        """Send to all peers with a proven address, also dead ones: the network may have healed."""
        proven = [peer for peer in self._peers if peer.address]
        return [self.send_to(peer.address, peer.id, payload) for peer in proven]

    def send_to(self, address: str, node: str | None, payload: Payload) -> SendMessage:
        peer = None if node is None else self._peers.find_peer(node)
        cookie = "" if node is None else self._cookies.cookie_for(node, address)
        echo = peer.cookie if peer else ""
        clock = peer.clock if peer else None
        skew = clock.offset_secs if clock is not None and clock.is_measured else 0
        message = MeshMessage(self.identity.node, payload, node, cookie, echo, skew)
        return SendMessage(address, message)
