"""Repeated reports: the requester's gateway asks for them, and the executor's answers.

An executor's gateway reports the end of a task once, in its outbox. The requester may never read
that event: it was away for so long that the event left the outbox, the archive has no payloads, the
journal of either was restored, or the event was left out and none followed that would show it. So
the requester's gateway asks: with the signal `report_request`, which refers to the request event.

- It asks for each task that another gateway executes and whose end it does not know, or has only
  presumed, when that gateway has been silent about it for a 64th of `hub.abandon_secs`, and
  whenever the silence has doubled since. So it asks at most seven times before it presumes an end,
  seven times after that, and once more after each of its own starts. It does not ask while the
  delivery of the request is open: that has an end too.
- It asks at once when its link to that gateway skips events, at most once a minute for each.
- The executor's gateway answers with the end of the task, or with the progress of one that runs.
  It says nothing while an earlier report of the task waits in its outbox: the requester will read
  that one. So a requester has to read one answer before it gets the next.

The answer is an event like any other. If events before it were left out, it shows that too.
"""

from functools import cache

import msgspec

from gatepost.delivery.decisions import TaskReportWanted
from gatepost.delivery.delivery_reads import is_open
from gatepost.delivery.outgoing import EMPTY_PAYLOAD
from gatepost.errors import Forbidden
from gatepost.events import EventKind, Signal, TaskInfo, format_event_id, parse_event_id
from gatepost.journal.outbox_reads import UNREAD_SQL
from gatepost.journal.transaction import Tx
from gatepost.tasks import task_table
from gatepost.tasks.requested_tasks import find_executor_node, find_request
from gatepost.tasks.task_changes import HubParts
from gatepost.tasks.task_events import TaskEvents
from gatepost.tasks.task_states import TaskState
from gatepost.tasks.task_table import CANCELLED, PRESUMED, Task, failure_class_of

# The first question comes after `abandon_secs` divided by two to this power.
_DOUBLINGS = 6
_MOST_AT_ONCE = 1000
_SKIP_PAUSE_MS = 60_000
# A presumed end is no longer asked about when it is older than this gateway waits for the word of
# an executor. That end is also the last change of its task.
_SELECT_AWAITED_OF = f"""
SELECT id FROM task WHERE executor = 'remote' AND ended_at IS NULL AND executor_node = ?1
UNION ALL
SELECT id FROM task WHERE executor = 'remote' AND ended_at > ?2 AND is_presumed
    AND executor_node = ?1
LIMIT {_MOST_AT_ONCE}
"""
_SELECT_SILENT = """
SELECT id FROM task WHERE executor = 'remote' AND ended_at IS NULL AND ({open})
UNION ALL
SELECT id FROM task WHERE executor = 'remote' AND is_presumed AND ({presumed})
LIMIT {most}
"""
_SELECT_ENDED_FOR = f"""
SELECT id FROM task WHERE requester_node = ? AND ended_at IS NOT NULL
ORDER BY ended_at DESC LIMIT {_MOST_AT_ONCE}
"""
# A report that is kept for its reader and not taken yet.
_SELECT_UNREAD = f"""
{UNREAD_SQL.format(ref="?", node="?")}
AND o.kind IN ('task_accept', 'task_update', 'task_complete', 'task_failed') LIMIT 1
"""


class ReportRequests:
    """Runs in the writer's thread."""

    def __init__(self, parts: HubParts, events: TaskEvents) -> None:
        self._parts = parts
        self._events = events
        # When this process last looked for silent tasks; None before the first time.
        self._looked_at: int | None = None
        self._skipped_at: dict[str, int] = {}

    # -- the requester's gateway

    def ask_of_silent_tasks(self, tx: Tx) -> int:
        """Ask for the tasks whose silence has doubled since the last call; returns how many."""
        before, self._looked_at = self._looked_at, tx.now
        abandon = int(self._parts.settings.abandon_secs * 1000)
        silences = [abandon >> number for number in range(_DOUBLINGS, -1, -1)]
        if before is None:
            # It is unknown which of them an earlier process has asked for.
            spans = [(tx.now - abandon, tx.now - silences[0])]
        else:
            spans = [(before - silence, tx.now - silence) for silence in silences]
        sql = _select_silent(len(spans))
        return self._ask(
            tx, tx.fetch_all(sql, tuple(moment for span in spans for moment in span) * 2)
        )

    def ask_after_skip(self, tx: Tx, node: str) -> int:
        """Events of `node` are gone: ask for the tasks that it executes; returns how many."""
        last = self._skipped_at.get(node)
        if last is not None and last <= tx.now < last + _SKIP_PAUSE_MS:
            return 0
        self._skipped_at[node] = tx.now
        since = tx.now - int(self._parts.settings.abandon_secs * 1000)
        return self._ask(tx, tx.fetch_all(_SELECT_AWAITED_OF, (node, since)))

    def _ask(self, tx: Tx, found: list[tuple[bytes]]) -> int:
        own, writer = self._parts.core.node.id, self._parts.core.coordinator.writer
        gateways = self._parts.core.routes.directory.gateways
        asked = 0
        for (id,) in found:
            task = task_table.load_task(tx, format_event_id(id))
            request = find_request(tx, own, task)
            if is_open(tx, parse_event_id(request)):
                continue
            node = find_executor_node(tx, task, request)
            if node in gateways and node is not None:
                writer.append_signal(tx, node, request, Signal(signal="report_request"))
                asked += 1
        return asked

    # -- the executor's gateway

    def answer_request(self, tx: Tx, wanted: TaskReportWanted) -> None:
        """Report a task again, unless it is unknown or has not begun."""
        task = task_table.find_requested_task(tx, wanted.event_id)
        if task is None:
            return
        if task.requester_node != wanted.source:
            raise Forbidden(f"{wanted.source} asks for task {task.id}, which another requested")
        if tx.fetch_one(_SELECT_UNREAD, (parse_event_id(task.id), wanted.source)) is not None:
            return
        if task.has_ended:
            self._report_end(tx, task)
        elif task.state is TaskState.RUNNING:
            info = TaskInfo(progress=task.progress, eta_at=task.eta_at)
            self._events.report(tx, task, EventKind.TASK_UPDATE, info)

    def report_ends_again(self, tx: Tx, node: str) -> None:
        """Another gateway lost its journal: report the latest ends of the tasks it requested."""
        for (id,) in tx.fetch_all(_SELECT_ENDED_FOR, (node,)):
            self._report_end(tx, task_table.load_task(tx, format_event_id(id)))

    def _report_end(self, tx: Tx, task: Task) -> None:
        if task.state is TaskState.COMPLETED:
            known = task_table.load_payload(tx, task.id)
            payload = EMPTY_PAYLOAD if known.result is None else known.result
            kind, info = EventKind.TASK_COMPLETE, TaskInfo(progress=1.0)
            self._events.report(tx, task, kind, info, payload, known.result_ref)
            return
        code = task.error_code or CANCELLED
        mark = {PRESUMED: "yes"} if task.is_presumed else {}
        payload = msgspec.json.encode({"code": code, "error": task.error or "", **mark})
        info = TaskInfo(failure_class=failure_class_of(code))
        self._events.report(tx, task, EventKind.TASK_FAILED, info, payload)


@cache
def _select_silent(spans: int) -> str:
    """The query for the tasks whose last change is in one of `count` spans of time."""
    return _SELECT_SILENT.format(
        open=" OR ".join(["updated_at > ? AND updated_at <= ?"] * spans),
        presumed=" OR ".join(["ended_at > ? AND ended_at <= ?"] * spans),
        most=_MOST_AT_ONCE,
    )
