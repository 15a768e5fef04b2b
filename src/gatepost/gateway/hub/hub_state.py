"""The hub's state as one document, for other tools. The journal is the truth.

A token is exported without its secret, so nobody can use it elsewhere. An import takes back open
tasks that this gateway does not know: their sessions are not here, so they have failed.
"""

from typing import Annotated, Any

from msgspec import Meta, Struct, field

from gatepost.events import AgentId, EventId
from gatepost.events.envelope import EpochMs
from gatepost.hub import tasks
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
    agent_name: ShortText
    task_id: ShortText
    capabilities: tuple[ShortText, ...] = ()
    issued: EpochMs = 0
    expiry: EpochMs = 0


class StateTask(Struct, omit_defaults=True):
    id: EventId
    agent_name: AgentId
    status: TaskStatus
    description: Description = ""
    requester: AgentId = "operator"
    session_name: ShortText | None = None
    error: str | None = None
    created_at: EpochMs = 0


class StateMessage(Struct, omit_defaults=True):
    id: str
    timestamp: EpochMs
    sender: str
    recipient: str
    type: str
    status: str
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
    found = tasks.list_tasks(tx, TaskFilter(), _MAX_TASKS)
    log = [StateMessage(*row) for row in tx.fetch_all(_SELECT_LOG)]
    return HubState(
        tx.now,
        RegistryState([(each.token_id, each) for each in tokens]),
        RouterState([(task.id, _export_task(task)) for task in found]),
        MessagesState([], log),
    )


def import_state(tx: Tx, state: HubState) -> int:
    """Take in the open tasks of another hub that are not known here; returns how many.

    Tokens are not taken, because their secrets are not known, nor is the log: it begins anew.
    """
    count = 0
    ended = {str(each) for each in TERMINAL_STATES}
    for _, exported in state.router.tasks:
        if exported.status not in ended and tasks.find_task(tx, exported.id) is None:
            _import_task(tx, exported)
            count += 1
    return count


def _import_task(tx: Tx, exported: StateTask) -> None:
    task = Task(
        id=exported.id,
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


def _export_task(task: Task) -> StateTask:
    status: Any = task.status
    head = (task.id, task.agent, status, task.description, task.requester)
    return StateTask(*head, None, task.error, task.created_at)


def _token_fields(token: Any) -> tuple[Any, ...]:
    return tuple(getattr(token, name) for name in StateToken.__struct_fields__)
