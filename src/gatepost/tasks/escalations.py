"""The escalation policy of a capability's delegation skill, carried out for tasks requested here.

If a task is late or has failed, or its executor stays silent, an agent is told, in the name of the
requester. A task that is much too late is cancelled.
"""

from typing import Any

import msgspec
from msgspec import Raw

from gatepost.delivery.send_request import fingerprint_send
from gatepost.errors import GatepostError
from gatepost.events import TaskInfo, format_event_id
from gatepost.journal.transaction import Tx
from gatepost.room.records import EscalationPolicy
from gatepost.tasks import task_table
from gatepost.tasks.task_changes import HubParts
from gatepost.tasks.task_routing import CapabilityEntry
from gatepost.tasks.task_states import TaskState
from gatepost.tasks.task_table import Task, failure_class_of
from gatepost.wire.operations import NewSend

PROGRESS_MISSED = "progress_missed"
_NOTHING_LEFT = 2
_SELECT_LATE = """
SELECT id, escalated FROM task
WHERE requester_node IS NULL AND ended_at IS NULL AND late_at IS NOT NULL AND escalated < 2
    AND eta_at IS NOT NULL
ORDER BY eta_at LIMIT ?
"""
_MARK = "UPDATE task SET escalated = ? WHERE id = ?"
# A task of an executor that has missed two reports in a row, which is noticed once for each task.
_MISSED_REPORTS = 2
_SELECT_SILENT = """
SELECT id FROM task
WHERE requester_node IS NULL AND ended_at IS NULL AND reported_at < ? AND silent_at IS NULL
    AND CAST(info AS TEXT) ->> '$.capabilityId' = ?
LIMIT ?
"""
_MARK_SILENT = "UPDATE task SET silent_at = ? WHERE id = ?"


class Escalations:
    """Runs in the writer's thread."""

    def __init__(self, parts: HubParts) -> None:
        self._parts = parts

    def escalate_late_tasks(self, tx: Tx, limit: int = 1000) -> list[Task]:
        """Take the steps that are due for late tasks; returns the tasks to cancel."""
        overdue = []
        for id, done in tx.fetch_all(_SELECT_LATE, (limit,)):
            task = task_table.load_task(tx, format_event_id(id))
            step = self._take_step(tx, task, done)
            if step != done:
                tx.execute(_MARK, (step, id))
            if step == _NOTHING_LEFT and self._is_overdue(tx, task):
                overdue.append(task)
        return overdue

    def escalate_silent_tasks(self, tx: Tx, limit: int = 1000) -> None:
        """Escalate tasks whose executor reports less often than it promised."""
        for id, entry in self._parts.router.capabilities.items():
            if entry.progress_secs is not None:
                silent_since = tx.now - _MISSED_REPORTS * entry.progress_secs * 1000
                for (task,) in tx.fetch_all(_SELECT_SILENT, (silent_since, id, limit)):
                    tx.execute(_MARK_SILENT, (tx.now, task))
                    self._escalate_silence(
                        tx, task_table.load_task(tx, format_event_id(task)), entry
                    )

    def _escalate_silence(self, tx: Tx, task: Task, entry: CapabilityEntry) -> None:
        detail = (
            f"{task.agent} has promised a report every {entry.progress_secs} s,"
            f" and has missed {_MISSED_REPORTS}"
        )
        self._parts.core.incidents.raise_(tx, PROGRESS_MISSED, task.id, detail)
        if entry.escalation is not None:
            self._notify(tx, task, entry.escalation, PROGRESS_MISSED)

    def escalate_failure(self, tx: Tx, task: Task) -> None:
        """A task that was requested here has ended: escalate it if it failed."""
        policy = self._find_policy(task)
        if task.state is TaskState.FAILED and policy is not None:
            self._notify(tx, task, policy, failure_class_of(task.error_code or ""))

    def escalate_amendment(self, tx: Tx, task: Task) -> None:
        """Tell the escalation's agent that a task did not fail after all."""
        policy = self._find_policy(task)
        if policy is not None:
            self._notify(tx, task, policy, "", "task.amended")

    def _take_step(self, tx: Tx, task: Task, done: int) -> int:
        """Take all due steps for a late task; returns the last step taken."""
        policy = self._find_policy(task)
        if policy is None:
            return _NOTHING_LEFT
        late = tx.now - (task.eta_at or tx.now)
        if done == 0 and late >= policy.after_seconds * 1000:
            self._notify(tx, task, policy, "eta_breach")
            done = 1
        if done == 1 and (policy.cancel_after_seconds is None or self._is_overdue(tx, task)):
            return _NOTHING_LEFT
        return done

    def _is_overdue(self, tx: Tx, task: Task) -> bool:
        policy = self._find_policy(task)
        if policy is None or policy.cancel_after_seconds is None or task.eta_at is None:
            return False
        return tx.now - task.eta_at >= policy.cancel_after_seconds * 1000

    def _find_policy(self, task: Task) -> EscalationPolicy | None:
        if not self._parts.router.capabilities:
            return None
        info = msgspec.json.decode(task.info, type=TaskInfo)
        entry = self._parts.router.capabilities.get(info.capability_id or "")
        return None if entry is None else entry.escalation

    def _notify(
        self,
        tx: Tx,
        task: Task,
        policy: EscalationPolicy,
        failure: str,
        event: str = "task.escalated",
    ) -> None:
        if policy.notify is None:
            return
        payload = msgspec.json.encode(_describe_escalation(task, failure, event))
        new = NewSend(task.requester, policy.notify, Raw(payload))
        mark = tx.begin_operation()
        try:
            self._parts.core.coordinator.send(tx, new, fingerprint_send(new))
        except GatepostError as error:
            tx.undo_operation(mark)
            detail = f"{policy.notify} could not be told of it: {error.message}"
            self._parts.core.incidents.raise_(tx, "escalation_failed", task.id, detail)
            return
        tx.keep_operation()


def _describe_escalation(task: Task, failure: str, event: str) -> dict[str, Any]:
    info = msgspec.json.decode(task.info, type=TaskInfo)
    return {
        "event": event,
        "task_id": task.id,
        "state": task.state,
        "capability_id": info.capability_id,
        "failure_class": failure,
        "agent": task.agent,
        "description": task.description[:200],
        "eta_at": task.eta_at,
        "error_code": task.error_code,
        "error": task.error,
    }
