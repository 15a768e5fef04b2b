"""The services of one gateway: their construction, routes and start order."""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any

from litestar import Litestar
from msgspec import Struct

from gatepost.archive.service.archiver import OutboxArchiver
from gatepost.core.gateway_core import Core
from gatepost.gateway import settings_reload
from gatepost.gateway.admin import (
    external_agents,
    feedback,
    mirror_api,
    proof_api,
    trace_api,
    undelivered_api,
)
from gatepost.gateway.admin.external_agents import ExternalAgents
from gatepost.gateway.admin.feedback import Feedback, FeedbackGuard
from gatepost.gateway.admin.proof_api import ProofMaker
from gatepost.gateway.admin.trace_api import JourneyTracer
from gatepost.gateway.api.drop_folder import DropFolder
from gatepost.gateway.api.operations import Operations
from gatepost.gateway.api.unix_socket import UnixSocketServer
from gatepost.gateway.app import create_app
from gatepost.gateway.compaction import compact_journal, remove_orphan_blobs
from gatepost.gateway.doors import Doors, DoorServices
from gatepost.gateway.monitoring.backlog_alerts import BacklogAlerts
from gatepost.gateway.monitoring.metrics import Metrics
from gatepost.gateway.overview import overview_api
from gatepost.gateway.overview.change_stream import ChangeStream
from gatepost.gateway.overview.event_tail import EventTail
from gatepost.gateway.overview.needs import NeedFinder
from gatepost.gateway.overview.overview_api import OverviewApi
from gatepost.gateway.overview.room_ledger import RoomLedgers
from gatepost.gateway.peering import Peering
from gatepost.gateway.settings_reload import SettingsReload
from gatepost.listening.connection_guard import ConnectionGuard
from gatepost.listening.connection_pool import ConnectionPool, ListenerPools
from gatepost.listening.operator_access import OperatorAccess
from gatepost.room.service.room_facts import collect_room_facts
from gatepost.tasks.service import capability_api, hub_api
from gatepost.tasks.service.capability_service import CapabilityService
from gatepost.tasks.service.hub_api import HubApi
from gatepost.tasks.service.hub_auth import HubAuth
from gatepost.tasks.service.hub_service import HubService
from gatepost.tasks.service.local_agents import LocalAgentHealth
from gatepost.tasks.service.remote_logs import RemoteLogs

_COMPACT_SECS = 60.0
_SWEEP_DROP_SECS = 600.0
_SHARE_SECS = 1.0
# Collect new agents for this long, to ask them together.
_DISTRIBUTE_SECS = 0.5
_INDEX_SECS = 0.05
_SAVE_ACTIVITY_SECS = 60.0
_DROP_CONTRACTS_SECS = 60.0


class GatewayServices:
    """The background services of a gateway; none runs before `running`."""

    def __init__(
        self,
        operations: Operations,
        access: OperatorAccess,
        pools: ListenerPools,
        reload: SettingsReload,
    ) -> None:
        core = operations.core
        self._pools = pools
        self._operations = operations
        self._core = core
        self._access = access
        self._reload = reload
        self._metrics = Metrics(core)
        guard = ConnectionGuard(core.settings.room, core.clock)
        self.peering = Peering(core, self._metrics, guard)
        replica = self.peering.replica
        self._external = ExternalAgents(
            operations, access, guard, replica.policy, lambda: replica.tls_pin
        )
        self._feedback = Feedback(self.peering.announcer)
        self.hub = HubService(operations)
        self._hub_auth = HubAuth(core, access, self.hub.sessions.unrecorded_ends)
        self._remote_logs = RemoteLogs(self.hub, self.peering.links)
        self.capabilities = CapabilityService(self.peering.announcer)
        self._tracer = JourneyTracer(core, self.peering.links)
        peering, ledgers = self.peering, self._create_ledgers()
        finder = NeedFinder(operations, peering.peers, self._feedback)
        changes = ChangeStream(operations, replica, peering.peers, ledgers)
        tail = EventTail(core, operations.waits)
        self._overview = OverviewApi(core, ledgers, finder, changes, tail)
        self._doors = Doors(
            DoorServices(
                operations,
                access,
                self._external,
                self._tracer,
                self._feedback,
                self.capabilities,
                changes,
            )
        )
        self.peering.agent_watchers.append(self.capabilities.note_agents_changed)
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
            self.peering.mesh.watch_failures(self._find_failures)

    def _create_ledgers(self) -> RoomLedgers:
        return RoomLedgers(self._core, self.peering.replica, self.peering.links, self._feedback)

    def _find_failures(self) -> Iterator[str]:
        """Why another gateway should lead the mesh."""
        yield from self._core.journal_watch.find_problems()
        if self._archiver.problem:
            yield self._archiver.problem

    def create_app(self) -> Litestar:
        peers = self.peering.peers
        return create_app(
            self._operations,
            self._access,
            self._metrics,
            self._create_routes(),
            peers,
            self._external,
            self._hub_auth,
        )

    def _create_routes(self) -> list[Any]:
        core, access, external = self._core, self._access, self._external
        return [
            *self.peering.create_routes(),
            *external_agents.create_routes(external),
            undelivered_api.create_router(core),
            settings_reload.create_router(self._reload),
            mirror_api.create_router(self._operations),
            trace_api.create_router(self._tracer),
            proof_api.create_router(ProofMaker(core, self.peering.links, self.peering.replica)),
            *feedback.create_routes(self._feedback, FeedbackGuard(access, external)),
            *capability_api.create_routes(self.capabilities),
            *overview_api.create_routes(self._overview),
            *self._doors.create_routes(),
            hub_api.create_router(HubApi(self.hub, self._hub_auth, self._remote_logs)),
        ]

    @contextlib.asynccontextmanager
    async def running(
        self, app: Litestar, url: str | None, tls_pin: str | None, local_url: str
    ) -> AsyncIterator[None]:
        """Run until exit. Peers reach this gateway at `url`, local clients at `local_url`."""
        async with contextlib.AsyncExitStack() as started:
            for step in self.list_start_steps(app, url, tls_pin, local_url):
                await started.enter_async_context(step.run())
            yield

    def list_start_steps(
        self, app: Litestar, url: str | None, tls_pin: str | None, local_url: str
    ) -> tuple["StartStep", ...]:
        """All that starts, in this order, and stops in the opposite one.

        Sessions are recovered with the agents, policy, routes, capabilities and contracts that were
        in effect, so these are loaded first. Callers, peers and new sessions are served only
        afterwards.
        """
        core, alerts = self._core, self._alerts
        drop_contracts = self.capabilities.drop_unused_contracts
        distribute, share = self.capabilities.distribute_when_due, self._feedback.share_when_due
        renew_indexes = self.capabilities.renew_indexes_when_due
        save, failed = core.save_activity, "noting active agents failed"
        pools, screen = self._pools, self._access.screen_handshake
        serve_sessions = partial(self.hub.sockets.serving, app, pools, screen)
        serve_agents = partial(_local_transports, self._operations, pools.listener, self._doors)
        return (
            _load("unused blobs", lambda: remove_orphan_blobs(core)),
            _load("agents and policy", self.hub.load_files),
            _load("room", lambda: self.peering.load_room(url, tls_pin, local_url)),
            _load("capabilities", self.capabilities.load_own),
            StartStep("sessions of before", lambda: self.hub.following_sessions(local_url)),
            *(StartStep("door", door.running) for door in self._doors.list_doors()),
            StartStep("local transports", serve_agents),
            self._repeat(_COMPACT_SECS, lambda: compact_journal(core), "compaction failed"),
            self._repeat(alerts.every_secs, alerts.check_backlogs, "the check of backlogs failed"),
            self._repeat(_SHARE_SECS, share, "findings were not shared"),
            self._repeat(_SAVE_ACTIVITY_SECS, save, failed),
            StartStep("archiver", self._archiver.running),
            StartStep("peers", self.peering.running),
            StartStep("sockets of sessions", serve_sessions),
            StartStep("new sessions", self.hub.running),
            self._repeat(_DISTRIBUTE_SECS, distribute, "skills were not distributed"),
            self._repeat(_INDEX_SECS, renew_indexes, "indexes of capabilities are stale"),
            self._repeat(_DROP_CONTRACTS_SECS, drop_contracts, "unused contracts were not dropped"),
        )

    def _repeat(self, secs: float, work: Callable[[], Awaitable[Any]], failure: str) -> "StartStep":
        return StartStep(failure, lambda: self._core.background.run_every(secs, work, failure))


class StartStep(Struct, frozen=True):
    """One step of the start. A loop is named by what it reports if it fails."""

    name: str
    run: Callable[[], AbstractAsyncContextManager[object]]


def _load(name: str, load: Callable[[], Awaitable[object]]) -> StartStep:
    @contextlib.asynccontextmanager
    async def run() -> AsyncIterator[None]:
        await load()
        yield

    return StartStep(name, run)


def _create_archiver(core: Core, peering: Peering) -> OutboxArchiver:
    bounds, facts = core.bounds, lambda: collect_room_facts(peering.replica)
    return OutboxArchiver(core, read=bounds.read_through, closed=bounds.closed_through, facts=facts)


@contextlib.asynccontextmanager
async def _local_transports(
    operations: Operations, pool: ConnectionPool, doors: Doors
) -> AsyncIterator[None]:
    core, listen = operations.core, operations.core.settings.listen
    async with contextlib.AsyncExitStack() as transports:
        if listen.unix_socket:
            unix = UnixSocketServer(operations, core.state.socket, pool, doors.serve_connection)
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
