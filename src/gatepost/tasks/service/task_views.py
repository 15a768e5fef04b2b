"""Makes views of tasks, sessions and agents, for the operations of tasks and the hub's API."""

import asyncio
from collections.abc import Mapping

import msgspec
from msgspec import UNSET, Raw

from gatepost.core.gateway_core import Core
from gatepost.errors import GatepostError
from gatepost.events import TaskInfo
from gatepost.journal import Tx
from gatepost.tasks import task_table
from gatepost.tasks.agent_definition import AgentDefinition
from gatepost.tasks.runtimes.docker_runtime import container_name
from gatepost.tasks.session_states import SessionState
from gatepost.tasks.sessions import Session, find_session
from gatepost.tasks.task_request import decode_request
from gatepost.tasks.task_states import TaskState
from gatepost.tasks.task_table import Task, TaskPayload, load_payload
from gatepost.tasks.task_tokens import find_token_id
from gatepost.wire.hub_views import HubAgentView, HubTask, SessionView
from gatepost.wire.tasks import TaskView

_decode_info = msgspec.json.Decoder(TaskInfo).decode


def view_agent(definition: AgentDefinition) -> HubAgentView:
    return HubAgentView(
        definition.name,
        definition.description,
        definition.capabilities,
        definition.image,
        definition.hardened,
        definition.command,
        definition.runtime_name,
    )


def present_agent(definition: AgentDefinition) -> HubAgentView:
    """The view of an agent for those that may give it tasks."""
    return HubAgentView(definition.name, definition.description, definition.capabilities)


def view_task(tx: Tx, task: Task, state: SessionState | None = None) -> TaskView:
    """A task with its input and result. `state` is its session's, if newer than the journal's."""
    view = summarize_task(task)
    payload = load_payload(tx, task.id)
    _show_payload(view, payload)
    if task.executor == "session" and (session := find_session(tx, task.id)) is not None:
        view.session_name = session.name
        view.session_state = state or session.state
        view.token_id = find_token_id(tx, task.id)
    return view


def view_session(session: Session, state: SessionState | None = None) -> SessionView:
    """A session. `state` is the one in memory, which is newer than the journal's."""
    return SessionView(
        session_name=session.name,
        task_id=session.task_id,
        agent_name=session.agent,
        backend=session.runtime,
        state=state or session.state,
        container_name=container_name(session.name) if session.runtime == "docker" else None,
        exit_code=session.exit_code,
        reason=session.reason,
        created_at=session.created_at,
        ended_at=session.ended_at,
    )


def complete_view(view: TaskView) -> HubTask:
    """A task with all the fields that clients of the hub look for."""
    fields = msgspec.structs.asdict(view)
    if view.result is UNSET and view.result_ref is None:
        fields["result"] = Raw(b"null")
    return HubTask(**fields)


def summarize_task(task: Task) -> TaskView:
    """A task without its input and result."""
    info = _decode_info(task.info)
    return TaskView(
        id=task.id,
        agent_name=task.agent,
        status=task.status,
        state=task.state,
        requester=task.requester_name,
        description=task.description,
        requester_node=task.requester_node,
        executor_node=task.executor_node,
        task_type=info.task_type or "",
        capability_id=info.capability_id,
        progress=task.progress,
        note=task.note,
        eta_at=task.eta_at,
        error_code=task.error_code,
        error=task.error,
        created_at=task.created_at,
        accepted_at=task.accepted_at,
        started_at=task.started_at,
        updated_at=task.updated_at,
        ended_at=task.ended_at,
        attempt=task.attempt,
        unknown_until=task.unknown_until if task.state is TaskState.UNKNOWN else None,
        is_presumed=task.is_presumed,
        amended_at=task.amended_at,
    )


def _show_payload(view: TaskView, payload: TaskPayload) -> None:
    view.input_ref, view.result_ref = payload.request_ref, payload.result_ref
    view.result = UNSET if payload.result is None else Raw(payload.result)
    if payload.request is not None:
        view.input = decode_request(payload.request).input


WantedView = tuple[str, "asyncio.Future[TaskView]"]


class TaskViewReader:
    """Used in the event loop. `session_states` is newer than the journal."""

    def __init__(self, core: Core, session_states: Mapping[str, SessionState]) -> None:
        self._core = core
        self._session_states = session_states
        self._wanted: list[WantedView] = []
        self._reading: set[asyncio.Task[None]] = set()

    async def read_view(self, id: str) -> TaskView:
        """The task with this id; UnknownTask if there is none."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[TaskView] = loop.create_future()
        self._wanted.append((id, future))
        if len(self._wanted) == 1:
            # Run after all callers that the same commit group woke.
            loop.call_soon(self._start_reading)
        return await future

    def view(self, tx: Tx, id: str) -> TaskView:
        return view_task(tx, task_table.load_task(tx, id), self._session_states.get(id))

    def _start_reading(self) -> None:
        wanted, self._wanted = self._wanted, []
        task = asyncio.create_task(self._read(wanted))
        self._reading.add(task)
        task.add_done_callback(self._reading.discard)

    async def _read(self, wanted: list[WantedView]) -> None:
        try:
            ids = list(dict.fromkeys(id for id, _ in wanted))
            found = await self._core.read(lambda tx: {id: self._try_view(tx, id) for id in ids})
        except Exception as error:
            _reject_all(wanted, error)
            return
        for id, future in wanted:
            if future.done():
                continue
            view = found[id]
            if isinstance(view, GatepostError):
                future.set_exception(type(view)(view.message))
            else:
                future.set_result(view)

    def _try_view(self, tx: Tx, id: str) -> TaskView | GatepostError:
        try:
            return self.view(tx, id)
        except GatepostError as error:
            return error


def _reject_all(wanted: list[WantedView], error: Exception) -> None:
    for _, future in wanted:
        if not future.done():
            future.set_exception(error)
