"""Known-bad hubs: each has one defect in how it ends tasks, or in what it tells of their ends."""

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from gatepost.delivery.decisions import Decisions
from gatepost.errors import IdempotencyConflict
from gatepost.events import PayloadRef, parse_event_id
from gatepost.hub import tasks
from gatepost.hub.agent_reports import AgentReports
from gatepost.hub.executed_tasks import ExecutedTasks
from gatepost.hub.requested_tasks import RequestedTasks
from gatepost.hub.session_tasks import SessionTasks
from gatepost.hub.sessions import forget_claim
from gatepost.hub.task_changes import TaskChanges
from gatepost.hub.tasks import Task, TaskPayload
from gatepost.journal import Tx
from tests.simulation.mutants import Mutant


def lost_executor_kept() -> Mutant:
    """A task whose agent never reports again stays open."""
    return patch.object(AgentReports, "end_silent_tasks", lambda self, tx: 0)


def lost_gateway_kept() -> Mutant:
    """A task whose gateway never returns stays open."""
    return patch.object(RequestedTasks, "end_lost_tasks", lambda self, tx: 0)


def restored_executor_kept() -> Mutant:
    """A task that a restored gateway knows nothing of stays open."""
    return patch.object(RequestedTasks, "end_forgotten_tasks", lambda self, tx, node: None)


def second_completion_replaces() -> Mutant:
    """A second, other result of a task takes the place of the first."""
    honest = tasks.complete_task

    def replace_result(tx: Tx, id: str, result: TaskPayload) -> tuple[Task, bool]:
        try:
            return honest(tx, id, result)
        except IdempotencyConflict:
            marks = (result.result, result.result_ref, result.mark, parse_event_id(id))
            tx.execute(tasks._SET_RESULT, marks)
            return tasks.load_task(tx, id), False

    return patch.object(tasks, "complete_task", replace_result)


def cancel_dropped() -> Mutant:
    """The executor's gateway takes a cancellation, and nothing follows from it."""
    return patch.object(ExecutedTasks, "find_cancelled", lambda self, tx, requested: None)


def handed_over_task_forgotten() -> Mutant:
    """A task whose mail moves with its agent is given up by the gateway that it came from."""
    return patch.object(ExecutedTasks, "hand_over_task", lambda self, tx, forward: ())


def completed_without_its_result() -> Mutant:
    """A task is completed before the blob with its result is here."""

    def hasty(self: RequestedTasks, tx: Tx, task: Task, source: str, ref: PayloadRef) -> Decisions:
        self._follow_completion(tx, task, TaskPayload(result_ref=ref.digest))
        return ()

    return patch.object(RequestedTasks, "_await_blob", hasty)


def told_before_commit() -> Mutant:
    """Creators hear of changes that are not on disk yet."""

    def tell_early(self: TaskChanges, tx: Tx, task: Task) -> None:
        self.on_changed(task)

    return patch.object(TaskChanges, "note_change", tell_early)


def claim_kept() -> Mutant:
    """A task that was claimed when its gateway crashed is not claimed again."""
    return patch.object(SessionTasks, "release_claim", lambda self, tx, task_id, name: None)


def lost_session_launched_again() -> Mutant:
    """A session that was launched when its gateway crashed is taken for one that was not."""

    honest = SessionTasks.lose_session

    def release(self: SessionTasks, tx: Tx, task_id: str, name: str, why: str) -> None:
        if not forget_claim(tx, name):
            honest(self, tx, task_id, name, why)

    return patch.object(SessionTasks, "lose_session", release)


TASK_MUTANTS: dict[str, Callable[[], Any]] = {
    mutant.__name__: mutant
    for mutant in (
        lost_executor_kept,
        lost_gateway_kept,
        restored_executor_kept,
        second_completion_replaces,
        cancel_dropped,
        handed_over_task_forgotten,
        completed_without_its_result,
        told_before_commit,
        claim_kept,
        lost_session_launched_again,
    )
}
