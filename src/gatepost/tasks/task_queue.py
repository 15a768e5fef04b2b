"""The queue of tasks that wait for a session, shared fairly between requesters.

A *source* is another gateway, or an agent of this one. A source gets a fair share of the queue
(`fair_share`), so one that floods it is refused while others still find a place; an incident names
it. The operator has no share, and the last places are the operator's alone.

Sessions go to sources in turns: to the one with the fewest sessions, and of several such to the one
whose turn is longest ago. So a task waits for earlier tasks of its source, and for one turn of each
other source. Within a source, the oldest task is first.
"""

from collections.abc import Iterator

from gatepost.config.hub_settings import HubSettings
from gatepost.delivery.abuse import AbuseKind, AbuseLog
from gatepost.errors import TaskQueueFull
from gatepost.fair_share import has_share, operator_places
from gatepost.journal.transaction import Tx
from gatepost.tasks import task_table
from gatepost.tasks.task_table import Task


class TaskQueue:
    """Runs in the writer's thread."""

    def __init__(self, settings: HubSettings, abuse: AbuseLog) -> None:
        self._settings = settings
        self._abuse = abuse
        # Waiting source → its last turn. In memory only.
        self._turns: dict[str, int] = {}
        self._turn = 0

    def require_place(self, tx: Tx, source: str | None, coming: int = 0) -> None:
        """Raise TaskQueueFull if a task may not wait for a session, behind those `coming`.

        `source` is None for the operator. Open tasks up to the number of places have a session at
        once and do not wait.
        """
        count = task_table.count_open_tasks(tx, "session")
        waiting = coming + count - self._settings.max_sessions
        if waiting < 0:
            return
        free = self._settings.max_queued - waiting
        if free <= 0:
            raise _queue_full(f"{waiting} tasks wait for a session already")
        if source is not None:
            self._require_share(tx, source, coming, count, free)

    def _require_share(self, tx: Tx, source: str, coming: int, count: int, free: int) -> None:
        # Tasks that are pending only until their session is launched do not wait.
        running = count - task_table.count_waiting_tasks(tx)
        launching = max(0, self._settings.max_sessions - running)
        held = max(0, task_table.count_waiting_tasks(tx, source) + coming - launching)
        if not has_share(held, free - operator_places(self._settings.max_queued)):
            why = f"{held} tasks of {source} wait for a session, which is its share of the queue"
            self._abuse.report_abuse(source, AbuseKind.TASK_FLOOD, why)
            raise _queue_full(why)

    def next_tasks(self, tx: Tx, limit: int) -> Iterator[Task]:
        """The tasks to claim next: those that wait, and have not been claimed for a session."""
        sources = task_table.list_waiting_sources(tx)
        self._turns = {each: self._turns.get(each, 0) for each in sources}
        busy = task_table.count_sessions_by_source(tx)
        waiting: dict[str, list[Task]] = {}
        while sources and limit:
            source = min(sources, key=lambda each: (busy.get(each, 0), self._turns[each]))
            if source not in waiting:
                waiting[source] = task_table.unclaimed_tasks(tx, source, limit)[::-1]
            if not waiting[source]:
                sources.remove(source)
                continue
            self._turn += 1
            self._turns[source] = self._turn
            busy[source] = busy.get(source, 0) + 1
            limit -= 1
            yield waiting[source].pop()


def _queue_full(why: str) -> TaskQueueFull:
    return TaskQueueFull(f"{why}; try again later, or raise hub.max_queued", retry_after=1.0)
