"""Launches sessions for waiting tasks, watches them, and ends those that must stop.

While sessions run, the next tasks are claimed already. A session that ends leaves its place to one
of those at once: the end of the one and the start of the other are written while the latter runs.

The end of a session is recorded first, by an operation that looks at nothing the session left
behind: from then on its token is dead. Its result is read and judged afterwards. A result that
cannot be read or judged fails the task, whatever the reason. A sweep finds all other faults:
sessions in the journal that are not followed, and tasks without a session.
"""

import asyncio
import contextlib
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from functools import partial
from typing import Any

from gatepost.core.gateway_core import Core
from gatepost.errors import (
    GatepostError,
    InvalidRequest,
    LaunchFailed,
    StorageFailed,
    Unavailable,
)
from gatepost.journal import Tx
from gatepost.tasks import sessions, task_table
from gatepost.tasks.service.session_contents import SessionContents
from gatepost.tasks.service.session_sockets import SessionSockets
from gatepost.tasks.session_runtime import (
    LogPiece,
    SessionExit,
    SessionHandle,
    SessionRuntime,
)
from gatepost.tasks.session_states import TRANSITIONS, SessionInput, SessionState
from gatepost.tasks.session_tasks import ClaimedTask
from gatepost.tasks.sessions import Session
from gatepost.tasks.task_states import TaskState
from gatepost.tasks.task_table import Task

log = logging.getLogger(__name__)

_RETRY_SECS = 1.0
# The end of a session is noted again and again for about a day: a disk may be full that long.
_NOTE_RETRY_SECS = 60.0
_NOTE_TRIES = 1440
_LOOK_SECS = 30.0
_WATCH_TRIES = 8
_ERROR_LOG_BYTES = 500
# Passing errors of the disk or the journal: retry.
_PASSING = (StorageFailed, Unavailable, OSError)


class SessionManager:
    """At most `hub.max_sessions` run at a time; further tasks wait in the journal.

    Of those that wait, at most `hub.max_sessions` are claimed.
    """

    def __init__(
        self,
        core: Core,
        runtimes: Mapping[str, SessionRuntime],
        states: dict[str, SessionState],
        sockets: SessionSockets,
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
        # Names of the sessions that occupy a place: launched, and not known to have ended.
        self._places: set[str] = set()
        # Name of a session → the task that follows it, until its end is in the journal.
        self._followed: dict[str, asyncio.Task[None]] = {}
        # Names of claims that are being given up.
        self._released: set[str] = set()
        # Task → the name of the session of its latest attempt that is followed.
        self._current: dict[str, str] = {}
        # Tasks whose session is gone although the journal may not have its end yet, for instance
        # because the disk is full. Their tokens are dead anyway.
        self.unrecorded_ends: set[str] = set()
        self._swept_at = -math.inf
        self._handles: dict[str, tuple[SessionRuntime, SessionHandle]] = {}
        self._stopping: set[asyncio.Task[None]] = set()
        self.states = states
        self.contents = SessionContents(core)
        self._sockets = sockets

    @property
    def session_count(self) -> int:
        return len(self._places)

    def look_for_tasks(self) -> None:
        """Look for waiting tasks that were not announced."""
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
    async def following(self) -> AsyncIterator[None]:
        """Re-attach to the sessions of an earlier process, and follow sessions until exit.

        Everything that the end of a task depends on has to be loaded before.
        """
        try:
            await self._recover()
            yield
        finally:
            works = [*self._followed.values(), *self._stopping]
            for work in works:
                work.cancel()
            await asyncio.gather(*works, return_exceptions=True)
            for runtime in self._runtimes.values():
                await runtime.close()

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Launch sessions for tasks that wait, until exit."""
        loop = asyncio.create_task(self._serve())
        try:
            yield
        finally:
            loop.cancel()
            # The next process claims again. No session may take the place of one that keeps
            # running.
            self._claimed.clear()
            await asyncio.gather(loop, return_exceptions=True)

    def read_log(self, session: Session, offset: int, limit: int) -> LogPiece:
        return self._runtimes[session.runtime].read_log(session.name, offset, limit)

    # -- claiming and launching

    async def _serve(self) -> None:
        while True:
            self._wake.clear()
            has_claimed = await self._try_work(self._claim_tasks, "tasks could not be claimed")
            await self._try_work(self._sweep_when_due, "sessions could not be swept")
            if not has_claimed:
                await asyncio.sleep(_RETRY_SECS)
                continue
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), _LOOK_SECS)

    async def _try_work(self, work: Callable[[], Awaitable[None]], failure: str) -> bool:
        """Do one part of the work; False, with a log line, if it fails. Other parts continue."""
        try:
            await work()
        except Exception as error:
            log.warning("%s: %s", failure, error)
            return False
        return True

    async def _claim_tasks(self) -> None:
        """Claim tasks for the free places, and in advance for all places."""
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
                self._sockets.open(claimed.session_name)
                self._follow(id, claimed.session_name, self._run_session(claimed))
            else:
                self._spawn(f"release {id}", self._release(claimed))

    async def _release(self, claimed: ClaimedTask) -> None:
        """Release a claim whose task has ended or must be claimed again."""
        id, name = claimed.task.id, claimed.session_name
        self._released.add(name)
        try:
            await self._persist(name, lambda tx: self._records.release_claim(tx, id, name))
        finally:
            self._released.discard(name)
        self._wake.set()

    def _follow(self, id: str, name: str, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._followed[name] = task
        self._current[id] = name
        task.add_done_callback(partial(self._forget, id, name))

    def _forget(self, id: str, name: str, task: "asyncio.Task[None]") -> None:
        del self._followed[name]
        self._note_recorded(id, task)
        if self._current.get(id) == name:
            # If it is another session, a further attempt at the task already runs.
            del self._current[id]
            self._handles.pop(id, None)
            self.states.pop(id, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("session %s was not followed to its end", name, exc_info=error)
        # A session outlives the gateway, and finds its socket in the same folder again.
        self._sockets.close(name) if task.cancelled() else self._sockets.remove(name)
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
            self.states[id] = SessionState.CLAIMED
            handle = await runtime.launch(spec, partial(self._note_step, id))
        except Exception as failure:
            error = _launch_error(failure)
            self._begin_record_end(id, name, SessionExit("lost", detail=error.message))
            await self._persist(name, lambda tx: self._records.fail_launch(tx, id, name, error))
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

    def _note_step(self, id: str, input: SessionInput) -> None:
        self.states[id] = TRANSITIONS[self.states[id], input]

    # -- watching

    async def _watch(
        self, id: str, name: str, runtime: SessionRuntime, handle: SessionHandle
    ) -> None:
        self._handles[id] = (runtime, handle)
        ended = await self._wait_for_end(runtime, handle)
        # The end of its task must not stop it again.
        self._handles.pop(id, None)
        self._note_step(id, SessionInput.END)
        self._begin_record_end(id, name, ended)
        self._leave_place(name)
        await self._judge(id, name, runtime, ended)

    def _begin_record_end(self, id: str, name: str, ended: SessionExit) -> None:
        """Record that a session is gone, before anything else about it.

        The journal keeps the order, so the end is on record before the result counts, although both
        are often in one commit group. An end that cannot be recorded is recorded with the result.
        """
        self.unrecorded_ends.add(id)
        recorded = self._core.begin_commit(lambda tx: self._records.record_end(tx, id, name, ended))
        recorded.add_done_callback(partial(self._note_recorded, id))

    def _note_recorded(self, id: str, done: "asyncio.Future[None] | asyncio.Task[None]") -> None:
        """Note whether the end of a session was recorded; if it failed, other steps retry it."""
        if not done.cancelled() and done.exception() is None:
            self.unrecorded_ends.discard(id)

    async def _wait_for_end(self, runtime: SessionRuntime, handle: SessionHandle) -> SessionExit:
        """Wait for the end of a session. One that cannot be watched is killed."""
        pause = _RETRY_SECS
        for _ in range(_WATCH_TRIES):
            try:
                return await runtime.wait(handle)
            except Exception as error:
                log.warning("session %s cannot be watched: %r", handle.name, error)
            await asyncio.sleep(pause)
            pause *= 2
        with contextlib.suppress(Exception):
            await runtime.kill(handle)
        return SessionExit("lost", None, "it could not be watched")

    async def _judge(
        self, id: str, name: str, runtime: SessionRuntime | None, ended: SessionExit
    ) -> None:
        """Read and judge the result of an ended session, then end its task."""
        detail = _describe_end(runtime, name, ended)

        async def settle() -> None:
            result = await self.contents.read_result(name, id) if ended.is_success else None
            await self._core.commit(
                lambda tx: self._records.settle_task(tx, id, name, ended, result, detail)
            )

        try:
            await self._try_again(name, settle)
        except Exception as error:
            log.exception("the result of session %s cannot be judged", name)
            unusable = InvalidRequest(f"its result cannot be judged: {type(error).__name__}")
            await self._settle(id, name, ended, unusable, detail)

    async def _settle(
        self, id: str, name: str, ended: SessionExit, result: GatepostError | None, detail: str
    ) -> None:
        """End the task of a session without a result, whatever is wrong with the task."""
        try:
            await self._persist(
                name, lambda tx: self._records.settle_task(tx, id, name, ended, result, detail)
            )
        except Exception:
            log.exception("the task of session %s cannot be settled", name)
            why = detail if result is None else result.message
            await self._persist(name, lambda tx: self._records.stop_task(tx, id, name, why))

    async def _persist(self, name: str, operation: Callable[[Tx], object]) -> None:
        await self._try_again(name, lambda: self._core.commit(operation))

    async def _try_again(self, name: str, note: Callable[[], Awaitable[object]]) -> None:
        """Commit a note about a session, with retries while the disk or the journal refuses."""
        pause = _RETRY_SECS
        for attempt in range(_NOTE_TRIES):
            try:
                await note()
                return
            except _PASSING as error:
                if not attempt:
                    log.warning("the state of session %s is noted later: %s", name, error)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _NOTE_RETRY_SECS)
        await note()

    # -- after a restart, and now and then

    async def _recover(self) -> None:
        """Follow the sessions that still run, and end all others."""
        known = await self._core.read(sessions.open_sessions)
        started = {session.name for session in known if session.handle is not None}
        for runtime in self._runtimes.values():
            for name in await runtime.remove_orphans(started):
                log.warning("the session %s was started, but not noted: it was ended", name)
        # Work that fails in this sweep is done by a later one.
        if await self._try_work(self._sweep, "sessions could not be swept"):
            self._sockets.remove_unused()

    async def _sweep_when_due(self) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._swept_at >= _LOOK_SECS:
            await self._sweep()

    async def _sweep(self) -> None:
        """Take up the sessions that are not followed, and end the tasks that have none.

        No task is claimed meanwhile, so an open session that is unknown here is a stray.
        """
        await self._core.commit(self._records.revoke_stray_tokens)
        known = await self._core.read(sessions.open_sessions)
        claimed = {each.session_name for each in self._claimed.values()}
        held = claimed | self._followed.keys() | self._released
        for session in known:
            if session.name not in held:
                self._take_up(session)
        for id in await self._core.commit(self._records.end_stray_tasks):
            log.warning("no session worked on task %s any more: it was ended", id)
        self._swept_at = asyncio.get_running_loop().time()

    def _take_up(self, session: Session) -> None:
        """Follow a session if it may still run, or end it."""
        id, name, found = session.task_id, session.name, self._runtimes.get(session.runtime)
        if session.ended_at is not None:
            self._follow(id, name, self._judge(id, name, found, _recorded_exit(session)))
        elif session.handle is None or found is None:
            self._follow(id, name, self._give_up(session))
        else:
            log.info("session %s of task %s goes on", name, id)
            self._places.add(name)
            self._sockets.open(name)
            self._follow(id, name, self._resume(session, found, session.handle))

    async def _resume(
        self, session: Session, runtime: SessionRuntime, handle: SessionHandle
    ) -> None:
        self.states[session.task_id] = TRANSITIONS[session.state, SessionInput.RESUME]
        with contextlib.suppress(GatepostError):
            task = await self._core.read(lambda tx: task_table.load_task(tx, session.task_id))
            if task.has_ended:
                self._spawn(f"stop {handle.name}", runtime.stop(handle))
        await self._watch(session.task_id, session.name, runtime, handle)

    async def _give_up(self, session: Session) -> None:
        """End a session that cannot be followed. Without a folder it was never launched."""
        id, name = session.task_id, session.name
        if session.handle is None and not (self._core.state.sessions / name).exists():
            await self._persist(name, lambda tx: self._records.release_claim(tx, id, name))
            return
        lost = SessionExit("lost", detail="the gateway ended while it started the session")
        self._begin_record_end(id, name, lost)
        await self._settle(id, name, lost, None, lost.detail)

    def _spawn(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name=name)
        self._stopping.add(task)
        task.add_done_callback(self._stopping.discard)


def _launch_error(error: Exception) -> GatepostError:
    if isinstance(error, GatepostError):
        return error
    log.error("a session could not be launched", exc_info=error)
    return LaunchFailed(f"the session cannot be started: {type(error).__name__}")


def _recorded_exit(session: Session) -> SessionExit:
    """The recorded exit of a session."""
    reason: Any = session.reason
    return SessionExit(reason, session.exit_code)


def _describe_end(runtime: SessionRuntime | None, name: str, ended: SessionExit) -> str:
    """How a session ended, in words, with the last of its output."""
    said = ""
    if runtime is not None and not ended.is_success:
        with contextlib.suppress(Exception):
            tail = runtime.read_log(name, -_ERROR_LOG_BYTES, _ERROR_LOG_BYTES)
            said = tail.data.decode(errors="replace").strip()
    return f"{ended}: {said}" if said else str(ended)
