"""The peer side of the process: room replica, links, dialling and routes."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any

from gatepost.access.retention import prune_expired
from gatepost.core.batch_commit import commit_until_none
from gatepost.core.gateway_core import Core
from gatepost.gateway.admin import agent_claims, mesh_secret_api, room_api, route_api
from gatepost.gateway.admin.agent_claims import AgentClaims
from gatepost.gateway.admin.room_api import RoomApi
from gatepost.gateway.admin.route_api import RouteApi
from gatepost.gateway.monitoring.metrics import Metrics
from gatepost.gateway.monitoring.peer_statuses import PeerStatuses
from gatepost.links.service import join_server
from gatepost.links.service.bootstrap_client import BootstrapClient
from gatepost.links.service.connection_links import ConnectionLinks
from gatepost.links.service.dialer import Dialer
from gatepost.links.service.join_client import websocket_url
from gatepost.links.service.join_server import JoinServer
from gatepost.links.service.reach_checks import ReachChecks
from gatepost.listening.connection_guard import ConnectionGuard
from gatepost.mesh.heard_addresses import HeardAddresses
from gatepost.mesh.service import bootstrap_server, descriptor_service, mesh_status
from gatepost.mesh.service.bootstrap_server import BootstrapServer
from gatepost.mesh.service.descriptor_service import DescriptorService
from gatepost.mesh.service.mesh_secret_sharing import MeshSecretSharing
from gatepost.mesh.service.mesh_service import MeshService
from gatepost.mesh.service.mesh_status import MeshCollector
from gatepost.mesh.service.transport_choice import create_transport
from gatepost.mesh.service.transport_services import TransportServices
from gatepost.room.service.agent_transfers import AgentOwnership
from gatepost.room.service.current_publisher import CurrentPublisher
from gatepost.room.service.own_record_announcer import OwnRecordAnnouncer
from gatepost.room.service.owner_changes import OwnerChanges
from gatepost.room.service.record_announcer import RecordAnnouncer
from gatepost.room.service.room_coordinator import RoomCoordinator
from gatepost.room.service.room_replica import RoomReplica

_REFRESH_SECS = 0.5
_COALESCE_SECS = 0.02
_PRUNE_SECS = 60.0
_SWEEP_CHECK_SECS = 1.0
# A gateway with seeds waits this long for the first sync before it publishes records.
_LISTEN_FIRST_SECS = 2.0
_FAREWELL_SECS = 2.0


class Peering:
    def __init__(self, core: Core, metrics: Metrics, guard: ConnectionGuard) -> None:
        self.replica = RoomReplica(core)
        self.announcer = RecordAnnouncer(self.replica)
        transport = create_transport(core)
        self.mesh: MeshService | None = None
        if transport is not None:
            self.mesh = MeshService(self.replica, transport, self._read_cluster_token)
            metrics.add_collector(MeshCollector(self.mesh))
        self.links = ConnectionLinks(self.replica, self.mesh)
        self._own_records = OwnRecordAnnouncer(self.announcer)
        self._agents_changed = asyncio.Event()
        # Called whenever agents of this gateway come or go.
        self.agent_watchers: list[Callable[[], None]] = []
        core.coordinator.observe(on_agents_changed=self._note_agents_changed)
        self._dialer = Dialer(self.announcer, self.links)
        self.peers = PeerStatuses(self.replica, self.links, self._dialer, self.mesh)
        self._ownership = AgentOwnership(self.announcer)
        self._owner_changes = OwnerChanges(self._ownership)
        office = None if self.mesh is None else self.mesh.office_term
        self._room_coordinator = RoomCoordinator(self.announcer, office)
        elect = None if self.mesh is None else self.mesh.publisher
        self._current_publisher = CurrentPublisher(self.replica, elect)
        self.secrets = MeshSecretSharing(self.announcer, self._current_publisher)
        heard = HeardAddresses() if self.mesh is None else self.mesh.heard
        self._descriptors = DescriptorService(self.announcer, self._current_publisher, heard)
        self._transport_services = TransportServices(
            self.replica, transport, self.secrets, self._current_publisher
        )
        self._guard = guard
        self._join_server = JoinServer(self.announcer, self.links, guard, metrics.track_peer)
        metrics.show_incident_counts(self.replica.connections.incident_counts)
        metrics.traffic.watch_room(self.replica, self.links)

    def _note_agents_changed(self) -> None:
        self._own_records.note_agents_changed()
        self._ownership.note_agents_changed()
        self._agents_changed.set()
        for watcher in self.agent_watchers:
            watcher()

    def create_routes(self) -> list[Any]:
        api = RoomApi(
            self.announcer,
            self._dialer,
            self.peers,
            self._room_coordinator,
            BootstrapClient(self.replica, self._dialer),
            ReachChecks(self.replica.core, self.links, self._dialer),
        )
        bootstrap = BootstrapServer(self.replica, self.secrets, self._guard)
        return [
            *join_server.create_routes(self._join_server),
            *room_api.create_routes(api),
            *agent_claims.create_routes(AgentClaims(self._ownership)),
            *route_api.create_routes(RouteApi(self.announcer)),
            *mesh_secret_api.create_routes(self.secrets, self.replica),
            *descriptor_service.create_routes(self._descriptors, self._guard),
            *bootstrap_server.create_routes(bootstrap),
            *mesh_status.create_routes(self.replica, self.mesh, self.peers.describe_node),
        ]

    async def load_room(
        self, url: str | None, tls_pin: str | None = None, local_url: str | None = None
    ) -> None:
        """Open the room in the journal and pass it to routing.

        Peers reach this gateway at `url` and know its TLS key by `tls_pin`. It listens at
        `local_url`, where an onion service finds it.
        """
        self.replica.endpoint = None if url is None else websocket_url(url)
        self.replica.tls_pin = tls_pin
        self._transport_services.prepare(local_url)
        await self.replica.load_room()
        await self.replica.wait_until_routed()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Keep up with peers until exit."""
        work = [asyncio.create_task(each) for each in self._background_work()]
        try:
            async with self._run_mesh():
                yield
        finally:
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)

    def _background_work(self) -> Iterator[Coroutine[Any, Any, None]]:
        repeat = self.replica.core.background.repeat_forever
        share, publish = self.secrets.share_once, self._descriptors.publish_once
        sweep = self._room_coordinator.sweep_when_due
        yield self.replica.received.keep_saving()
        yield self._dialer.run()
        yield self.links.run()
        yield self._publish_own_records()
        yield self._ownership.run()
        yield self._owner_changes.run()
        yield repeat(_REFRESH_SECS, share, "the mesh secrets were not passed on")
        yield repeat(_REFRESH_SECS, publish, "the descriptor of the mesh was not published")
        yield repeat(_SWEEP_CHECK_SECS, sweep, "the room was not swept")
        yield repeat(_PRUNE_SECS, self._prune_expired, "deleting expired rows failed")

    @contextlib.asynccontextmanager
    async def _run_mesh(self) -> AsyncIterator[None]:
        if self.mesh is None:
            yield
        else:
            async with self.mesh.running(), self._transport_services.running():
                yield

    async def announce_leaving(self) -> None:
        """Tell peers that this gateway stops. Never raises, and is bounded in time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FAREWELL_SECS):
                if self.mesh is not None:
                    await self.mesh.leave()
                await self._own_records.announce_leaving()

    async def _read_cluster_token(self) -> str | None:
        secrets = await self.secrets.current_secrets()
        return None if secrets is None else secrets.cluster_token

    async def _publish_own_records(self) -> None:
        if await self._dialer.has_seeds():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LISTEN_FIRST_SECS):
                    await self.announcer.may_publish.wait()
        self.announcer.may_publish.set()
        self._agents_changed.set()
        failure = "the room was not kept up to date"
        loops = self.replica.core.background
        await loops.repeat_forever(_COALESCE_SECS, self._refresh_own_records, failure)

    async def _refresh_own_records(self) -> None:
        """Publish changed agents at once, and a heartbeat after a pause."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_REFRESH_SECS):
                await self._agents_changed.wait()
        self._agents_changed.clear()
        await self._own_records.refresh_records()

    async def _prune_expired(self) -> None:
        """Delete spent tickets and old invites."""
        core = self.replica.core
        batch, policy = core.settings.journal.sweep_batch, self.replica.policy
        await commit_until_none(core, lambda tx: prune_expired(tx, policy, batch))
