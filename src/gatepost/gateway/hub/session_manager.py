"""Sessions for tasks: launches them as tasks wait, watches them, and ends what must not go on."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Coroutine, Mapping
from functools import partial
from typing import Any

from gatepost.errors import ContractMismatch, GatepostError, LaunchFailed
from gatepost.gateway.core import Core
from gatepost.gateway.hub.session_contents import SessionContents
from gatepost.hub import sessions, tasks
from gatepost.hub.executed_tasks import ExecutedTasks, TakenTask
from gatepost.hub.runtimes.runtime import (
    LogPiece,
    SessionExit,
    SessionHandle,
    SessionRuntime,
)
from gatepost.hub.session_states import SessionState
from gatepost.hub.sessions import Session, session_name
from gatepost.hub.task_states import TaskState
from gatepost.hub.tasks import Task, TaskPayload
from gatepost.journal import Tx

log = logging.getLogger(__name__)

_RETRY_SECS = 1.0
_LOOK_SECS = 30.0
_ERROR_LOG_BYTES = 500


class SessionManager:
    """At most `hub.max_sessions` at a time; further tasks wait in the journal."""

    def __init__(
        self,
        core: Core,
        runtimes: Mapping[str, SessionRuntime],
        states: dict[str, SessionState],
    ) -> None:
        """`states` is kept up to date: task → state of its session."""
        self._core = core
        self._runtimes = runtimes
        self._settings = core.settings.hub
        self._wake = asyncio.Event()
        self._running: dict[str, asyncio.Task[None]] = {}
        self._handles: dict[str, tuple[SessionRuntime, SessionHandle]] = {}
        self._stopping: set[asyncio.Task[None]] = set()
        self.states = states
        self.contents = SessionContents(core)

    @property
    def session_count(self) -> int:
        return len(self._running)

    def look_for_tasks(self) -> None:
        """Tasks may wait that nobody was told of."""
        self._wake.set()

    def task_changed(self, task: Task) -> None:
        """A task waits for a session, or its session must end."""
        if task.executor == "session" and task.state is TaskState.PENDING:
            self._wake.set()
        elif task.has_ended and (found := self._handles.get(task.id)) is not None:
            runtime, handle = found
            self._spawn(f"stop {task.id}", runtime.stop(handle))

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Re-attach to the sessions of an earlier process, then serve tasks until exit."""
        await self._recover()
        loop = asyncio.create_task(self._serve())
        try:
            yield
        finally:
            loop.cancel()
            for work in [*self._running.values(), *self._stopping]:
                work.cancel()
            await asyncio.gather(
                loop, *self._running.values(), *self._stopping, return_exceptions=True
            )
            for runtime in self._runtimes.values():
                await runtime.close()

    def read_log(self, session: Session, offset: int, limit: int) -> LogPiece:
        return self._runtimes[session.runtime].read_log(session.name, offset, limit)

    # -- launching

    async def _serve(self) -> None:
        while True:
            self._wake.clear()
            try:
                await self._launch_waiting()
            except Exception as error:
                log.warning("tasks could not be taken: %s", error)
                await asyncio.sleep(_RETRY_SECS)
                continue
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), _LOOK_SECS)

    async def _launch_waiting(self) -> None:
        capacity = self._settings.max_sessions - len(self._running)
        if capacity <= 0:
            return
        self._launch(await self._core.commit(lambda tx: self._take(tx, capacity)))

    def _launch(self, taken: list[TakenTask]) -> None:
        for each in taken:
            self._track(each.task.id, self._run_session(each))

    def _take(self, tx: Tx, capacity: int) -> list[TakenTask]:
        taken = self._core.tasks.executed.take_pending(tx, capacity)
        for each in taken:
            name = session_name(each.task.id, each.task.attempt)
            runtime = each.definition.runtime_name
            sessions.open_session(tx, name, each.task.id, each.task.agent, runtime)
        return taken

    def _track(self, id: str, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._running[id] = task
        task.add_done_callback(partial(self._forget, id))

    def _forget(self, id: str, task: "asyncio.Task[None]") -> None:
        if self._running.get(id) is task:
            # Otherwise another attempt at the task runs already.
            del self._running[id]
            self._handles.pop(id, None)
            self.states.pop(id, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("the session of task %s was not followed to its end", id, exc_info=error)
        self._wake.set()

    async def _run_session(self, taken: TakenTask) -> None:
        id, name = taken.task.id, session_name(taken.task.id, taken.task.attempt)
        try:
            runtime = self._find_runtime(taken.definition.runtime_name)
            spec = await self.contents.describe_session(taken, runtime)
            handle = await runtime.launch(spec, partial(self._note_state, id))
        except GatepostError as error:
            await self._core.commit(partial(self._fail_launch, id=id, name=name, error=error))
            return
        self._handles[id] = (runtime, handle)
        if await self._core.commit(lambda tx: self._note_started(tx, id, name, handle)):
            await runtime.stop(handle)
        await self._watch(id, name, runtime, handle)

    def _find_runtime(self, name: str) -> SessionRuntime:
        found = self._runtimes.get(name)
        if found is None:
            raise LaunchFailed(f"this gateway has no runtime {name!r}")
        return found

    def _note_state(self, id: str, state: SessionState) -> None:
        self.states[id] = state

    def _fail_launch(self, tx: Tx, id: str, name: str, error: GatepostError) -> None:
        sessions.end_session(tx, name, None, error.message)
        if not tasks.load_task(tx, id).has_ended:
            is_mismatch = isinstance(error, ContractMismatch)
            code = error.code if is_mismatch else LaunchFailed.code
            self._core.tasks.executed.fail_task(tx, id, code, error.message)

    def _note_started(self, tx: Tx, id: str, name: str, handle: SessionHandle) -> bool:
        """Note that the session runs; returns whether its task has ended in the meantime."""
        sessions.note_running(tx, name, handle)
        if tasks.load_task(tx, id).has_ended:
            return True
        self._core.tasks.executed.start_task(tx, id)
        return False

    # -- watching

    async def _watch(
        self, id: str, name: str, runtime: SessionRuntime, handle: SessionHandle
    ) -> None:
        self._handles[id] = (runtime, handle)
        ended = await runtime.wait(handle)
        # The end of its task must not stop it again.
        self._handles.pop(id, None)
        self.states[id] = SessionState.RECYCLING
        result = await self.contents.read_result(name, id) if ended.is_success else None
        detail = self._describe_end(runtime, name, ended)

        def note_end(tx: Tx) -> list[TakenTask]:
            self._note_ended(tx, id, name, ended, result, detail)
            return self._take(tx, 1)

        # The place of this session is free: its end and the next task are one transaction.
        self._launch(await self._core.commit(note_end))

    def _describe_end(self, runtime: SessionRuntime, name: str, ended: SessionExit) -> str:
        if ended.is_success:
            return str(ended)
        tail = runtime.read_log(name, -_ERROR_LOG_BYTES, _ERROR_LOG_BYTES)
        said = tail.data.decode(errors="replace").strip()
        return f"{ended}: {said}" if said else str(ended)

    def _note_ended(
        self,
        tx: Tx,
        id: str,
        name: str,
        ended: SessionExit,
        result: TaskPayload | GatepostError | None,
        detail: str,
    ) -> None:
        """A session ended: so does its task, if it has not reported its own end."""
        sessions.end_session(tx, name, ended.code, ended.reason)
        if tasks.load_task(tx, id).has_ended:
            return
        executed = self._core.tasks.executed
        if isinstance(result, TaskPayload):
            executed.complete_task(tx, id, result)
        elif isinstance(result, GatepostError):
            executed.fail_task(tx, id, result.code, result.message)
        elif ended.is_success:
            executed.fail_task(tx, id, "no_result", "its session ended without a result")
        else:
            _fail_ended(executed, tx, id, ended, detail)

    # -- after a restart

    async def _recover(self) -> None:
        """Follow the sessions that still run, and end everything else that was begun."""
        known = await self._core.read(sessions.open_sessions)
        started = {session.name for session in known if session.handle is not None}
        for runtime in self._runtimes.values():
            for name in await runtime.remove_orphans(started):
                log.warning("the session %s was started, but not noted: it was ended", name)
        for session in known:
            found = self._runtimes.get(session.runtime)
            if session.handle is None or found is None:
                await self._core.commit(partial(self._lose_session, session=session))
            else:
                log.info("session %s of task %s goes on", session.name, session.task_id)
                work = self._resume(session, found, session.handle)
                self._track(session.task_id, work)

    async def _resume(
        self, session: Session, runtime: SessionRuntime, handle: SessionHandle
    ) -> None:
        task = await self._core.read(lambda tx: tasks.load_task(tx, session.task_id))
        self.states[session.task_id] = SessionState.MONITORING
        if task.has_ended:
            await runtime.stop(handle)
        await self._watch(session.task_id, session.name, runtime, handle)

    def _lose_session(self, tx: Tx, session: Session) -> None:
        sessions.end_session(tx, session.name, None, "lost")
        if not tasks.load_task(tx, session.task_id).has_ended:
            why = "the gateway ended while it started the session"
            self._core.tasks.executed.lose_executor(tx, session.task_id, why)

    def _spawn(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name=name)
        self._stopping.add(task)
        task.add_done_callback(self._stopping.discard)


def _fail_ended(executed: ExecutedTasks, tx: Tx, id: str, ended: SessionExit, detail: str) -> None:
    is_lost = ended.reason == "lost" or (ended.code is not None and ended.code < 0)
    if ended.reason == "time_limit":
        executed.fail_task(tx, id, "time_limit", detail)
    elif is_lost:
        executed.lose_executor(tx, id, detail)
    else:
        executed.fail_task(tx, id, "session_failed", detail)
