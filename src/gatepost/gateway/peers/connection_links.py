"""Links over the connections gateways have: one WebSocket carries the room and both outboxes.

This module adapts connections, the event loop and the room to `PeerLinks`, which does the rest.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from gatepost.delivery.links.blob_ports import FetchLimits
from gatepost.delivery.links.peer_links import PeerLink, PeerLinks, PeerLinkSettings
from gatepost.delivery.links.peer_presence import PeerPresence
from gatepost.errors import GatepostError
from gatepost.events import encrypted_size
from gatepost.gateway.core import Core
from gatepost.gateway.mesh.mesh_service import MeshService
from gatepost.gateway.peers.blob_files import BlobFiles
from gatepost.gateway.peers.connection import PeerConnection
from gatepost.gateway.peers.own_records import NodeStatus
from gatepost.gateway.peers.room_replica import RoomReplica
from gatepost.journal import Tx
from gatepost.mesh.peer_states import PeerState
from gatepost.room import RoomMember
from gatepost.room.roles import Act
from gatepost.routing import DirectoryBuilder, RoutingDirectory

# How soon after a change the room is looked at again, and how often without one.
_SOONEST_SECS = 0.05
_LATEST_SECS = 1.0
# A gateway without a connection to us shows a heartbeat in the room once a minute.
_HEARTBEAT_MS = 90_000
# Blobs, traces and small frames may queue so much on a connection, beside the credit of feeds.
_QUEUE_SLACK_BYTES = 16 << 20


class ConnectionLinks:
    """Every connection to another gateway carries a link."""

    def __init__(self, replica: RoomReplica, mesh: MeshService | None = None) -> None:
        self._replica = replica
        self._mesh = mesh
        self._core = core = replica.core
        self._links: dict[PeerConnection, PeerLink] = {}
        self._seen_changes = -1
        self._presence = RoomPresence(replica, mesh)
        self.directory = RoutingDirectory()
        self._builder = DirectoryBuilder()
        settings = PeerLinkSettings(
            core.settings.delivery.window_bytes,
            FetchLimits(max_bytes=encrypted_size(core.settings.limits.max_blob_bytes)),
            max_untaken_bytes=max_queued_bytes(core.settings.delivery.window_bytes),
        )
        files = BlobFiles(core.blobs, core.storers)
        self._peers = PeerLinks(LinkedCore(replica), files, settings, core.archive)
        core.on_blob_wanted = self._peers.fetcher.want_blob

    # -- connections come and go

    def add_dialled(self, connection: PeerConnection) -> None:
        """We opened it, so we speak first: a plain Yjs reader must never get a frame."""
        self._add_link(connection).open()

    def add_joined(self, connection: PeerConnection) -> None:
        """The peer opened it; a link starts with the peer's first frame."""
        connection.on_frame = partial(self._receive_first, connection)

    def remove_connection(self, connection: PeerConnection) -> None:
        link = self._links.pop(connection, None)
        if link is not None:
            self._peers.remove_link(link)
        self._presence.note_contact(connection.node)

    def _receive_first(self, connection: PeerConnection, data: bytes) -> None:
        self._add_link(connection).receive(data)

    def _add_link(self, connection: PeerConnection) -> PeerLink:
        link = self._links[connection] = self._peers.add_link(connection, connection.node)
        connection.on_frame = link.receive
        connection.on_drained = link.resume_requests
        return link

    # -- what others ask of the links

    def links_to(self, node: str) -> list[PeerLink]:
        return self._peers.links_to(node)

    def linked_peers(self) -> set[str]:
        return self._peers.linked_peers()

    def relay_links(self, node: str) -> list[PeerLink]:
        return self._peers.relay_links(node)

    def relay_of(self, node: str) -> str | None:
        """The relay that brings us the outbox of a node we have no link with."""
        return self._peers.relay_reader.relay_of(node)

    def acked_seq(self, node: str) -> int:
        return self._peers.acked_seq(node)

    def seconds_silent(self, node: str) -> float:
        """Seconds since the last sign of life: on a connection, or else in the room."""
        heard = [each.heard_at for each in self._replica.connections if each.node == node]
        if heard:
            return max(0.0, asyncio.get_running_loop().time() - max(heard))
        member = self._replica.current_room.effective.nodes[node]
        return max(0, self._core.clock.now() - member.record.last_heartbeat_at) / 1000

    def node_status(self, member: RoomMember) -> NodeStatus:
        """The status that a member reports, while it shows signs of life; else `offline`.

        The first heartbeat of a member counts here by its age, so that a member which is reached
        through a relay does not look dead until the next one. Routing does not trust clocks so far.
        """
        if not self._presence.is_online(member.id) and not self._is_newly_heard(member):
            return "offline"
        said = self._replica.awareness.presence_of(member.id)
        return (said.status if said else None) or member.record.status

    def _is_newly_heard(self, member: RoomMember) -> bool:
        """Whether a heartbeat is all we know of a member, and the next one is not overdue."""
        age = self._core.clock.now() - member.record.last_heartbeat_at
        return self._presence.is_first_heartbeat(member.id) and abs(age) < _HEARTBEAT_MS

    # -- the picture of the room that routing has

    async def run(self) -> None:
        """Keep routing's directory up to date, for as long as the gateway runs."""
        self._peers.start()
        failure = "routing goes by an old picture of the room"
        await self._core.background.repeat_forever(_SOONEST_SECS, self._follow_room, failure)

    async def _follow_room(self) -> None:
        """Wait for a change of the room, or a second, and look at it."""
        await self._replica.changes.wait_for_change(self._seen_changes, _LATEST_SECS)
        self._seen_changes = self._replica.changes.count
        await self._refresh_directory()
        self._replica.routed_changes.advance_to(self._seen_changes)
        self._peers.tend(int(asyncio.get_running_loop().time() * 1000))

    async def _refresh_directory(self) -> None:
        if self._replica.room is None:
            return
        unhealthy = self._mesh.unhealthy_agents() if self._mesh else frozenset()
        directory = self._builder.build_directory(
            self._replica.room.effective, self._presence.is_online, unhealthy
        )
        if directory != self.directory:
            room_changed = self._core.coordinator.room_changed
            await self._core.commit(lambda tx: room_changed(tx, directory))
            self.directory = directory
            self._peers.room_changed()


def max_queued_bytes(window_bytes: int) -> int:
    """The limit for the frames that wait for one peer, and for those of it that wait for us.

    Three feeds may run on a link: ours, ours for a relay, and those we relay. Each sends up to one
    window, and overdraws it by one window at most.
    """
    return 6 * window_bytes + _QUEUE_SLACK_BYTES


class LinkedCore:
    """A gateway's core as its links see it."""

    def __init__(self, replica: RoomReplica) -> None:
        self._replica = replica
        self._core: Core = replica.core
        self.node = replica.core.node
        self.coordinator = replica.core.coordinator
        self.outbox = replica.core.outbox

    def now(self) -> int:
        return self._core.clock.now()

    def commit(
        self, operation: Callable[[Tx], Any], done: Callable[[Any, GatepostError | None], None]
    ) -> None:
        try:
            self._core.writer.submit(operation, done)
        except GatepostError as error:
            done(None, error)

    def is_backbone(self, node: str) -> bool:
        member = self._replica.current_room.effective.nodes.get(node)
        return member is not None and member.may(Act.RELAY_OUTBOX)


class RoomPresence:
    """Which gateways are believed to be online: connected, or heard of not long ago.

    The mesh notices silence sooner than a connection that times out. A connection proves it wrong
    only if something came over it lately.
    """

    def __init__(self, replica: RoomReplica, mesh: MeshService | None = None) -> None:
        self._replica = replica
        self._mesh = mesh
        self._clock = replica.core.clock
        offline_ms = int(replica.core.settings.delivery.offline_secs * 1000)
        self._presence = PeerPresence(offline_ms, _HEARTBEAT_MS)

    def note_contact(self, node: str) -> None:
        self._presence.note_contact(node, self._clock.now())

    def is_first_heartbeat(self, node: str) -> bool:
        """Whether one heartbeat is all we know of a node, and the mesh says nothing worse."""
        state = None if self._mesh is None else self._mesh.peer_state(node)
        return state is None and self._presence.is_first_heartbeat(node)

    def is_online(self, node: str) -> bool:
        replica, now = self._replica, self._clock.now()
        member = replica.current_room.effective.nodes.get(node)
        if member is not None:
            self._presence.note_heartbeat(node, member.record.last_heartbeat_at, now)
        if node == replica.core.node.id:
            return True
        state = None if self._mesh is None else self._mesh.peer_state(node)
        if state in (PeerState.SUSPECT, PeerState.DEAD):
            return self._is_heard(node)
        if any(c.node == node for c in replica.connections):
            return True
        if member is None or member.record.status == "offline":
            return False
        return state is PeerState.ALIVE or self._presence.is_online(node, now)

    def _is_heard(self, node: str) -> bool:
        """Whether a connection brought something within the time after which silence counts."""
        since = asyncio.get_running_loop().time() - self._replica.core.settings.mesh.suspect_secs
        return any(c.node == node and c.heard_at > since for c in self._replica.connections)
