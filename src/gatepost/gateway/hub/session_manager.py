"""Sessions for tasks: launches them as tasks wait, watches them, and ends what must not go on.

While sessions run, the next tasks are claimed already. A session that ends leaves its place to one
of those at once: the end of the one and the start of the other are written while the latter runs.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from functools import partial
from typing import Any

from gatepost.errors import GatepostError, LaunchFailed
from gatepost.gateway.core import Core
from gatepost.gateway.hub.session_contents import SessionContents
from gatepost.hub import sessions, tasks
from gatepost.hub.runtimes.runtime import (
    LogPiece,
    SessionExit,
    SessionHandle,
    SessionRuntime,
)
from gatepost.hub.session_states import SessionState
from gatepost.hub.session_tasks import ClaimedTask
from gatepost.hub.sessions import Session
from gatepost.hub.task_states import TaskState
from gatepost.hub.tasks import Task
from gatepost.journal import Tx

log = logging.getLogger(__name__)

_RETRY_SECS = 1.0
# The end of a session is noted again and again for about a day: a disk may be full that long.
_NOTE_RETRY_SECS = 60.0
_NOTE_TRIES = 1440
_LOOK_SECS = 30.0
_ERROR_LOG_BYTES = 500


class SessionManager:
    """At most `hub.max_sessions` run at a time; further tasks wait in the journal.

    Of those that wait, at most `hub.max_sessions` are claimed.
    """

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
        self._records = core.tasks.session_tasks
        # Task → its claim, oldest first.
        self._claimed: dict[str, ClaimedTask] = {}
        # Tasks that ended while others were being claimed.
        self._ended_meanwhile: set[str] = set()
        # Names of the sessions that have a place: launched, and not known to have ended.
        self._places: set[str] = set()
        self._followed: dict[str, asyncio.Task[None]] = {}
        self._handles: dict[str, tuple[SessionRuntime, SessionHandle]] = {}
        self._stopping: set[asyncio.Task[None]] = set()
        self.states = states
        self.contents = SessionContents(core)

    @property
    def session_count(self) -> int:
        return len(self._places)

    def look_for_tasks(self) -> None:
        """Tasks may wait that nobody was told of."""
        self._wake.set()

    def task_changed(self, task: Task) -> None:
        """A task waits for a session, or its session must end."""
        if task.executor == "session" and task.state is TaskState.PENDING:
            self._wake.set()
        elif not task.has_ended or task.executor != "session":
            return
        elif (claimed := self._claimed.pop(task.id, None)) is not None:
            self._spawn(f"release {task.id}", self._release(claimed))
        elif (found := self._handles.get(task.id)) is not None:
            runtime, handle = found
            self._spawn(f"stop {task.id}", runtime.stop(handle))
        else:
            self._ended_meanwhile.add(task.id)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Re-attach to the sessions of an earlier process, then serve tasks until exit."""
        await self._recover()
        loop = asyncio.create_task(self._serve())
        try:
            yield
        finally:
            loop.cancel()
            # The next process claims anew: no session takes the place of one that goes on.
            self._claimed.clear()
            for work in [*self._followed.values(), *self._stopping]:
                work.cancel()
            await asyncio.gather(
                loop, *self._followed.values(), *self._stopping, return_exceptions=True
            )
            for runtime in self._runtimes.values():
                await runtime.close()

    def read_log(self, session: Session, offset: int, limit: int) -> LogPiece:
        return self._runtimes[session.runtime].read_log(session.name, offset, limit)

    # -- claiming and launching

    async def _serve(self) -> None:
        while True:
            self._wake.clear()
            try:
                await self._claim_tasks()
            except Exception as error:
                log.warning("tasks could not be claimed: %s", error)
                await asyncio.sleep(_RETRY_SECS)
                continue
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), _LOOK_SECS)

    async def _claim_tasks(self) -> None:
        """Claim tasks for the places that are free, and for all that will be."""
        self._ended_meanwhile.clear()
        self._launch_claimed()
        places = self._settings.max_sessions
        wanted = 2 * places - len(self._places) - len(self._claimed)
        if wanted <= 0:
            return
        claimed = await self._core.commit(lambda tx: self._records.claim_tasks(tx, wanted))
        self._claimed |= {each.task.id: each for each in claimed}
        for id in self._claimed.keys() & self._ended_meanwhile:
            self._spawn(f"release {id}", self._release(self._claimed.pop(id)))
        self._launch_claimed()

    def _launch_claimed(self) -> None:
        """Launch claimed sessions, as long as there are places."""
        while self._claimed and len(self._places) < self._settings.max_sessions:
            id = next(iter(self._claimed))
            claimed = self._claimed.pop(id)
            if self._records.is_current(claimed, self._core.clock.now()):
                self._places.add(claimed.session_name)
                self._follow(id, claimed.session_name, self._run_session(claimed))
            else:
                self._spawn(f"release {id}", self._release(claimed))

    async def _release(self, claimed: ClaimedTask) -> None:
        """Give up a claim: its task has ended, or is to be claimed once more."""
        id, name = claimed.task.id, claimed.session_name
        while True:
            try:
                await self._core.commit(lambda tx: self._records.release_claim(tx, id, name))
            except GatepostError:
                await asyncio.sleep(_RETRY_SECS)
            else:
                self._wake.set()
                return

    def _follow(self, id: str, name: str, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._followed[id] = task
        task.add_done_callback(partial(self._forget, id, name))

    def _forget(self, id: str, name: str, task: "asyncio.Task[None]") -> None:
        if self._followed.get(id) is task:
            # Otherwise another attempt at the task runs already.
            del self._followed[id]
            self._handles.pop(id, None)
            self.states.pop(id, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("the session of task %s was not followed to its end", id, exc_info=error)
        self._leave_place(name)

    def _leave_place(self, name: str) -> None:
        if name in self._places:
            self._places.remove(name)
            self._launch_claimed()
            self._wake.set()

    async def _run_session(self, claimed: ClaimedTask) -> None:
        id, name = claimed.task.id, claimed.session_name
        try:
            runtime = self._find_runtime(claimed.definition.runtime_name)
            spec = await self.contents.describe_session(claimed, runtime)
            handle = await runtime.launch(spec, partial(self._note_state, id))
        except GatepostError as failure:
            error = failure
            await self._persist(
                name,
                lambda: self._core.commit(
                    lambda tx: self._records.fail_launch(tx, id, name, error)
                ),
            )
            return
        self._handles[id] = (runtime, handle)
        # The journal keeps the order: the end of this session is noted after its start.
        started = self._core.begin_commit(
            lambda tx: self._records.note_started(tx, claimed, handle)
        )
        started.add_done_callback(partial(self._check_started, runtime, handle))
        await self._watch(id, name, runtime, handle)

    def _check_started(
        self, runtime: SessionRuntime, handle: SessionHandle, started: "asyncio.Future[bool]"
    ) -> None:
        """Stop a session whose task had ended before it began."""
        if started.cancelled():
            return
        if (error := started.exception()) is not None:
            log.warning("the start of session %s could not be noted: %s", handle.name, error)
        elif started.result():
            self._spawn(f"stop {handle.name}", runtime.stop(handle))

    def _find_runtime(self, name: str) -> SessionRuntime:
        found = self._runtimes.get(name)
        if found is None:
            raise LaunchFailed(f"this gateway has no runtime {name!r}")
        return found

    def _note_state(self, id: str, state: SessionState) -> None:
        self.states[id] = state

    # -- watching

    async def _watch(
        self, id: str, name: str, runtime: SessionRuntime, handle: SessionHandle
    ) -> None:
        self._handles[id] = (runtime, handle)
        ended = await runtime.wait(handle)
        # The end of its task must not stop it again.
        self._handles.pop(id, None)
        self.states[id] = SessionState.RECYCLING
        detail = self._describe_end(runtime, name, ended)
        await self._persist(name, lambda: self._note_end(id, name, ended, detail))

    async def _note_end(self, id: str, name: str, ended: SessionExit, detail: str) -> None:
        result = await self.contents.read_result(name, id) if ended.is_success else None
        noted = self._core.begin_commit(
            lambda tx: self._records.note_ended(tx, id, name, ended, result, detail)
        )
        self._leave_place(name)
        await noted

    async def _persist(self, name: str, note: Callable[[], Awaitable[None]]) -> None:
        """Note the end of a session, again if that fails: its task is open until it is noted."""
        pause = _RETRY_SECS
        for attempt in range(_NOTE_TRIES):
            try:
                return await note()
            except (GatepostError, OSError) as error:
                if not attempt:
                    log.warning("the end of session %s is noted later: %s", name, error)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _NOTE_RETRY_SECS)
        await note()

    def _describe_end(self, runtime: SessionRuntime, name: str, ended: SessionExit) -> str:
        if ended.is_success:
            return str(ended)
        tail = runtime.read_log(name, -_ERROR_LOG_BYTES, _ERROR_LOG_BYTES)
        said = tail.data.decode(errors="replace").strip()
        return f"{ended}: {said}" if said else str(ended)

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
                await self._core.commit(partial(self._give_up_session, session=session))
            else:
                log.info("session %s of task %s goes on", session.name, session.task_id)
                work = self._resume(session, found, session.handle)
                self._places.add(session.name)
                self._follow(session.task_id, session.name, work)

    async def _resume(
        self, session: Session, runtime: SessionRuntime, handle: SessionHandle
    ) -> None:
        task = await self._core.read(lambda tx: tasks.load_task(tx, session.task_id))
        self.states[session.task_id] = SessionState.MONITORING
        if task.has_ended:
            await runtime.stop(handle)
        await self._watch(session.task_id, session.name, runtime, handle)

    def _give_up_session(self, tx: Tx, session: Session) -> None:
        """End a session that cannot be followed. Without a folder it was never launched."""
        if session.handle is None and not (self._core.state.sessions / session.name).exists():
            self._records.release_claim(tx, session.task_id, session.name)
        else:
            why = "the gateway ended while it started the session"
            self._records.lose_session(tx, session.task_id, session.name, why)

    def _spawn(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name=name)
        self._stopping.add(task)
        task.add_done_callback(self._stopping.discard)
