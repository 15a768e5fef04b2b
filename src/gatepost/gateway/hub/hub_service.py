"""The hub of this gateway: the files it follows, its sessions, and the callers of its tasks."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterator
from itertools import chain

import msgspec
from msgspec import UNSET, UnsetType

from gatepost.delivery.blob_records import find_blob
from gatepost.errors import InvalidRequest
from gatepost.events import fingerprint_content
from gatepost.events.json_payload import check_json_text
from gatepost.gateway.api.folder_watch import MODIFICATIONS, watch_folder
from gatepost.gateway.api.operations import Operations
from gatepost.gateway.hub.hub_files import PolicyFile, RegistryFolder, follow_folder
from gatepost.gateway.hub.session_manager import SessionManager
from gatepost.gateway.hub.task_views import view_task
from gatepost.gateway.hub.task_watchers import TaskWatchers
from gatepost.hub import tasks
from gatepost.hub.policy import PolicyPrincipal
from gatepost.hub.runtimes.process_runtime import ProcessRuntime
from gatepost.hub.runtimes.runtime import SessionRuntime
from gatepost.hub.task_request import RequestContent, encode_request
from gatepost.journal import Tx
from gatepost.task_wire import NewTask, TaskView

log = logging.getLogger(__name__)

_SWEEP_SECS = 5.0
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
        self.watchers = TaskWatchers()
        self.sessions = SessionManager(core, self._create_runtimes())
        self.watchers.listeners.append(self.sessions.task_changed)
        core.tasks.parts.changes.on_changed = self.watchers.task_changed
        core.health.add_check(self._find_problems)

    def _create_runtimes(self) -> dict[str, SessionRuntime]:
        hub, state = self.core.settings.hub, self.core.state
        return {"process": ProcessRuntime(state.sessions, hub.sandbox)}

    def _find_problems(self) -> list[str]:
        problems = [f"agents folder: {each}" for each in self.core.registry.problems]
        return problems + ([self.policy_file.problem] if self.policy_file.problem else [])

    @contextlib.asynccontextmanager
    async def running(self, base_url: str) -> AsyncIterator[None]:
        """Follow the files and serve tasks until exit. Sessions go on after that."""
        self.sessions.base_url = base_url
        self.registry_folder.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.policy_file.load_first()
        await self.reload_agents()
        run_every = self.core.background.run_every
        async with (
            follow_folder(self.registry_folder.folder, self._agents_changed),
            follow_folder(self.policy_file.path.parent, self.policy_file.load),
            run_every(_SWEEP_SECS, self._sweep, "the sweep of tasks failed"),
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
            log.info("the hub runs %d agents", len(self.core.registry.agents))

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
        agents.hub_run = names

    async def _sweep(self) -> None:
        await self.core.commit(self.core.tasks.requested.end_lost_tasks)
        keep = int(self.core.settings.hub.keep_tasks_secs * 1000)
        await self.core.commit(lambda tx: tasks.prune_tasks(tx, tx.now - keep, _PRUNE_BATCH))

    # -- tasks

    async def create_tasks(self, new: NewTask, by: PolicyPrincipal | None) -> list[TaskView]:
        """Record tasks and send their requests; a large request is stored as a blob first."""
        content = await self.prepare_request(new)
        requested = self.core.tasks.requested

        def create(tx: Tx) -> list[TaskView]:
            return [view_task(tx, task) for task in requested.create_tasks(tx, new, content, by)]

        return await self.core.commit(create)

    async def prepare_request(self, new: NewTask) -> RequestContent:
        """Encode the request of a task. InvalidRequest if its input is not one JSON value."""
        if not isinstance(new.input_ref, UnsetType):
            return await self._compose_large_request(new, new.input_ref)
        if not isinstance(new.input, UnsetType):
            check_json_text(bytes(new.input))
        payload = encode_request(new)
        mark = _mark_request(new, payload)
        if len(payload) <= self.core.settings.limits.max_payload_inline:
            return RequestContent(mark, payload)
        blob = await self.core.keep_payload([payload])
        return RequestContent(mark, digest=blob.digest)

    async def _compose_large_request(self, new: NewTask, digest: str) -> RequestContent:
        """The input is a blob already: the request is another blob around its content."""
        if not isinstance(new.input, UnsetType):
            raise InvalidRequest("a task has an `input` or an `input_ref`, not both")
        key, _ = await self.core.read(lambda tx: find_blob(tx, digest))
        head = encode_request(new)
        begin = head[:-1] + (b"," if len(head) > 2 else b"") + b'"input":'

        def pieces() -> Iterator[bytes]:
            return chain([begin], self.core.blobs.read_payload(digest, key), [b"}"])

        await asyncio.to_thread(_check_json, pieces())
        blob = await self.core.keep_payload(pieces())
        return RequestContent(_mark_request(new, head + digest.encode()), digest=blob.digest)

    async def show_task(self, id: str, wait_secs: float = 0.0, known: int = 0) -> TaskView:
        """A task once it has ended, or when the wait is over.

        With `known`, a change after that moment ends the wait too.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_secs
        while True:
            change = self.watchers.next_change(id)
            try:
                view = await self.core.read(lambda tx: self._view(tx, id))
                left = deadline - loop.time()
                if view.has_ended or left <= 0 or (known and view.updated_at > known):
                    return view
                if not await self.operations.waits.wait_for(change, left):
                    return await self.core.read(lambda tx: self._view(tx, id))
            finally:
                self.watchers.forget(id, change)

    def _view(self, tx: Tx, id: str) -> TaskView:
        return view_task(tx, tasks.load_task(tx, id), self.sessions.states.get(id))

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

    async def cancel_task(self, id: str, reason: str) -> TaskView:
        def cancel(tx: Tx) -> TaskView:
            return self._view(tx, self.core.tasks.cancel_task(tx, id, reason).id)

        return await self.core.commit(cancel)


def _has_mail(tx: Tx, agent: str) -> bool:
    sql = "SELECT 1 FROM mailbox WHERE name = ? AND waiting + in_flight > 0"
    return tx.fetch_one(sql, (agent,)) is not None


def _mark_request(new: NewTask, content: bytes) -> bytes:
    targets = "*" if new.to_agents is UNSET else " ".join(new.to_agents)
    return fingerprint_content(targets.encode() + b"\n" + content)


def _check_json(pieces: Iterator[bytes]) -> None:
    try:
        msgspec.json.decode(b"".join(pieces), type=msgspec.Raw)
    except ValueError as error:
        raise InvalidRequest(f"the input of a task must be JSON: {error}") from None
