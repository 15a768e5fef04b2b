"""Tasks after a restore: of a journal that came back from a backup, and of its former peers."""

import msgspec

from gatepost.delivery.outgoing import EMPTY_PAYLOAD
from gatepost.events import EventKind, TaskInfo, format_event_id
from gatepost.hub import tasks
from gatepost.hub.executed_tasks import ExecutedTasks
from gatepost.hub.task_events import TaskEvents
from gatepost.hub.task_states import TaskState
from gatepost.hub.tasks import CANCELLED, EXECUTOR_LOST, Task, failure_class_of
from gatepost.journal.transaction import Tx

_SELECT_OPEN_HERE = """
SELECT id FROM task WHERE executor IN ('agent', 'session') AND ended_at IS NULL LIMIT ?
"""
_SELECT_ENDED_FOR = """
SELECT id FROM task WHERE requester_node = ? AND ended_at IS NOT NULL
ORDER BY ended_at DESC LIMIT ?
"""
_MAX_REPEATED = 1000
_RESTORED = "its gateway was restored from a backup"


class RestoredTasks:
    """All of it runs in the writer's thread."""

    def __init__(self, executed: ExecutedTasks, events: TaskEvents) -> None:
        self._executed = executed
        self._events = events

    def end_restored_tasks(self, tx: Tx, limit: int = 100) -> int:
        """In a restored journal: fail the open tasks, for nobody knows what became of them."""
        found = tx.fetch_all(_SELECT_OPEN_HERE, (limit,))
        for (id,) in found:
            task = tasks.load_task(tx, format_event_id(id))
            if task.state is TaskState.PENDING:
                self._executed.refuse_task(tx, task, EXECUTOR_LOST, _RESTORED)
            else:
                self._executed.fail_task(tx, task.id, EXECUTOR_LOST, _RESTORED)
        return len(found)

    def report_ends_again(self, tx: Tx, node: str) -> None:
        """Another gateway lost its journal: report the latest ends of the tasks it requested."""
        for (id,) in tx.fetch_all(_SELECT_ENDED_FOR, (node, _MAX_REPEATED)):
            self._report_end(tx, tasks.load_task(tx, format_event_id(id)))

    def _report_end(self, tx: Tx, task: Task) -> None:
        if task.state is TaskState.COMPLETED:
            known = tasks.load_payload(tx, task.id)
            payload = EMPTY_PAYLOAD if known.result is None else known.result
            kind, info = EventKind.TASK_COMPLETE, TaskInfo(progress=1.0)
            self._events.report(tx, task, kind, info, payload, known.result_ref)
            return
        code = task.error_code or CANCELLED
        payload = msgspec.json.encode({"code": code, "error": task.error or ""})
        info = TaskInfo(failure_class=failure_class_of(code))
        self._events.report(tx, task, EventKind.TASK_FAILED, info, payload)
