"""Tasks: their progress and ETA, the log of one that follows, and cancelling."""

from collections.abc import Mapping, Sequence

from gatepost.durations import format_duration
from gatepost.errors import GatepostError
from gatepost.web.api_calls import ApiCalls
from gatepost.web.html import NOTHING, Child, Markup, join, tag
from gatepost.web.layout import (
    Frame,
    action_link,
    command_text,
    empty,
    facts,
    heading,
    link,
    panel,
    table,
)
from gatepost.web.words import ago, chip, task_tone
from gatepost.wire.hub_views import HubTask, LogView, TaskList
from gatepost.wire.tasks import TaskView

_PAGE = 100
_LOG_TAIL = -32_768


async def tasks_page(
    frame: Frame, calls: ApiCalls, given: Mapping[str, str]
) -> tuple[str, list[Child]]:
    wanted = {name: given[name] for name in ("status", "agent", "after") if given.get(name)}
    found = await calls.get("/api/hub/tasks", TaskList, limit=_PAGE, **wanted)
    older = NOTHING
    if len(found.tasks) == _PAGE:
        older = tag("p", {"class": "more"}, link(f"/tasks?after={found.tasks[-1].id}", "Older"))
    return "Tasks", [
        heading("Tasks"),
        panel("list", "Newest first", task_table(found.tasks, frame.now), older, live="tasks"),
    ]


def task_table(tasks: Sequence[TaskView], now: int) -> Markup:
    columns = (("Task", ""), ("State", "w-s"), ("Progress", "w-pr"))
    rows = (
        (
            join(
                [
                    link(f"/tasks/{each.id}", each.description or each.task_type or each.id),
                    tag("div", {"class": "dim"}, each.agent_name),
                ]
            ),
            chip(task_tone(each.state), each.state),
            _progress(each, now),
        )
        for each in tasks
    )
    if not tasks:
        return empty("No tasks yet. ", "gatepost task create AGENT 'what to do'")
    return table("Tasks", columns, rows)


def _progress(task: TaskView, now: int) -> Markup:
    words = eta_text(task, now)
    if task.ended_at is not None or task.progress is None:
        return tag("div", {"class": "dim"}, words)
    late = task.eta_at is not None and task.eta_at < now
    bar = tag(
        "progress",
        {
            "max": 100,
            "value": round(task.progress * 100),
            "class": "late" if late else None,
            "aria-label": f"Progress of {task.id}",
        },
    )
    return join([bar, tag("div", {"class": "dim"}, words)])


def eta_text(task: TaskView, now: int) -> str:
    """How long it takes still, or how it ended."""
    if task.ended_at is not None:
        return task.error or task.error_code or task.state
    if task.eta_at is None:
        return task.note or "no ETA yet"
    secs = (task.eta_at - now) / 1000
    if secs < 0:
        return f"{format_duration(-secs)} over its ETA"
    return f"{format_duration(secs)} left"


async def task_page(frame: Frame, calls: ApiCalls, id: str) -> tuple[str, list[Child]]:
    task = await calls.get(f"/api/hub/tasks/{id}", HubTask)
    rows: list[tuple[str, Child]] = [
        ("State", chip(task_tone(task.state), task.state)),
        ("Agent", task.agent_name),
        ("Requested by", task.requester),
        ("Progress", _progress(task, frame.now)),
        ("Created", ago(task.created_at, frame.now)),
    ]
    if task.executor_node:
        rows.append(("Executed at", task.executor_node))
    if task.note:
        rows.append(("Note", task.note))
    if task.error:
        rows.append(("Error", task.error))
    cancel: Child = None
    if task.ended_at is None:
        cancel = action_link(frame, "cancel-task", "Cancel task", {"id": id}, danger=True)
    same = tag("div", {"class": "dim"}, command_text(f"gatepost task show {id}"))
    return f"Task {id[:8]}", [
        heading(task.description or "Task", cancel),
        panel("facts", "Facts", facts(*rows), same, live="tasks", size="narrow"),
        panel("log", "Log", await _log(calls, id), live="tasks messages", size="wide"),
    ]


async def _log(calls: ApiCalls, id: str) -> Markup:
    try:
        log = await calls.get(f"/api/hub/tasks/{id}/log", LogView, offset=_LOG_TAIL)
    except GatepostError as error:
        return empty(error.message)
    state = "complete" if log.is_complete else "follows"
    return join(
        [
            tag(
                "pre",
                {"class": "log", "tabindex": 0, "data-follow": not log.is_complete},
                log.text or "nothing yet",
            ),
            tag("p", {"class": "dim"}, f"{log.end:,} bytes, {state}"),
        ]
    )
