"""Reads logs of sessions from other gateways, and serves ours to them."""

import asyncio

from gatepost.delivery.frames import LOG_BYTES, LogAnswer, LogRequest
from gatepost.errors import GatepostError, NotFound, Unavailable
from gatepost.journal import Tx
from gatepost.links.log_part import LogAnswered
from gatepost.links.service.connection_links import ConnectionLinks
from gatepost.tasks import sessions, task_table
from gatepost.tasks.requested_tasks import find_request
from gatepost.tasks.service.hub_service import HubService
from gatepost.tasks.sessions import Session
from gatepost.tasks.task_states import UNTAKEN_STATES
from gatepost.tasks.task_table import Task
from gatepost.wire.hub_views import LogView

_ANSWER_SECS = 5.0
_LOOK_SECS = 0.5
_UNKNOWN = "it executes no such task of this gateway"


class RemoteLogs:
    def __init__(self, hub: HubService, links: ConnectionLinks) -> None:
        self._hub = hub
        self._core = hub.core
        self._links = links
        self._reading: set[asyncio.Task[None]] = set()
        links.task_logs.read_log = self._begin_answer

    # -- logs of this gateway

    def _begin_answer(self, asker: str, request: LogRequest, answered: LogAnswered) -> None:
        task = asyncio.get_running_loop().create_task(self._answer(asker, request, answered))
        self._reading.add(task)
        task.add_done_callback(self._reading.discard)

    async def _answer(self, asker: str, request: LogRequest, answered: LogAnswered) -> None:
        answer = LogAnswer(request.id, problem="its log cannot be read")
        try:
            answer = await self._read_piece(asker, request)
        except GatepostError as error:
            answer = LogAnswer(request.id, problem=error.message[:300])
        finally:
            answered(answer)

    async def _read_piece(self, asker: str, request: LogRequest) -> LogAnswer:
        id = request.task_id
        task, session = await self._core.read(lambda tx: find_logged_task(tx, asker, id))
        if session is None:
            state, done = task.state.value, task.has_ended
            return LogAnswer(request.id, max(0, request.offset), is_complete=done, state=state)
        read = self._hub.sessions.read_log
        piece = await asyncio.to_thread(read, session, request.offset, LOG_BYTES)
        done = session.ended_at is not None and len(piece.data) < LOG_BYTES
        state = self._hub.sessions.states.get(task.id) or session.state
        return LogAnswer(
            request.id, piece.offset, piece.data, done, task.state.value, session_state=state
        )

    # -- logs of other gateways

    async def read_log(self, task: Task, offset: int, wait_secs: float) -> LogView:
        """A piece of the log of a task that was requested here; waits for output."""
        if task.requester_node is not None:
            raise NotFound(f"{task.requester_node} requested task {task.id}, and reads its log")
        loop, id = asyncio.get_running_loop(), task.id
        deadline = loop.time() + wait_secs
        while True:
            answer = await self._ask(task, offset)
            task = await self._core.read(lambda tx: task_table.load_task(tx, id))
            # The other gateway may not have received the request yet.
            if answer.problem and task.state in UNTAKEN_STATES:
                answer = LogAnswer(answer.id, max(0, offset))
            if answer.problem:
                raise NotFound(f"{task.executor_node} has no log of it: {answer.problem}")
            is_over = loop.time() >= deadline
            if answer.is_busy and is_over:
                raise Unavailable(f"{task.executor_node} is asked too often", retry_after=1.0)
            if answer.data or answer.is_complete or is_over:
                end = answer.offset + len(answer.data)
                text = answer.data.decode(errors="replace")
                state = answer.session_state or None
                return LogView(answer.offset, end, text, answer.is_complete, state)
            await asyncio.sleep(min(_LOOK_SECS, max(0.0, deadline - loop.time())))

    async def _ask(self, task: Task, offset: int) -> LogAnswer:
        node = task.executor_node or ""
        ends = [e for e in self._links.links_to(node) if e.outbox.greeted and not e.ended]
        if not ends:
            raise Unavailable(
                f"{node} executes task {task.id}, and there is no link to it: logs do not go"
                " through relays",
                retry_after=5.0,
            )
        own = self._core.node.id
        request = await self._core.read(lambda tx: find_request(tx, own, task))
        answered: asyncio.Future[LogAnswer] = asyncio.get_running_loop().create_future()

        def resolve(answer: LogAnswer) -> None:
            if not answered.done():
                answered.set_result(answer)

        number = ends[0].logs.request_log(request, offset, resolve)
        try:
            async with asyncio.timeout(_ANSWER_SECS):
                return await answered
        except TimeoutError:
            raise Unavailable(f"{node} did not send its log in time", retry_after=1.0) from None
        finally:
            ends[0].logs.forget_request(number)


def find_logged_task(tx: Tx, asker: str, request: str) -> tuple[Task, Session | None]:
    """A task that the asker requested, and its session; NotFound for every other."""
    task = task_table.find_requested_task(tx, request)
    if task is None or task.requester_node != asker:
        raise NotFound(_UNKNOWN)
    if task.executor != "session":
        raise NotFound("no session of this gateway executes it")
    return task, sessions.find_session(tx, task.id)
