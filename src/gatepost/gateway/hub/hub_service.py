"""The hub of this gateway: the files it follows, its sessions, and the callers of its tasks."""

import asyncio
import contextlib
import logging
import shutil
from collections.abc import AsyncIterator

from gatepost.capabilities.misfires import note_late_tasks
from gatepost.gateway.api.folder_watch import MODIFICATIONS, watch_folder
from gatepost.gateway.api.operations import Operations
from gatepost.gateway.hub.arrived_inputs import ArrivedInputs
from gatepost.gateway.hub.hub_files import PolicyFile, RegistryFolder, follow_folder
from gatepost.gateway.hub.session_manager import SessionManager
from gatepost.gateway.hub.task_deadlines import TaskDeadlines
from gatepost.hub import tasks
from gatepost.hub.runtimes.docker_runtime import DockerRuntime
from gatepost.hub.runtimes.process_runtime import ProcessRuntime
from gatepost.hub.runtimes.runtime import SessionRuntime
from gatepost.journal import Tx

log = logging.getLogger(__name__)

_SWEEP_PAUSE_SECS = 0.2
_GIVE_SESSION = """
UPDATE task SET executor = 'session'
WHERE executor = 'agent' AND state = 'pending' AND ended_at IS NULL AND agent = ?
"""
_PRUNE_BATCH = 200
_LOG_LOOK_SECS = 1.0


class HubService:
    def __init__(self, operations: Operations) -> None:
        self.operations = operations
        self.core = core = operations.core
        settings = core.settings
        agents_dir = settings.named_file(settings.hub.agents_dir)
        policy_path = settings.named_file(settings.hub.policy_file)
        assert agents_dir is not None and policy_path is not None, "both have a default"
        self.registry_folder = RegistryFolder(core.registry, agents_dir)
        self.policy_file = PolicyFile(core.policy, policy_path)
        self.watchers = operations.tasks.watchers
        self.sessions = SessionManager(
            core, self._create_runtimes(), operations.tasks.session_states
        )
        self.watchers.listeners.append(self.sessions.task_changed)
        self._deadlines = TaskDeadlines(core)
        self.watchers.listeners.append(self._deadlines.task_changed)
        arrived = ArrivedInputs(core, operations.tasks.large_contents)
        self.watchers.listeners.append(arrived.task_changed)
        core.health.add_check(self._find_problems)

    def _create_runtimes(self) -> dict[str, SessionRuntime]:
        hub, state = self.core.settings.hub, self.core.state
        return {
            "process": ProcessRuntime(state.sessions, hub.sandbox),
            "docker": DockerRuntime(state.sessions, hub.docker_host, hub.max_sessions),
        }

    def _find_problems(self) -> list[str]:
        problems = [f"agents folder: {each}" for each in self.core.registry.problems]
        return problems + ([self.policy_file.problem] if self.policy_file.problem else [])

    async def prepare(self) -> None:
        """Read agents and policy, before the first task of another gateway can arrive."""
        self.registry_folder.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.policy_file.load_first()
        await self.reload_agents()

    @contextlib.asynccontextmanager
    async def running(self, base_url: str) -> AsyncIterator[None]:
        """Follow the files and serve tasks until exit. Sessions go on after that."""
        self.sessions.contents.base_url = base_url
        run_every = self.core.background.run_every
        async with (
            follow_folder(self.registry_folder.folder, self._agents_changed),
            follow_folder(self.policy_file.path.parent, self.policy_file.load),
            run_every(_SWEEP_PAUSE_SECS, self._sweep_when_due, "the sweep of tasks failed"),
            self.sessions.running(),
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
        """Register the agents of the registry, and let go of those that left it without mail."""
        agents, names = self.core.agents, frozenset(self.core.registry.agents)
        for name in sorted(names):
            if not agents.is_registered(tx, name):
                agents.register(tx, name, "internal")
                self.core.delivery.transfers.ask_owner(tx, name)
        for info in agents.list(tx):
            if info.type == "internal" and info.id not in names and not _has_mail(tx, info.id):
                agents.remove(tx, info.id, "hub")
        # Tasks that came while nobody defined their agent get a session now.
        tx.execute_many(_GIVE_SESSION, [(name,) for name in sorted(names)])
        agents.hub_run = names

    async def _sweep_when_due(self) -> None:
        await self._deadlines.wait_until_due()
        await self._sweep()

    async def _sweep(self) -> None:
        if self.core.agents.hub_run != set(self.core.registry.agents):
            await self.reload_agents()  # It failed when the folder changed.
        await self.core.commit(self.core.tasks.requested.end_lost_tasks)
        await self.core.commit(self.core.tasks.reports.end_silent_tasks)
        await self.core.commit(self._note_late_tasks)
        await self.core.commit(self.core.tasks.escalate_late_tasks)
        await self.core.commit(self.core.tasks.escalations.escalate_silent_tasks)
        keep = int(self.core.settings.hub.keep_tasks_secs * 1000)
        if await self.core.commit(lambda tx: tasks.prune_tasks(tx, tx.now - keep, _PRUNE_BATCH)):
            await self.remove_forgotten_folders()

    async def remove_forgotten_folders(self) -> None:
        """Remove the folders of sessions whose tasks are forgotten.

        A session is noted before its folder is made, so a folder without a note is an old one.
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
        """Wait for output of a session, or for its end, as long as this."""
        loop = asyncio.get_running_loop()
        written: asyncio.Future[None] = loop.create_future()

        def resolve() -> None:
            if not written.done():
                written.set_result(None)

        folder = self.core.state.sessions / name
        async with watch_folder(folder, resolve, MODIFICATIONS):
            await self.operations.waits.wait_for(written, min(secs, _LOG_LOOK_SECS))


def _has_mail(tx: Tx, agent: str) -> bool:
    sql = "SELECT 1 FROM mailbox WHERE name = ? AND waiting + in_flight > 0"
    return tx.fetch_one(sql, (agent,)) is not None
