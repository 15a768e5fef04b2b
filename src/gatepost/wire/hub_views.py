"""Tasks, agents, tokens and sessions as the hub's API shows them."""

from msgspec import UNSET, Raw, Struct, UnsetType, field

from gatepost.wire.tasks import TaskView


class HubAgentView(Struct, omit_defaults=True):
    """An agent that this hub runs. A session sees the details of its own agent only."""

    name: str
    description: str
    capabilities: tuple[str, ...]
    image: str | UnsetType = UNSET
    hardened: bool | UnsetType = UNSET
    command: tuple[str, ...] | UnsetType = UNSET
    runtime: str | UnsetType = UNSET


class RegistryProblemView(Struct):
    file: str
    line: int
    reason: str


class HubAgents(Struct):
    agents: list[HubAgentView]
    problems: list[RegistryProblemView] = field(default_factory=list)


class TaskList(Struct):
    tasks: list[TaskView]


class HubTask(TaskView, kw_only=True, omit_defaults=True):
    """A task in the form of the hub's clients, which expect these fields in every answer.

    So does `result`, unless it is a blob.
    """

    token_id: str | None
    session_name: str | None
    error: str | None


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


class SessionView(Struct, omit_defaults=True):
    """A session of this hub: one run of an agent's command for one task.

    `backend` is its runtime. Times are epoch milliseconds.
    """

    session_name: str
    task_id: str
    agent_name: str
    backend: str
    state: str
    container_name: str | None = None
    exit_code: int | None = None
    reason: str | None = None
    created_at: int = 0
    ended_at: int | None = None


class HubSessions(Struct):
    sessions: list[SessionView]


class LogView(Struct):
    """A piece of a session's log, from `offset` up to `end`. `is_complete`: nothing follows.

    `session_state` is the state of the session when the piece was read.
    """

    offset: int
    end: int
    text: str
    is_complete: bool
    session_state: str | None = None


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
