"""The status of every other gateway: its route, last sign of life and backlog.

Everything is read from the room, the links and the journal; peers are not asked.
"""

from msgspec import Struct

from gatepost.core.gateway_core import Core
from gatepost.delivery.delivery_reads import accepted_by_node, waiting_by_node
from gatepost.journal import Tx
from gatepost.links.service.connection_links import ConnectionLinks
from gatepost.links.service.dialer import Dialer
from gatepost.links.service.join_client import http_url
from gatepost.mesh.service.mesh_service import MeshService
from gatepost.presence import describe_presence
from gatepost.room import RoomMember
from gatepost.room.service.room_replica import RoomReplica
from gatepost.wire.gateway_views import PeerStatus

_HELD_TEXTS = {
    "held: full": "a mailbox there is full",
    "held: blob": "its large payload is still being fetched",
    "held: order": "an earlier message of the same sender is missing there",
    "held: offer": "an earlier message of the same sender is not confirmed yet",
    "held: sender": "it does not know yet that their sender lives here",
    "held: quota": "it holds as many messages of this gateway as it takes at a time",
    "homeless": "no gateway has their agent; `gatepost agent add` registers it",
    "moved": "their agent is not registered there; `gatepost agent add` there registers it",
    "expiring": "expired; it has not said yet whether it took them",
}


class PeerBacklog(Struct):
    """Messages for one gateway: `waiting` for its receipt, and `accepted` but not processed."""

    waiting: int = 0
    since: int | None = None
    attempts: int = 0
    reasons: list[str] = []
    accepted: int = 0


class PeerStatuses:
    def __init__(
        self,
        replica: RoomReplica,
        links: ConnectionLinks,
        dialer: Dialer,
        mesh: MeshService | None = None,
    ) -> None:
        self._mesh = mesh
        self._replica = replica
        self._core: Core = replica.core
        self._links = links
        self._dialer = dialer

    def mesh_problems(self) -> list[str]:
        """The actions that the mesh needs from an operator, a sentence each."""
        return [] if self._mesh is None else self._mesh.find_problems()

    def publisher(self) -> str | None:
        """Who leads, as this gateway sees it."""
        if self._mesh is not None:
            return self._mesh.publisher()
        room = self._replica.room
        return None if room is None else room.genesis.node

    async def describe_peers(self) -> list[PeerStatus]:
        """Every other member of the room, and every other gateway that messages wait for."""
        own = self._core.node.id
        backlogs = await self._core.read(lambda tx: read_backlogs(tx, own))
        room = self._replica.room
        members = {} if room is None else dict(room.effective.nodes)
        members.pop(own, None)
        gone = [node for node in backlogs if node not in members]
        return [
            *(self._describe_member(m, backlogs.get(id)) for id, m in sorted(members.items())),
            *(_describe_stranger(node, backlogs[node]) for node in sorted(gone)),
        ]

    def describe_node(self, node: str) -> str:
        """The status of another member in words; empty for other nodes."""
        room = self._replica.room
        member = None if room is None else room.effective.nodes.get(node)
        return "" if member is None else self._describe_member(member, None).state

    def _describe_member(self, member: RoomMember, backlog: PeerBacklog | None) -> PeerStatus:
        node, backlog = member.id, backlog or PeerBacklog()
        linked = node in self._links.linked_peers()
        relay = None if linked else self._links.relay_of(node)
        silent = self._links.presence.seconds_silent(node)
        heard_at = self._core.clock.now() - int(silent * 1000)
        status = self._links.presence.status_of(member)
        problem = "" if linked else self._find_problem(member, relay)
        return PeerStatus(
            node,
            status,
            linked,
            relay,
            max(0, heard_at),
            backlog.waiting,
            backlog.since,
            backlog.accepted,
            _explain_backlog(backlog, status, reached=linked or relay is not None),
            problem,
            describe_presence(
                status,
                linked,
                relay,
                silent,
                reason=self._links.presence.reason_of(node),
                problem=problem,
            ),
        )

    def _find_problem(self, member: RoomMember, relay: str | None) -> str:
        """The reason for a missing link, if this gateway knows it."""
        endpoint = member.record.endpoint_ws
        dialling = None if endpoint is None else self._dialer.problems.get(http_url(endpoint))
        if dialling is not None:
            return dialling
        if endpoint is None:
            return "" if relay else "it has no address, and has not connected to us or to a relay"
        return "" if relay else "not connected, and no relay has its outbox"


def _describe_stranger(node: str, backlog: PeerBacklog) -> PeerStatus:
    problem = "it is not in the room" if node else "no gateway can take these messages"
    return PeerStatus(
        node,
        "unknown",
        False,
        None,
        None,
        backlog.waiting,
        backlog.since,
        backlog.accepted,
        "; ".join(backlog.reasons),
        problem,
        problem,
    )


def _explain_backlog(backlog: PeerBacklog, status: str, *, reached: bool) -> str:
    """Why messages wait for a gateway; empty if none wait."""
    if not backlog.waiting:
        return ""
    if backlog.reasons:
        return "; ".join(backlog.reasons)
    if not reached:
        return "it cannot be reached"
    if status == "offline":
        return "it is offline, as far as this gateway knows"
    tries = f", sent {backlog.attempts} times" if backlog.attempts > 1 else ""
    return f"it has not answered yet{tries}"


def read_backlogs(tx: Tx, own: str) -> dict[str, PeerBacklog]:
    """Open deliveries to other gateways; under the empty name those without a gateway."""
    found: dict[str, PeerBacklog] = {}
    for node, reason, count, since, attempts in waiting_by_node(tx, own):
        backlog = found.setdefault(node or "", PeerBacklog(reasons=[]))
        backlog.waiting += count
        backlog.since = since if backlog.since is None else min(backlog.since, since)
        backlog.attempts = max(backlog.attempts, attempts)
        if reason:
            backlog.reasons.append(f"{count} held: {_HELD_TEXTS.get(reason, reason)}")
    for node, count in accepted_by_node(tx, own):
        found.setdefault(node or "", PeerBacklog(reasons=[])).accepted = count
    return found
