"""The messages of one node, addressed to its peers."""

from collections.abc import Iterable

from msgspec import Struct

from gatepost.mesh.address_cookie import AddressCookies
from gatepost.mesh.datagram_signature import compute_hmac
from gatepost.mesh.decisions import SendMessage
from gatepost.mesh.messages import MeshMessage, Payload, PeerAnnounce
from gatepost.mesh.peer_table import PeerTable


class MeshIdentity(Struct, frozen=True, kw_only=True):
    """This node in the mesh. `address` is where others reach it, if it knows that."""

    node: str
    priority: int
    may_lead: bool
    address: str = ""
    wg_pubkey: str = ""
    tunnel_ip: str = ""


class OutgoingMessages:
    """`cluster_token` proves announcements; without one the signature has to do."""

    def __init__(self, identity: MeshIdentity, peers: PeerTable, cookies: AddressCookies) -> None:
        self.identity = identity
        self.cluster_token = ""
        self._peers = peers
        self._cookies = cookies

    def announce_to(self, address: str, node: str | None) -> SendMessage:
        me = self.identity
        announce = PeerAnnounce("", me.wg_pubkey, me.address, me.tunnel_ip, me.priority)
        if self.cluster_token:
            hmac = compute_hmac(self.cluster_token, me.node, node or "", announce)
            announce = PeerAnnounce(
                "", me.wg_pubkey, me.address, me.tunnel_ip, me.priority, hmac=hmac
            )
        return self.send_to(address, node, announce)

    def broadcast(self, payload: Payload) -> Iterable[SendMessage]:
        """To all peers with a proven address, the dead too: a healed network needs a first word."""
        proven = [peer for peer in self._peers if peer.address]
        return [self.send_to(peer.address, peer.id, payload) for peer in proven]

    def send_to(self, address: str, node: str | None, payload: Payload) -> SendMessage:
        peer = None if node is None else self._peers.find_peer(node)
        cookie = "" if node is None else self._cookies.cookie_for(node, address)
        echo = peer.cookie if peer else ""
        return SendMessage(address, MeshMessage(self.identity.node, payload, node, cookie, echo))
