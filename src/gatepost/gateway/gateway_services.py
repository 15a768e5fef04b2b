"""The services of one gateway: made in their order, reached by their routes, run side by side."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from litestar import Litestar

from gatepost.gateway.admin import external_agents, feedback, mirror_api, trace_api, undelivered_api
from gatepost.gateway.admin.external_agents import ExternalAgents
from gatepost.gateway.admin.feedback import Feedback, FeedbackGuard
from gatepost.gateway.admin.trace_api import JourneyTracer
from gatepost.gateway.api.drop_folder import DropFolder
from gatepost.gateway.api.operations import Operations
from gatepost.gateway.api.operator_access import OperatorAccess
from gatepost.gateway.api.unix_socket import UnixSocketServer
from gatepost.gateway.app import create_app
from gatepost.gateway.archiver import OutboxArchiver
from gatepost.gateway.compaction import compact_journal
from gatepost.gateway.core import Core
from gatepost.gateway.hub import capability_api, hub_api
from gatepost.gateway.hub.capability_service import CapabilityService
from gatepost.gateway.hub.hub_api import HubApi
from gatepost.gateway.hub.hub_auth import HubAuth
from gatepost.gateway.hub.hub_service import HubService
from gatepost.gateway.hub.hub_socket import serve_on_socket
from gatepost.gateway.listening.connection_guard import ConnectionGuard
from gatepost.gateway.mesh.local_agents import LocalAgentHealth
from gatepost.gateway.monitoring.backlog_alerts import BacklogAlerts
from gatepost.gateway.monitoring.metrics import Metrics
from gatepost.gateway.peering import Peering
from gatepost.gateway.peers.room_facts import collect_room_facts

_COMPACT_SECS = 60.0
_SWEEP_DROP_SECS = 600.0
_SHARE_SECS = 1.0
# New agents that come together are asked together.
_DISTRIBUTE_SECS = 0.5
_SAVE_ACTIVITY_SECS = 60.0


class GatewayServices:
    """All that a gateway does besides its core; nothing runs before `running`."""

    def __init__(self, operations: Operations, access: OperatorAccess) -> None:
        core = operations.core
        self._operations = operations
        self._core = core
        self._access = access
        self._metrics = Metrics(core)
        guard = ConnectionGuard(core.settings.room, core.clock)
        self.peering = Peering(core, self._metrics, guard)
        replica = self.peering.replica
        self._external = ExternalAgents(
            operations, access, guard, replica.policy, lambda: replica.tls_pin
        )
        self._feedback = Feedback(self.peering.publisher)
        self.hub = HubService(operations)
        self.capabilities = CapabilityService(self.peering.publisher)
        self._alerts = BacklogAlerts(core, core.settings.alerts)
        self._archiver = _create_archiver(core, self.peering)
        self._watch_health()

    def _watch_health(self) -> None:
        archiver, alerts = self._archiver, self._alerts
        self._core.health.add_check(lambda: [archiver.problem] if archiver.problem else [])
        self._core.health.add_check(alerts.describe_growth)
        self._metrics.traffic.growing_backlogs = lambda: alerts.growing_backlogs
        if self.peering.mesh is not None:
            health = LocalAgentHealth(self._core, alerts.growing_mailboxes)
            self.peering.mesh.watch_agents(health.find_unhealthy)

    def create_app(self) -> Litestar:
        report = self.peering.report.describe_peers
        return create_app(
            self._operations,
            self._access,
            self._metrics,
            self._create_routes(),
            report,
            self._external,
        )

    def _create_routes(self) -> list[Any]:
        core, access, external = self._core, self._access, self._external
        return [
            *self.peering.create_routes(),
            *external_agents.create_routes(external),
            undelivered_api.create_router(core),
            mirror_api.create_router(self._operations),
            trace_api.create_router(JourneyTracer(core, self.peering.links)),
            *feedback.create_routes(self._feedback, FeedbackGuard(access, external)),
            *capability_api.create_routes(self.capabilities),
            hub_api.create_router(HubApi(self.hub, HubAuth(core, access))),
        ]

    @contextlib.asynccontextmanager
    async def running(
        self, app: Litestar, url: str | None, tls_pin: str | None, local_url: str
    ) -> AsyncIterator[None]:
        """Run until exit. Peers reach this gateway at `url`, local clients at `local_url`."""
        core, alerts, run_every = self._core, self._alerts, self._core.background.run_every
        distribute, share = self.capabilities.distribute_when_due, self._feedback.share_when_due
        async with (
            _local_transports(self._operations),
            run_every(_COMPACT_SECS, lambda: compact_journal(core), "compaction failed"),
            run_every(alerts.every_secs, alerts.check_backlogs, "the check of backlogs failed"),
            run_every(_SHARE_SECS, share, "findings were not shared"),
            run_every(_SAVE_ACTIVITY_SECS, core.save_activity, "noting active agents failed"),
            self._archiver.running(),
            self.peering.running(url, tls_pin, local_url),
            serve_on_socket(app, core.state.hub_socket),
            self.hub.running(local_url),
            run_every(_DISTRIBUTE_SECS, distribute, "skills were not distributed"),
        ):
            yield


def _create_archiver(core: Core, peering: Peering) -> OutboxArchiver:
    bounds, facts = core.bounds, lambda: collect_room_facts(peering.replica)
    return OutboxArchiver(core, read=bounds.read_through, closed=bounds.closed_through, facts=facts)


@contextlib.asynccontextmanager
async def _local_transports(operations: Operations) -> AsyncIterator[None]:
    core, listen = operations.core, operations.core.settings.listen
    async with contextlib.AsyncExitStack() as transports:
        if listen.unix_socket:
            unix = UnixSocketServer(operations, core.state.socket)
            await unix.start()
            transports.push_async_callback(unix.stop)
        if listen.drop_folder:
            drop = DropFolder(operations, core.state.drop)
            await drop.start()
            transports.push_async_callback(drop.stop)
            sweeping = core.background.run_every(
                _SWEEP_DROP_SECS, drop.sweep_answers, "removing old answers failed"
            )
            await transports.enter_async_context(sweeping)
        yield
