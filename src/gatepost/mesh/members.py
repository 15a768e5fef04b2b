"""The members of the room, as the mesh needs to know them."""

from collections.abc import Mapping

from msgspec import Struct


class TunnelPlace(Struct, frozen=True):
    """A member's end of a tunnel, which authenticates it in place of a signature.

    `ip` is routed to this member alone. `wg_endpoint` is where WireGuard reaches it, outside.
    """

    ip: str
    wg_pubkey: str = ""
    wg_endpoint: str = ""

    def datagram_address(self, port: str) -> str:
        return f"[{self.ip}]:{port}" if ":" in self.ip else f"{self.ip}:{port}"


class MeshMember(Struct, frozen=True):
    """A node whose datagrams count. `may_lead`: its role lets it become the publisher."""

    id: str
    public_key: bytes
    may_lead: bool = False
    tunnel: TunnelPlace | None = None

    def is_in_tunnel(self, address: str) -> bool:
        """Whether this address, of a sender or a receiver, is the member's end of the tunnel."""
        return self.tunnel is not None and self.tunnel.ip == split_host(address)


MeshMembers = Mapping[str, MeshMember]


def split_host(address: str) -> str:
    """The host of HOST:PORT, without brackets."""
    return address.rpartition(":")[0].removeprefix("[").removesuffix("]")
