"""Everything about peers as one part of the process: replica, links, dialling and routes."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import Any

from gatepost.access.retention import prune_expired
from gatepost.gateway.admin import agent_claims, mesh_secret_api, room_api, route_api
from gatepost.gateway.admin.agent_claims import AgentClaims
from gatepost.gateway.admin.room_api import RoomApi
from gatepost.gateway.admin.route_api import RouteApi
from gatepost.gateway.batch_commit import commit_until_none
from gatepost.gateway.core import Core
from gatepost.gateway.listening.connection_guard import ConnectionGuard
from gatepost.gateway.mesh import bootstrap_server, descriptor_publisher, mesh_report
from gatepost.gateway.mesh.bootstrap_client import BootstrapClient
from gatepost.gateway.mesh.bootstrap_server import BootstrapServer
from gatepost.gateway.mesh.descriptor_publisher import DescriptorPublisher
from gatepost.gateway.mesh.mesh_report import MeshCollector
from gatepost.gateway.mesh.mesh_secret_sharing import MeshSecretSharing
from gatepost.gateway.mesh.mesh_service import MeshService
from gatepost.gateway.mesh.transport_choice import create_transport
from gatepost.gateway.mesh.transport_services import TransportServices
from gatepost.gateway.monitoring.metrics import Metrics
from gatepost.gateway.monitoring.peer_report import PeerReport
from gatepost.gateway.peers import join_server
from gatepost.gateway.peers.agent_ownership import AgentOwnership
from gatepost.gateway.peers.connection_links import ConnectionLinks
from gatepost.gateway.peers.current_publisher import CurrentPublisher
from gatepost.gateway.peers.dialer import Dialer
from gatepost.gateway.peers.join_client import websocket_url
from gatepost.gateway.peers.join_server import JoinServer
from gatepost.gateway.peers.own_record_publisher import OwnRecordPublisher
from gatepost.gateway.peers.owner_changes import OwnerChanges
from gatepost.gateway.peers.record_publisher import RecordPublisher
from gatepost.gateway.peers.room_coordinator import RoomCoordinator
from gatepost.gateway.peers.room_replica import RoomReplica
from gatepost.mesh.heard_addresses import HeardAddresses

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
        self.publisher = RecordPublisher(self.replica)
        transport = create_transport(core)
        self.mesh: MeshService | None = None
        if transport is not None:
            self.mesh = MeshService(self.replica, transport, self._read_cluster_token)
            metrics.add_collector(MeshCollector(self.mesh))
        self.links = ConnectionLinks(self.replica, self.mesh)
        self._own_records = OwnRecordPublisher(self.publisher)
        self._agents_changed = asyncio.Event()
        core.coordinator.observe(on_agents_changed=self._note_agents_changed)
        self._dialer = Dialer(self.publisher, self.links)
        self.report = PeerReport(self.replica, self.links, self._dialer)
        self._ownership = AgentOwnership(self.publisher)
        self._owner_changes = OwnerChanges(self._ownership)
        office = None if self.mesh is None else self.mesh.office_term
        self._room_coordinator = RoomCoordinator(self.publisher, office)
        elect = None if self.mesh is None else self.mesh.publisher
        self._current_publisher = CurrentPublisher(self.replica, elect)
        self.secrets = MeshSecretSharing(self.publisher, self._current_publisher)
        heard = HeardAddresses() if self.mesh is None else self.mesh.heard
        self._descriptors = DescriptorPublisher(self.publisher, self._current_publisher, heard)
        self._transport_services = TransportServices(
            self.replica, transport, self.secrets, self._current_publisher
        )
        self._guard = guard
        self._join_server = JoinServer(self.publisher, self.links, metrics, guard)
        metrics.show_incident_counts(self.replica.connections.incident_counts)
        metrics.traffic.watch_room(self.replica, self.links)

    def _note_agents_changed(self) -> None:
        self._own_records.note_agents_changed()
        self._ownership.note_agents_changed()
        self._agents_changed.set()

    def create_routes(self) -> list[Any]:
        api = RoomApi(
            self.publisher,
            self._dialer,
            self.report,
            self._room_coordinator,
            BootstrapClient(self.replica, self._dialer),
        )
        bootstrap = BootstrapServer(self.replica, self.secrets, self._guard)
        return [
            *join_server.create_routes(self._join_server),
            *room_api.create_routes(api),
            *agent_claims.create_routes(AgentClaims(self._ownership)),
            *route_api.create_routes(RouteApi(self.publisher)),
            *mesh_secret_api.create_routes(self.secrets, self.replica),
            *descriptor_publisher.create_routes(self._descriptors, self._guard),
            *bootstrap_server.create_routes(bootstrap),
            *mesh_report.create_routes(self.replica, self.mesh),
        ]

    @contextlib.asynccontextmanager
    async def running(
        self, url: str | None, tls_pin: str | None = None, local_url: str | None = None
    ) -> AsyncIterator[None]:
        """Run until exit. Peers reach this gateway at `url` and know its TLS key by `tls_pin`.

        It listens at `local_url`, where an onion service finds it.
        """
        self.replica.endpoint = None if url is None else websocket_url(url)
        self.replica.tls_pin = tls_pin
        self._transport_services.prepare(local_url)
        await self.replica.load_room()
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
                    await self.publisher.may_publish.wait()
        self.publisher.may_publish.set()
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
