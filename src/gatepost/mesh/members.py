"""The members of the room, as the mesh needs to know them."""

from collections.abc import Mapping

from msgspec import Struct


class MeshMember(Struct, frozen=True):
    """A node whose datagrams count. `may_lead`: its role lets it become the publisher.

    `tunnel_ip` is its address inside a tunnel, where the tunnel authenticates in place of a
    signature.
    """

    id: str
    public_key: bytes
    may_lead: bool = False
    tunnel_ip: str = ""


MeshMembers = Mapping[str, MeshMember]
