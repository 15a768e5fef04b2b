"""The hub's state as one document, for other tools. The journal is the truth.

A token is exported without its secret, so nobody can use it elsewhere. An import takes back open
tasks that this gateway does not know: their sessions are not here, so they have failed. The
document may come from another kind of hub: only its tasks have to be complete.
"""

import contextlib
from hashlib import sha256
from typing import Annotated, Any

from msgspec import Meta, Struct, field

from gatepost.errors import InvalidId
from gatepost.events import AgentId, format_event_id, parse_event_id
from gatepost.events.envelope import EpochMs
from gatepost.hub import tasks
from gatepost.hub.sessions import open_sessions
from gatepost.hub.task_states import TERMINAL_STATES, TaskState
from gatepost.hub.task_tokens import list_task_tokens
from gatepost.hub.tasks import EXECUTOR_LOST, Task, TaskFilter, TaskPayload
from gatepost.journal import Tx
from gatepost.task_wire import Description, TaskStatus

_MAX_TASKS = 10_000

ShortText = Annotated[str, Meta(max_length=256)]
_SELECT_LOG = """
SELECT id, at, sender, recipient, type, status, reason FROM hub_message ORDER BY number
"""


class StateToken(Struct, omit_defaults=True):
    token_id: ShortText
    agent_name: ShortText = ""
    task_id: ShortText = ""
    capabilities: tuple[ShortText, ...] = ()
    issued: EpochMs = 0
    expiry: EpochMs = 0


class StateTask(Struct, omit_defaults=True):
    id: ShortText
    agent_name: AgentId
    status: TaskStatus
    description: Description = ""
    requester: AgentId = "operator"
    token_id: ShortText | None = None
    session_name: ShortText | None = None
    error: str | None = None
    created_at: EpochMs = 0


class StateMessage(Struct, omit_defaults=True):
    id: str
    timestamp: EpochMs = 0
    sender: str = ""
    recipient: str = ""
    type: str = ""
    status: str = ""
    reason: str | None = None


class RegistryState(Struct):
    tokens: list[tuple[str, StateToken]] = field(default_factory=list)


class RouterState(Struct):
    tasks: Annotated[list[tuple[str, StateTask]], Meta(max_length=_MAX_TASKS)] = field(
        default_factory=list
    )


class MessagesState(Struct):
    """Waiting messages stay in the mailboxes of their agents, and are not exported."""

    pending: list[tuple[str, list[dict[str, Any]]]] = field(default_factory=list)
    log: list[StateMessage] = field(default_factory=list)


class HubState(Struct):
    flushed_at: int = 0
    registry: RegistryState = field(default_factory=RegistryState)
    router: RouterState = field(default_factory=RouterState)
    messages: MessagesState = field(default_factory=MessagesState)


def export_state(tx: Tx) -> HubState:
    tokens = [StateToken(*_token_fields(each)) for each in list_task_tokens(tx)]
    token_ids = {each.task_id: each.token_id for each in tokens}
    names = {each.task_id: each.name for each in open_sessions(tx) if each.handle}
    found = [
        _export_task(task, token_ids.get(task.id), names.get(task.id))
        for task in tasks.list_tasks(tx, TaskFilter(), _MAX_TASKS)
    ]
    log = [StateMessage(*row) for row in tx.fetch_all(_SELECT_LOG)]
    return HubState(
        tx.now,
        RegistryState([(each.token_id, each) for each in tokens]),
        RouterState([(task.id, task) for task in found]),
        MessagesState([], log),
    )


def import_state(tx: Tx, state: HubState) -> int:
    """Take in the open tasks of another hub that are not known here; returns how many.

    Tokens are not taken, because their secrets are not known, nor is the log: it begins anew.
    """
    count = 0
    ended = {str(each) for each in TERMINAL_STATES}
    for _, exported in state.router.tasks:
        id = _own_id(exported)
        if exported.status not in ended and tasks.find_task(tx, id) is None:
            _import_task(tx, id, exported)
            count += 1
    return count


def _own_id(exported: StateTask) -> str:
    """The id of a task here: always the same one for the id that another kind of hub gave it."""
    with contextlib.suppress(InvalidId):
        return format_event_id(parse_event_id(exported.id))
    digits = f"{exported.created_at % 2**48:012x}{sha256(exported.id.encode()).hexdigest()}"
    return format_event_id(bytes.fromhex(f"{digits[:12]}7{digits[13:16]}8{digits[17:32]}"))


def _import_task(tx: Tx, id: str, exported: StateTask) -> None:
    task = Task(
        id=id,
        agent=exported.agent_name,
        requester=exported.requester,
        state=TaskState.FAILED,
        description=exported.description,
        error_code=EXECUTOR_LOST,
        error="it was imported, and its session is not here",
        created_at=exported.created_at or tx.now,
        updated_at=tx.now,
        ended_at=tx.now,
    )
    tasks.add_task(tx, task, TaskPayload(b"{}"))


def _export_task(task: Task, token_id: str | None, session_name: str | None) -> StateTask:
    status: Any = task.status
    head = (task.id, task.agent, status, task.description, task.requester)
    return StateTask(*head, token_id, session_name, task.error, task.created_at)


def _token_fields(token: Any) -> tuple[Any, ...]:
    return tuple(getattr(token, name) for name in StateToken.__struct_fields__)
