"""Links over the connections gateways have: one WebSocket carries the room and both outboxes.

This module adapts connections, the event loop and the room to `PeerLinks`, which does the rest.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from gatepost.core.gateway_core import Core
from gatepost.errors import GatepostError
from gatepost.events import encrypted_size
from gatepost.journal import Tx
from gatepost.links.blob_ports import FetchLimits
from gatepost.links.connections.connection import PeerConnection, read_boot_clock
from gatepost.links.log_part import TaskLogs
from gatepost.links.peer_links import PeerLink, PeerLinks, PeerLinkSettings
from gatepost.links.reach_part import ReachDesk
from gatepost.links.service.blob_files import BlobFiles
from gatepost.mesh.peer_states import PeerState
from gatepost.mesh.service.mesh_service import MeshService
from gatepost.presence import Presence
from gatepost.room import RoomMember
from gatepost.room.records import NodeStatus
from gatepost.room.roles import Act
from gatepost.room.service.room_replica import RoomReplica
from gatepost.routing import DirectoryBuilder, RoutingDirectory

# The delay of a room check after a change, and the interval without one.
_SOONEST_SECS = 0.05
_LATEST_SECS = 1.0
# The most bytes of blobs, traces and small frames queued on a connection, beside feeds.
_QUEUE_SLACK_BYTES = 16 << 20


class ConnectionLinks:
    """Every connection to another gateway carries a link."""

    def __init__(self, replica: RoomReplica, mesh: MeshService | None = None) -> None:
        self._replica = replica
        self._mesh = mesh
        self._core = core = replica.core
        self._links: dict[PeerConnection, PeerLink] = {}
        self._seen_changes = -1
        self.presence = create_presence(replica, mesh)
        self.directory = RoutingDirectory()
        self._builder = DirectoryBuilder()
        settings = PeerLinkSettings(
            core.settings.delivery.window_bytes,
            FetchLimits(max_bytes=encrypted_size(core.settings.limits.max_blob_bytes)),
            max_untaken_bytes=max_queued_bytes(core.settings.delivery.window_bytes),
        )
        files = BlobFiles(core.blobs, core.storers)
        archive, ledger = core.archive, core.ledger
        self._peers = PeerLinks(LinkedCore(replica), files, settings, archive, archive, ledger)
        core.on_blob_wanted = self._peers.fetcher.want_blob

    # -- connections come and go

    def add_dialled(self, connection: PeerConnection) -> None:
        """Add a connection that we opened; we speak first, because Yjs readers get no frames."""
        self._add_link(connection).open()

    def add_joined(self, connection: PeerConnection) -> None:
        """The peer opened it; a link starts with the peer's first frame."""
        connection.on_frame = partial(self._receive_first, connection)

    def remove_connection(self, connection: PeerConnection) -> None:
        link = self._links.pop(connection, None)
        if link is not None:
            self._peers.remove_link(link)
        silent = asyncio.get_running_loop().time() - connection.heard_at
        self.presence.note_contact(connection.node, silent)

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

    @property
    def task_logs(self) -> TaskLogs:
        return self._peers.logs

    @property
    def reach_desk(self) -> ReachDesk:
        return self._peers.reach

    def greeted_links(self) -> list[PeerLink]:
        """One link to each peer that has introduced itself."""
        links = (self._peers.links_to(peer) for peer in sorted(self._peers.linked_peers()))
        return [next(link for link in each if link.outbox.greeted) for each in links]

    def linked_peers(self) -> set[str]:
        return self._peers.linked_peers()

    def relay_links(self, node: str) -> list[PeerLink]:
        return self._peers.relay_links(node)

    def relay_of(self, node: str) -> str | None:
        """The relay that supplies the outbox of a node without a direct link."""
        return self._peers.relay_reader.relay_of(node)

    def acked_seq(self, node: str) -> int:
        return self._peers.acked_seq(node)

    # -- the picture of the room that routing has

    async def run(self) -> None:
        """Keep routing's directory up to date, for as long as the gateway runs."""
        self._peers.start()
        failure = "routing goes by an old picture of the room"
        await self._core.background.repeat_forever(_SOONEST_SECS, self._follow_room, failure)

    async def _follow_room(self) -> None:
        """Wait for a change of the room, or a second, then apply it."""
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
            self._replica.room.effective, self.presence.is_online, unhealthy
        )
        if directory != self.directory:
            room_changed = self._core.coordinator.room_changed
            await self._core.commit(lambda tx: room_changed(tx, directory))
            self.directory = directory
            self._peers.room_changed()


def max_queued_bytes(window_bytes: int) -> int:
    """The limit for the frames queued for one peer, and for those received from it.

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

    def uptime(self) -> int:
        return int(read_boot_clock() * 1000)

    def commit(
        self,
        operation: Callable[[Tx], Any],
        done: Callable[[Any, GatepostError | None], None],
        weight: int = 1,
    ) -> None:
        try:
            self._core.writer.submit(operation, done, weight)
        except GatepostError as error:
            done(None, error)

    def is_backbone(self, node: str) -> bool:
        member = self._replica.current_room.effective.nodes.get(node)
        return member is not None and member.may(Act.RELAY_OUTBOX)


class SeenGateways:
    """The other gateways as connections, mesh and room show them."""

    def __init__(self, replica: RoomReplica, mesh: MeshService | None = None) -> None:
        self._replica = replica
        self._mesh = mesh
        self.now = replica.core.clock.now

    def member(self, node: str) -> RoomMember | None:
        return self._replica.current_room.effective.nodes.get(node)

    def said_status(self, node: str) -> NodeStatus | None:
        said = self._replica.awareness.presence_of(node)
        return said.status if said else None

    def said_reason(self, node: str) -> str | None:
        said = self._replica.awareness.presence_of(node)
        return said.reason if said else None

    def connection_silences(self, node: str) -> list[float]:
        now = asyncio.get_running_loop().time()
        return [now - each.heard_at for each in self._replica.connections if each.node == node]

    def mesh_state(self, node: str) -> PeerState | None:
        return None if self._mesh is None else self._mesh.peer_state(node)

    def mesh_silence(self, node: str) -> float | None:
        return None if self._mesh is None else self._mesh.seconds_silent(node)


def create_presence(replica: RoomReplica, mesh: MeshService | None = None) -> Presence:
    settings = replica.core.settings
    offline_ms = int(settings.delivery.offline_secs * 1000)
    signs = SeenGateways(replica, mesh)
    return Presence(replica.core.node.id, signs, offline_ms, settings.mesh.suspect_secs)
