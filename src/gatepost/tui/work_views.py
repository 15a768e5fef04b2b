"""Views of work: tasks, messages that were sent from here, and the journey of one."""

from typing import Any, ClassVar
from urllib.parse import quote

from msgspec import Raw, UnsetType

from gatepost.display_text import format_age, format_time, payload_text
from gatepost.errors import GatepostError
from gatepost.tui.actions import Action, cancel_task
from gatepost.tui.operator_api import OperatorApi
from gatepost.tui.row_filter import RowFilter
from gatepost.tui.table_view import ID_WIDTH, MAX_ROWS, Column, Fact, TableView
from gatepost.wire.hub_views import LogView, TaskList
from gatepost.wire.overview_views import SentMessageView, SentPage, Topic
from gatepost.wire.report_views import Journey, JourneyStep
from gatepost.wire.tasks import TaskView
from gatepost.wire.view_texts import describe_step, describe_task_status

_TASKS = "/api/hub/tasks"
_TEXT_CHARS = 4000
# The end of a session's log that is shown with its task.
_LOG_BYTES = 4000
_TERM_STYLES = {"dead_letters": "red", "expired": "red", "waiting": "yellow"}


class TasksView(TableView[TaskView]):
    name = "tasks"
    summary = "tasks that were requested or are executed here, newest first"
    topics: ClassVar[frozenset[Topic]] = frozenset(("tasks",))
    columns = (
        Column("Task", ID_WIDTH, is_wide=True),
        Column("Agent", 16),
        Column("Status", 20),
        Column("Done", 5, is_number=True),
        Column("ETA", 8),
        Column("Created", 8, is_wide=True),
        Column("Description"),
    )
    empty = "no tasks yet"
    searched = frozenset(("agent", "status"))

    async def load(self, api: OperatorApi, wanted: RowFilter) -> list[TaskView]:
        named = wanted.named(self.searched)
        return (await api.get(_TASKS, TaskList, limit=MAX_ROWS, **named)).tasks

    def key(self, item: TaskView) -> str:
        return item.id

    def cells(self, item: TaskView, now_ms: int) -> tuple[str, ...]:
        done = "" if item.progress is None else f"{item.progress:.0%}"
        created = format_age(item.created_at, now_ms)
        said = item.note if item.note and not item.has_ended else ""
        text = f"{item.description} · {said}" if said else item.description
        status = describe_task_status(item)
        return item.id, item.agent_name, status, done, _eta_text(item, now_ms), created, text

    def style(self, item: TaskView) -> str:
        if item.status == "failed":
            return "red"
        return "dim" if item.has_ended else ""

    async def describe(self, api: OperatorApi, item: TaskView, now_ms: int) -> list[Fact]:
        path = f"{_TASKS}/{quote(item.id, safe='')}"
        task = await api.get(path, TaskView)
        return [
            ("task", task.id),
            ("agent", task.agent_name),
            ("status", describe_task_status(task)),
            ("description", task.description),
            ("requested by", task.requester),
            ("executed at", task.executor_node or ""),
            ("capability", task.capability_id or ""),
            ("created", format_time(task.created_at)),
            ("ETA", "" if task.eta_at is None else format_time(task.eta_at)),
            ("progress", "" if task.progress is None else f"{task.progress:.0%}"),
            ("note", task.note or ""),
            ("error", task.error or ""),
            ("input", "" if isinstance(task.input, UnsetType) else _payload(task.input)),
            ("result", "" if isinstance(task.result, UnsetType) else _payload(task.result)),
            ("log", await _read_log(api, path)),
        ]

    def actions(self, item: TaskView) -> tuple[Action, ...]:
        return () if item.has_ended else (cancel_task(item),)


def _eta_text(task: TaskView, now_ms: int) -> str:
    if task.eta_at is None or task.has_ended:
        return ""
    return "late" if task.eta_at < now_ms else format_age(now_ms, task.eta_at)


async def _read_log(api: OperatorApi, path: str) -> str:
    """The end of the log of a task's session, or why there is none."""
    try:
        return (await api.get(f"{path}/log", LogView, offset=-_LOG_BYTES, wait_secs=0)).text
    except GatepostError as error:
        return f"none: {error.message}"


def _payload(content: Raw) -> str:
    return payload_text(content)[:_TEXT_CHARS]


class MessagesView(TableView[SentMessageView]):
    name = "messages"
    summary = "messages that were sent from here, newest first"
    topics: ClassVar[frozenset[Topic]] = frozenset(("messages",))
    columns = (
        Column("Message", ID_WIDTH),
        Column("From", 14),
        Column("To", 14),
        Column("Became", 12),
        Column("Age", 8),
        Column("Gateway", 14, is_wide=True),
        Column("Conversation", is_wide=True),
        Column("Reason", is_wide=True),
    )
    empty = "no messages; / with agent:NAME term:waiting conversation:ID node:NODE searches"
    searched = frozenset(("id", "agent", "conversation", "term", "node"))

    async def load(self, api: OperatorApi, wanted: RowFilter) -> list[SentMessageView]:
        named = wanted.named(self.searched)
        return (await api.get("/v1/messages", SentPage, limit=MAX_ROWS, **named)).messages

    def key(self, item: SentMessageView) -> str:
        return item.event_id

    def cells(self, item: SentMessageView, now_ms: int) -> tuple[str, ...]:
        facts = (item.event_id, item.from_agent, item.to_agent, item.term.replace("_", " "))
        age = format_age(item.sent_at, now_ms)
        return (*facts, age, item.node or "", item.corr_id, item.reason or item.outcome or "")

    def style(self, item: SentMessageView) -> str:
        return _TERM_STYLES.get(item.term, "")

    def open(self, item: SentMessageView) -> "TableView[Any]":
        return JourneyView(item.event_id)


class JourneyView(TableView[JourneyStep]):
    """Every step of one message, at every gateway."""

    name = "journey"
    summary = "every step of a message, at every gateway"
    topics: ClassVar[frozenset[Topic]] = frozenset(("messages", "ledger"))
    columns = (
        Column("Time", 23),
        Column("Gateway", 16),
        Column("Step"),
        Column("Event", ID_WIDTH, is_wide=True),
    )
    empty = "no steps"

    def __init__(self, ref: str) -> None:
        self._ref = ref
        self._replies: frozenset[str] = frozenset()

    @property
    def title(self) -> str:
        return f"journey of {self._ref}"

    async def load(self, api: OperatorApi, wanted: RowFilter) -> list[JourneyStep]:
        journey = await api.get(f"/v1/trace/{quote(self._ref, safe='')}", Journey)
        self._replies = frozenset(s.event_id for s in journey.steps if s.kind == "reply")
        missing = [
            JourneyStep(0, node, "missing", "", detail=why)
            for node, why in journey.unreachable.items()
        ]
        return [*journey.steps, *missing]

    def key(self, item: JourneyStep) -> str:
        return f"{item.at} {item.node} {item.what} {item.event_id} {item.agent} {item.peer}"

    def cells(self, item: JourneyStep, now_ms: int) -> tuple[str, ...]:
        if item.what == "missing":
            return "", item.node, f"its steps are missing: {item.detail}", ""
        time = f"{format_time(item.at)}.{item.at % 1000:03d}"
        return time, item.node, describe_step(item, self._replies), item.event_id

    def style(self, item: JourneyStep) -> str:
        return "yellow" if item.what == "missing" else ""
