"""Tasks on the wire: requests, reports of executors, and the views of both sides."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field

from gatepost.events.envelope import Label
from gatepost.events.ids import AgentId, Digest, EventId, MsgId
from gatepost.wire.frame_types import Answer, Op

Description = Annotated[str, Meta(max_length=16_384)]
Note = Annotated[str, Meta(max_length=2000)]
Progress = Annotated[float, Meta(ge=0, le=1)]
EtaSeconds = Annotated[float, Meta(ge=0, le=10 * 365 * 86_400)]
TaskAgents = Annotated[list[AgentId], Meta(max_length=1000)]
RequiredCapabilities = Annotated[list[AgentId], Meta(max_length=16)]
TaskTtl = Annotated[float, Meta(gt=0, le=10 * 365 * 86_400)]
ReportAction = Literal["accept", "update", "complete", "fail"]
TaskStatus = Literal["pending", "running", "completed", "failed", "cancelled"]
ErrorCode = Annotated[str, Meta(pattern=r"\A[a-z][a-z0-9_]{0,63}\Z", max_length=64)]


class NewTask(Struct, omit_defaults=True, forbid_unknown_fields=True):
    """A task for agents by name, or for one agent that has all the required capabilities.

    The input is JSON: inline, or a blob that was uploaded before. A task fails if no agent accepts
    it within `ttl_secs`. A task that `may_wait` is taken although the gateway of its capability is
    offline.
    """

    from_agent: AgentId
    description: Description = ""
    to_agents: TaskAgents | UnsetType = UNSET
    required_capabilities: RequiredCapabilities | UnsetType = UNSET
    input: Raw | UnsetType = UNSET
    input_ref: Digest | UnsetType = UNSET
    task_id: EventId | UnsetType = UNSET
    idempotency_key: MsgId | UnsetType = UNSET
    task_type: Label = ""
    ttl_secs: TaskTtl | UnsetType = UNSET
    traceparent: Annotated[str, Meta(max_length=64)] | UnsetType = UNSET
    may_wait: bool = False


class TaskReport(Struct, omit_defaults=True, forbid_unknown_fields=True):
    """A report of an executor. `receipt` is the lease handle of the mail that brought the task.

    `accept` may state an ETA and begins the work. `complete` has a result, inline or as a blob
    that was uploaded before; `fail` has a code and a sentence.
    """

    task_id: EventId
    agent: AgentId
    action: ReportAction
    receipt: Annotated[str, Meta(max_length=64)] = ""
    eta_secs: EtaSeconds | UnsetType = UNSET
    progress: Progress | UnsetType = UNSET
    note: Note | UnsetType = UNSET
    result: Raw | UnsetType = UNSET
    result_ref: Digest | UnsetType = UNSET
    error_code: ErrorCode = "failed"
    error: Note = ""


class TaskView(Struct, omit_defaults=True):
    """A task. `status` has the hub's names, `state` is exact.

    A task in the state `unknown` waits until `unknown_until` for a report of `executor_node`. Such
    a report can amend an end that `is_presumed`; `amended_at` is when it did.

    Times are epoch milliseconds. A node is left out if it is this gateway.
    """

    id: str
    agent_name: str
    status: str
    state: str
    requester: str
    description: str = ""
    requester_node: str | None = None
    executor_node: str | None = None
    task_type: str = ""
    capability_id: str | None = None
    progress: float | None = None
    note: str | None = None
    eta_at: int | None = None
    input: Raw | UnsetType = UNSET
    input_ref: str | None = None
    result: Raw | UnsetType = UNSET
    result_ref: str | None = None
    error_code: str | None = None
    error: str | None = None
    token_id: str | None = None
    session_name: str | None = None
    session_state: str | None = None
    created_at: int = 0
    accepted_at: int | None = None
    started_at: int | None = None
    updated_at: int = 0
    ended_at: int | None = None
    attempt: int = 1
    unknown_until: int | None = None
    is_presumed: bool = False
    amended_at: int | None = None

    @property
    def has_ended(self) -> bool:
        return self.ended_at is not None


class CreatedTask(Struct, omit_defaults=True):
    """The tasks one request made: one for each agent; or the code and sentence of its refusal."""

    tasks: list[TaskView] = field(default_factory=list)
    code: str = ""
    error: str = ""
    retry_after: float | None = None


class RefusedReport(Struct, omit_defaults=True):
    """A report that changed nothing, or a result that failed its task because it does not fit.

    `index` is its place in the operation.
    """

    index: int
    code: str
    error: str


# -- operations


class TaskCreate(Op, tag="task_create"):
    tasks: Annotated[list[NewTask], Meta(min_length=1, max_length=1000)]


class TaskReports(Op, tag="task_report"):
    reports: Annotated[list[TaskReport], Meta(min_length=1, max_length=1000)]


class TaskAwait(Op, tag="task_await"):
    """Wait for the end of a task, or with `known` for a change after that moment."""

    task_id: EventId
    wait_secs: Annotated[float, Meta(ge=0, le=3600)] = 30.0
    known: Annotated[int, Meta(ge=0, le=2**53)] = 0


class TaskCancel(Op, tag="task_cancel"):
    task_id: EventId
    reason: Note = ""


# -- answers


class TasksCreated(Answer, tag="tasks_created"):
    results: list[CreatedTask]


class TasksReported(Answer, tag="tasks_reported"):
    refused: list[RefusedReport] = field(default_factory=list)


class TaskAwaited(Answer, tag="task_awaited"):
    task: TaskView
