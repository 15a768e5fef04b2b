"""Reports of self-hosted agents, which accept, update and end their tasks."""

from collections.abc import Iterable

from msgspec import UnsetType

from gatepost.access.agent_sessions import find_missing_scope
from gatepost.access.scopes import REPORT_SCOPES
from gatepost.delivery.blob_records import find_blob
from gatepost.delivery.outgoing import EMPTY_PAYLOAD
from gatepost.errors import Forbidden, UnknownTask, WrongState
from gatepost.events import fingerprint_content, format_event_id
from gatepost.journal.transaction import Tx
from gatepost.tasks import task_table
from gatepost.tasks.executed_tasks import ExecutedTasks
from gatepost.tasks.task_changes import HubParts
from gatepost.tasks.task_states import TaskState
from gatepost.tasks.task_sweeps import end_each
from gatepost.tasks.task_table import Task, TaskPayload
from gatepost.wire.tasks import TaskReport

_SELECT_SILENT = """
SELECT id FROM task WHERE executor = 'agent' AND state IN ('accepted', 'running')
    AND ended_at IS NULL AND updated_at < ?1
    AND NOT EXISTS (
        SELECT 1 FROM task_token t
        WHERE t.task = task.id AND t.revoked_at IS NULL AND t.expires_at > ?2
    )
    LIMIT ?3
"""


class AgentReports:
    """Runs in the writer's thread."""

    def __init__(self, parts: HubParts, executed: ExecutedTasks) -> None:
        self._parts = parts
        self._executed = executed
        # Agent → lease handles of the mail whose tasks are being accepted.
        self._handles: dict[str, list[str]] = {}
        self._accepted: set[str] = set()
        # When this gateway first looked for silent agents.
        self._listening_since: int | None = None

    def apply_reports(self, tx: Tx, reports: Iterable[TaskReport]) -> list[Task]:
        """Apply reports in their order, and settle the mail of all accepted tasks together.

        If one of them is refused, its error is raised; the caller undoes the others.
        """
        self._handles.clear()
        self._accepted.clear()
        changed = [self._apply_report(tx, report) for report in reports]
        ack = self._parts.core.coordinator.ack
        for agent, handles in self._handles.items():
            # Do not begin a task whose lease timed out: another consumer may have leased its mail.
            for failure in ack(tx, agent, handles, [], {}).failures:
                raise failure.to_error()
        self._accepted.clear()
        return changed

    def is_being_settled(self, task_id: str) -> bool:
        """Whether the mail of a task is being settled because its agent accepts the task."""
        return task_id in self._accepted

    def _apply_report(self, tx: Tx, report: TaskReport) -> Task:
        eta_at = None
        if not isinstance(report.eta_secs, UnsetType):
            eta_at = tx.now + int(report.eta_secs * 1000)
        if report.action == "accept":
            return self._accept(tx, report, eta_at)
        if report.action == "update":
            return self._update(tx, report, eta_at)
        task = self._load_own_task(tx, report)
        if report.action == "complete":
            return self._executed.complete_task(tx, task.id, read_result(tx, report))
        return self._executed.fail_task(tx, task.id, report.error_code, report.error)

    def _load_own_task(self, tx: Tx, report: TaskReport) -> Task:
        task = task_table.find_requested_task(tx, report.task_id)
        if task is None:
            raise UnknownTask(f"this gateway knows no task {report.task_id}")
        if task.agent != report.agent or task.executor == "remote":
            raise Forbidden(f"task {task.id} is not a task of {report.agent}")
        return task

    def _update(self, tx: Tx, report: TaskReport, eta_at: int | None) -> Task:
        note = None if isinstance(report.note, UnsetType) else report.note
        progress = None if isinstance(report.progress, UnsetType) else report.progress
        found = self._executed.try_update(tx, report, progress, note, eta_at)
        if found is None:
            task = self._load_own_task(tx, report)
            found = self._executed.update_task(tx, task.id, progress, note, eta_at)
        return found

    def _accept(self, tx: Tx, report: TaskReport, eta_at: int | None) -> Task:
        """Accept a task and begin it. Repeating the call, after a lost answer, changes nothing."""
        begun = self._executed.try_begin(tx, report.task_id, report.agent, eta_at)
        if begun is None:
            task = self._load_own_task(tx, report)
            if task.executor == "session":
                raise WrongState(f"task {task.id} is for a session of {task.agent}")
            if task.state is TaskState.RUNNING:
                # The mail may come again if the task was accepted without a lease.
                self._note_settled(report)
                return task
            if task.state is TaskState.PENDING:
                self._executed.accept_task(tx, task.id, eta_at)
            begun = self._executed.start_task(tx, task.id)
        self._note_settled(report)
        return begun

    def _note_settled(self, report: TaskReport) -> None:
        if report.receipt:
            self._handles.setdefault(report.agent, []).append(report.receipt)
            self._accepted.add(report.task_id)

    def end_silent_tasks(self, tx: Tx, limit: int = 100) -> int:
        """Fail the tasks of agents that have not reported for too long.

        An agent cannot report to a gateway that is down, so its silence begins with the gateway.
        """
        silence = self._parts.settings.agent_silence_secs
        self._listening_since = min(self._listening_since or tx.now, tx.now)
        if tx.now - self._listening_since < silence * 1000:
            return 0
        found = tx.fetch_all(_SELECT_SILENT, (tx.now - int(silence * 1000), tx.now, limit))
        why = f"its agent has not reported for {silence:g} s"

        def lose(tx: Tx, id: str) -> None:
            agent = task_table.load_task(tx, id).agent
            missing = find_missing_scope(tx, agent, REPORT_SCOPES.values())
            lack = "" if missing is None else f"; its session lacks the scope {missing}"
            self._executed.lose_executor(tx, id, why + lack)

        ids = [format_event_id(id) for (id,) in found]
        return len(end_each(tx, ids, lose, *self._executed.ways_to_fail(why)))


def read_result(tx: Tx, report: TaskReport) -> TaskPayload:
    if not isinstance(report.result_ref, UnsetType):
        find_blob(tx, report.result_ref)
        digest = report.result_ref
        return TaskPayload(result_ref=digest, mark=digest.encode())
    raw = EMPTY_PAYLOAD if isinstance(report.result, UnsetType) else bytes(report.result)
    return TaskPayload(result=raw, mark=fingerprint_content(raw))
