"""Tasks, agents and tokens as the hub's API shows them."""

import msgspec
from msgspec import UNSET, Raw, Struct, field

from gatepost.events import TaskInfo
from gatepost.hub.agent_definition import AgentDefinition
from gatepost.hub.session_states import SessionState
from gatepost.hub.sessions import find_session
from gatepost.hub.task_request import decode_request
from gatepost.hub.tasks import Task, TaskPayload, load_payload
from gatepost.journal import Tx
from gatepost.task_wire import TaskView

_decode_info = msgspec.json.Decoder(TaskInfo).decode


class HubAgentView(Struct):
    """An agent that this hub runs."""

    name: str
    image: str
    description: str
    capabilities: tuple[str, ...]
    hardened: bool
    command: tuple[str, ...]
    runtime: str


class RegistryProblemView(Struct):
    file: str
    line: int
    reason: str


class HubAgents(Struct):
    agents: list[HubAgentView]
    problems: list[RegistryProblemView] = field(default_factory=list)


class TaskList(Struct):
    tasks: list[TaskView]


class TaskTokenView(Struct):
    """A token without its secret. Times are epoch milliseconds."""

    token_id: str
    agent_name: str
    task_id: str
    capabilities: tuple[str, ...]
    issued: int
    expiry: int


class TaskTokens(Struct):
    tokens: list[TaskTokenView]


class LogView(Struct):
    """A piece of a session's log, from `offset` up to `end`. `is_complete`: nothing follows."""

    offset: int
    end: int
    text: str
    is_complete: bool


class LoggedMessage(Struct, omit_defaults=True):
    id: str
    timestamp: int
    sender: str
    recipient: str
    type: str
    status: str
    reason: str | None = None


class MessageLog(Struct):
    messages: list[LoggedMessage]


class HubMessage(Struct):
    """A message for an agent, as its session gets it."""

    id: str
    timestamp: int
    sender: str
    recipient: str
    type: str
    payload: Raw


class HubMessages(Struct):
    messages: list[HubMessage]


class MessageResult(Struct, omit_defaults=True):
    delivered: bool
    message_id: str
    task: TaskView | None = None


def view_agent(definition: AgentDefinition) -> HubAgentView:
    return HubAgentView(
        definition.name,
        definition.image,
        definition.description,
        definition.capabilities,
        definition.hardened,
        definition.command,
        definition.runtime_name,
    )


def view_task(tx: Tx, task: Task, state: SessionState | None = None) -> TaskView:
    """A task with its input and result. `state` is that of its session, if that is known better."""
    view = summarize_task(task)
    payload = load_payload(tx, task.id)
    _show_payload(view, payload)
    if task.executor == "session" and (session := find_session(tx, task.id)) is not None:
        view.session_name = session.name
        view.session_state = state or session.state
    return view


def summarize_task(task: Task) -> TaskView:
    """A task without its input and result."""
    info = _decode_info(task.info)
    return TaskView(
        id=task.id,
        agent_name=task.agent,
        status=task.status,
        state=task.state,
        requester=task.requester,
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
    )


def _show_payload(view: TaskView, payload: TaskPayload) -> None:
    view.input_ref, view.result_ref = payload.request_ref, payload.result_ref
    view.result = UNSET if payload.result is None else Raw(payload.result)
    if payload.request is not None:
        view.input = decode_request(payload.request).input
