"""The members of the room as the mesh knows them, and this node's own place among them."""

from gatepost.config.mesh_settings import MeshSettings
from gatepost.mesh.members import MeshMember, MeshMembers
from gatepost.mesh.mesh_time import MeshTimers
from gatepost.mesh.outgoing_messages import MeshIdentity
from gatepost.room import RoomMember, SharedRoom, TransportRecord
from gatepost.room.roles import Role


def list_members(room: SharedRoom | None) -> dict[str, MeshMember]:
    """All members; none if this gateway is in no room."""
    if room is None:
        return {}
    return {id: _mesh_member(member) for id, member in room.effective.nodes.items()}


def kept_members(known: MeshMembers, room: SharedRoom) -> dict[str, MeshMember]:
    """The known members that were not revoked.

    A gateway that moves to a later document of the room sees the other members only after a sync.
    Until then it must not take itself for the only one, and lead.
    """
    revoked = room.effective.membership.revoked
    return {id: each for id, each in known.items() if (id, each.public_key) not in revoked}


def _mesh_member(member: RoomMember) -> MeshMember:
    return MeshMember(member.id, member.public_key, may_lead(member))


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
    )


def make_timers(settings: MeshSettings) -> MeshTimers:
    return MeshTimers(
        heartbeat_ms=int(settings.heartbeat_secs * 1000),
        suspect_ms=int(settings.suspect_secs * 1000),
        grace_ms=int(settings.grace_secs * 1000),
        clock_tolerance_secs=settings.clock_tolerance_secs,
    )
