"""The members of the room as the mesh knows them, and this node's own place among them."""

from collections.abc import Mapping

from msgspec.structs import replace

from gatepost.config.mesh_settings import MeshSettings
from gatepost.mesh.members import MeshMember, MeshMembers, TunnelPlace
from gatepost.mesh.mesh_time import MeshTimers
from gatepost.mesh.outgoing_messages import MeshIdentity
from gatepost.mesh.transports.wireguard import numeric_endpoint
from gatepost.room import RoomMember, SharedRoom, TransportRecord
from gatepost.room.roles import Role


def list_members(
    room: SharedRoom | None, tunnel_hosts: Mapping[str, str] | None = None
) -> dict[str, MeshMember]:
    """All members; none if this gateway is in no room.

    `tunnel_hosts`: node → its address in a tunnel that authenticates it.
    """
    if room is None:
        return {}
    hosts, transports = tunnel_hosts or {}, room.effective.transports
    return {
        id: _mesh_member(member, _tunnel_place(hosts.get(id), transports.get(id)))
        for id, member in room.effective.nodes.items()
    }


def _tunnel_place(ip: str | None, record: TransportRecord | None) -> TunnelPlace | None:
    if ip is None:
        return None
    if record is None:
        return TunnelPlace(ip)
    # A member can publish any text there, also one that is too long for gossip.
    endpoint = numeric_endpoint(record.wg_endpoint)
    return TunnelPlace(ip, record.wg_public_key or "", endpoint or "")


def kept_members(known: MeshMembers, room: SharedRoom) -> dict[str, MeshMember]:
    """The known members that were not revoked.

    A gateway that moves to a later document of the room sees the other members only after a sync.
    Until then it must not conclude that it is alone and lead.
    """
    revoked = room.effective.membership.revoked
    return {
        id: replace(each, tunnel=None)
        for id, each in known.items()
        if (id, each.public_key) not in revoked
    }


def _mesh_member(member: RoomMember, tunnel: TunnelPlace | None) -> MeshMember:
    return MeshMember(member.id, member.public_key, may_lead(member), tunnel)


def may_lead(member: RoomMember | None) -> bool:
    """Whether a node's role lets it coordinate the room."""
    return member is not None and member.role >= Role.BACKBONE


def own_identity(
    room: SharedRoom | None, node: str, settings: MeshSettings, transport: TransportRecord
) -> MeshIdentity:
    """This node as it announces itself; `transport` are the addresses that it has by now."""
    member = None if room is None else room.effective.nodes.get(node)
    return MeshIdentity(
        node=node,
        priority=settings.priority,
        may_lead=may_lead(member),
        address=transport.wg_endpoint or transport.udp or "",
        wg_pubkey=transport.wg_public_key or "",
        tunnel_ip=transport.tunnel_ip or "",
        datagram_port=(transport.udp or "").rpartition(":")[2],
    )


def make_timers(settings: MeshSettings) -> MeshTimers:
    return MeshTimers(
        heartbeat_ms=int(settings.heartbeat_secs * 1000),
        suspect_ms=int(settings.suspect_secs * 1000),
        grace_ms=int(settings.grace_secs * 1000),
        clock_tolerance_secs=settings.clock_tolerance_secs,
    )
