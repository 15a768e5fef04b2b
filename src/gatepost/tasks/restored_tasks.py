"""Tasks in a journal that came back from a backup."""

from functools import partial

from gatepost.events import format_event_id
from gatepost.journal.transaction import Tx
from gatepost.tasks import task_table
from gatepost.tasks.executed_tasks import ExecutedTasks
from gatepost.tasks.task_states import TaskState
from gatepost.tasks.task_sweeps import end_each
from gatepost.tasks.task_table import EXECUTOR_LOST

_SELECT_OPEN_HERE = """
SELECT id FROM task WHERE executor IN ('agent', 'session') AND ended_at IS NULL LIMIT ?
"""
_RESTORED = "its gateway was restored from a backup"


class RestoredTasks:
    """Runs in the writer's thread."""

    def __init__(self, executed: ExecutedTasks) -> None:
        self._executed = executed

    def end_restored_tasks(self, tx: Tx, limit: int = 100) -> int:
        """Fail the open tasks, because their outcome is unknown."""
        found = tx.fetch_all(_SELECT_OPEN_HERE, (limit,))
        ids = [format_event_id(id) for (id,) in found]
        stop = partial(self._executed.stop_task, error=_RESTORED)
        return len(end_each(tx, ids, self._fail, stop))

    def _fail(self, tx: Tx, id: str) -> None:
        task = task_table.load_task(tx, id)
        if task.state is TaskState.PENDING:
            self._executed.refuse_task(tx, task, EXECUTOR_LOST, _RESTORED)
        else:
            self._executed.fail_task(tx, id, EXECUTOR_LOST, _RESTORED)
