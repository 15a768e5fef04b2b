"""The hub of this gateway: the files it follows, its sessions, and the callers of its tasks."""

import asyncio
import contextlib
import logging
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Protocol

from gatepost.access import TokenBucket
from gatepost.core.folder_watch import MODIFICATIONS, watch_folder
from gatepost.core.gateway_core import Core
from gatepost.core.wait_registry import WaitRegistry
from gatepost.journal import Tx
from gatepost.mailbox.counts import has_mail
from gatepost.tasks import task_table
from gatepost.tasks.capabilities.misfires import note_late_tasks
from gatepost.tasks.runtimes.docker_runtime import DockerRuntime
from gatepost.tasks.runtimes.process_runtime import ProcessRuntime
from gatepost.tasks.runtimes.session_user import SessionUsers, check_session_user
from gatepost.tasks.service.held_tasks import HeldTasks
from gatepost.tasks.service.hub_files import PolicyFile, RegistryFolder, follow_folder
from gatepost.tasks.service.session_manager import SessionManager
from gatepost.tasks.service.session_sockets import SessionSockets
from gatepost.tasks.service.task_operations import TaskOperations
from gatepost.tasks.service.task_sweep_timer import TaskSweepTimer
from gatepost.tasks.session_runtime import SessionRuntime
from gatepost.wire.operations import AnyAnswer, Dequeue

log = logging.getLogger(__name__)

_SWEEP_PAUSE_SECS = 0.2
_GIVE_SESSION = """
UPDATE task SET executor = 'session'
WHERE executor = 'agent' AND state = 'pending' AND ended_at IS NULL AND agent = ?
"""
_PRUNE_BATCH = 200
_LOG_LOOK_SECS = 1.0


class MailDequeue(Protocol):
    async def perform_dequeue(
        self, op: Dequeue, confirm: Callable[[], Awaitable[object]] | None = None
    ) -> AnyAnswer: ...


class AgentOperations(Protocol):
    """The operations of agents, as the hub uses them."""

    @property
    def core(self) -> Core: ...
    @property
    def bucket(self) -> TokenBucket: ...
    @property
    def mailboxes(self) -> MailDequeue: ...
    @property
    def tasks(self) -> TaskOperations: ...
    @property
    def waits(self) -> WaitRegistry: ...


class HubService:
    def __init__(self, operations: AgentOperations) -> None:
        self.operations = operations
        self.core = core = operations.core
        settings = core.settings
        agents_dir = settings.named_file(settings.hub.agents_dir)
        policy_path = settings.named_file(settings.hub.policy_file)
        assert agents_dir is not None and policy_path is not None, "both have a default"
        self.registry_folder = RegistryFolder(core.registry, agents_dir)
        self.policy_file = PolicyFile(core.policy, policy_path)
        self.watchers = operations.tasks.watchers
        users = SessionUsers(core.state.sessions, core.settings.hub.session_user)
        self.sockets = SessionSockets(core, users)
        self.sessions = SessionManager(
            core, self._create_runtimes(users), operations.tasks.session_states, self.sockets
        )
        self.watchers.listeners.append(self.sessions.task_changed)
        self._deadlines = TaskSweepTimer(core)
        self.watchers.listeners.append(self._deadlines.task_changed)
        self._held = HeldTasks(core, operations.tasks.contents)
        core.health.add_check(self._find_problems)

    def _create_runtimes(self, users: SessionUsers) -> dict[str, SessionRuntime]:
        hub, state = self.core.settings.hub, self.core.state
        return {
            "process": ProcessRuntime(state.sessions, hub.sandbox, users, (state.session_sockets,)),
            "docker": DockerRuntime(state.sessions, hub.docker_host, hub.max_sessions, users),
        }

    def _find_problems(self) -> list[str]:
        problems = [
            f"the agents folder has a mistake: {each}" for each in self.core.registry.problems
        ]
        return problems + ([self.policy_file.problem] if self.policy_file.problem else [])

    async def load_files(self) -> None:
        """Read agents and policy, before sessions are recovered and the first task can arrive."""
        check_session_user(self.core.settings.hub.session_user)
        self.registry_folder.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.policy_file.load_first()
        await self.reload_agents()

    @contextlib.asynccontextmanager
    async def following_sessions(self, base_url: str) -> AsyncIterator[None]:
        """Recover the sessions of an earlier process, and follow sessions until exit."""
        self.sessions.contents.base_url = base_url
        async with self.sessions.following():
            yield

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Follow the files and serve tasks until exit. Sessions go on after that."""
        run_every = self.core.background.run_every
        async with (
            follow_folder(self.registry_folder.folder, self._agents_changed),
            follow_folder(self.policy_file.path.parent, self.policy_file.load),
            run_every(_SWEEP_PAUSE_SECS, self._sweep_when_due, "the sweep of tasks failed"),
            self.sessions.serving(),
            self._held.running(),
        ):
            try:
                yield
            finally:
                self.watchers.end_streams()

    # -- the registry

    def _agents_changed(self) -> None:
        self._reloading = asyncio.create_task(self.reload_agents())

    async def reload_agents(self) -> None:
        if self.registry_folder.load() or self.core.agents.hub_run != set(
            self.core.registry.agents
        ):
            await self.core.commit(self._register_agents)
            self.sessions.look_for_tasks()
            log.info("agents that the hub runs: %d", len(self.core.registry.agents))

    def _register_agents(self, tx: Tx) -> None:
        """Register the agents of the registry, and remove former ones without mail."""
        agents, names = self.core.agents, frozenset(self.core.registry.agents)
        for name in sorted(names):
            if not agents.is_registered(tx, name):
                agents.register(tx, name, "internal")
                self.core.delivery.transfers.ask_owner(tx, name)
        for info in agents.list(tx):
            if info.type == "internal" and info.id not in names and not has_mail(tx, info.id):
                agents.remove(tx, info.id, "hub")
        # Tasks that came before their agent was defined get a session now.
        tx.execute_many(_GIVE_SESSION, [(name,) for name in sorted(names)])
        agents.hub_run = names

    async def _sweep_when_due(self) -> None:
        await self._deadlines.wait_until_due()
        await self._sweep()

    async def _sweep(self) -> None:
        """Take every step even if one fails; then raise the first error."""
        engine = self.core.tasks
        commits: tuple[Callable[[Tx], object], ...] = (
            engine.requested.end_lost_tasks,
            engine.report_requests.ask_of_silent_tasks,
            engine.executed.end_revoked_tasks,
            engine.reports.end_silent_tasks,
            self._note_late_tasks,
            engine.escalate_late_tasks,
            engine.escalations.escalate_silent_tasks,
        )
        steps: list[Callable[[], Awaitable[object]]] = [self._reload_missed]
        steps += [partial(self.core.commit, operation) for operation in commits]
        steps.append(self._forget_old_tasks)
        errors = []
        for step in steps:
            try:
                await step()
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]

    async def _reload_missed(self) -> None:
        if self.core.agents.hub_run != set(self.core.registry.agents):
            await self.reload_agents()  # It failed when the folder changed.

    async def _forget_old_tasks(self) -> None:
        if await self.core.commit(self._prune_tasks):
            await self.remove_forgotten_folders()

    def _prune_tasks(self, tx: Tx) -> int:
        settings = self.core.settings.hub
        keep, abandon = int(settings.keep_tasks_secs * 1000), int(settings.abandon_secs * 1000)
        return task_table.prune_tasks(tx, tx.now - keep, tx.now - 2 * abandon, _PRUNE_BATCH)

    async def remove_forgotten_folders(self) -> None:
        """Remove the folders of sessions whose tasks are forgotten.

        A session is recorded before its folder is made, so an unrecorded folder is an old one.
        """
        root = self.core.state.sessions
        folders = list(root.iterdir()) if root.is_dir() else []
        rows = await self.core.read(lambda tx: tx.fetch_all("SELECT name FROM session"))
        known = {row[0] for row in rows}
        for folder in folders:
            if folder.name not in known:
                await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    def _note_late_tasks(self, tx: Tx) -> None:
        for id in note_late_tasks(tx):
            detail = "it has not ended at its ETA"
            self.core.delivery.incidents.raise_(tx, "eta_breach", id, detail)

    # -- logs

    async def wait_for_output(self, name: str, secs: float) -> None:
        """Wait for output of a session or its end, for a limited time."""
        loop = asyncio.get_running_loop()
        written: asyncio.Future[None] = loop.create_future()

        def resolve() -> None:
            if not written.done():
                written.set_result(None)

        folder = self.core.state.sessions / name
        async with watch_folder(folder, resolve, MODIFICATIONS):
            await self.operations.waits.wait_for(written, min(secs, _LOG_LOOK_SECS))
