"""Known-bad hubs: each has one defect in how it ends tasks, or in what it tells of their ends."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

from gatepost.delivery.decisions import Decisions, TaskReported
from gatepost.errors import GatepostError, IdempotencyConflict
from gatepost.events import PayloadRef, parse_event_id
from gatepost.journal import Tx
from gatepost.tasks import agent_reports, skill_installs, task_sweeps, task_table
from gatepost.tasks.agent_reports import AgentReports
from gatepost.tasks.executed_tasks import ExecutedTasks
from gatepost.tasks.report_requests import ReportRequests
from gatepost.tasks.requested_tasks import RequestedTasks
from gatepost.tasks.session_runtime import SessionExit
from gatepost.tasks.session_tasks import SessionTasks
from gatepost.tasks.sessions import forget_claim
from gatepost.tasks.task_attempts import TaskAttempts
from gatepost.tasks.task_changes import TaskChanges
from gatepost.tasks.task_queue import TaskQueue
from gatepost.tasks.task_table import Task, TaskPayload
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


def removed_agent_stops_the_sweep() -> Mutant:
    """To try a task of an agent again that is gone raises an error, which no sweep survives."""

    def insist(self: TaskAttempts, tx: Tx, agent: str) -> Any:
        return self._parts.find_executor(tx, agent)

    def end_all(tx: Tx, ids: Iterable[str], *ways: task_sweeps.EndTask) -> list[str]:
        ended = list(ids)
        for id in ended:
            ways[0](tx, id)
        return ended

    mutant = ExitStack()
    mutant.enter_context(patch.object(TaskAttempts, "_find_executor", insist))
    mutant.enter_context(patch.object(agent_reports, "end_each", end_all))
    return mutant


def second_completion_replaces() -> Mutant:
    """A second, other result of a task takes the place of the first."""
    honest = task_table.complete_task

    def replace_result(tx: Tx, id: str, result: TaskPayload, *input: Any) -> tuple[Task, bool]:
        try:
            return honest(tx, id, result, *input)
        except IdempotencyConflict:
            marks = (result.result, result.result_ref, result.mark, parse_event_id(id))
            tx.execute(task_table._SET_RESULT, marks)
            return task_table.load_task(tx, id), False

    return patch.object(task_table, "complete_task", replace_result)


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

    honest = SessionTasks.record_end

    def release(self: SessionTasks, tx: Tx, task_id: str, name: str, ended: SessionExit) -> None:
        if not forget_claim(tx, name):
            honest(self, tx, task_id, name, ended)

    return patch.object(SessionTasks, "record_end", release)


def expired_request_has_failed() -> Mutant:
    """A task has failed for its requester as soon as its request is given up."""

    def fail(self: RequestedTasks, tx: Tx, task: Task, why: str) -> None:
        self.end_task(tx, task, "expired", f"nobody took the task: {why}")

    return patch.object(RequestedTasks, "await_word", fail)


def late_result_ignored() -> Mutant:
    """A presumed end is final, whatever the executor says later."""
    honest = RequestedTasks.apply_report

    def ignore(self: RequestedTasks, tx: Tx, reported: TaskReported) -> Decisions:
        task = task_table.find_requested_task(tx, reported.envelope.ref_event_id or "")
        return () if task is not None and task.is_presumed else honest(self, tx, reported)

    return patch.object(RequestedTasks, "apply_report", ignore)


def lost_reports_not_asked_for() -> Mutant:
    """A requester waits for a report that its executor's gateway has forgotten."""
    return patch.multiple(
        ReportRequests,
        ask_of_silent_tasks=lambda self, tx: 0,
        ask_after_skip=lambda self, tx, node: 0,
    )


def refused_skill_asked_for_ever() -> Mutant:
    """A gateway that refuses a skill is asked for it again every second."""
    return patch.object(skill_installs, "_repeat_delay", lambda attempts: 1_000)


def skills_without_bound() -> Mutant:
    """A gateway takes all skills that another one distributes."""
    return patch.object(skill_installs, "MAX_OFFERS_OF_NODE", 10_000)


def skills_counted_together() -> Mutant:
    """The skills of one gateway leave no place for those of another."""
    query = "SELECT capability FROM skill_offer WHERE ? <> '' AND capability <> ?"
    return patch.object(skill_installs, "_SELECT_OFFERS_OF_NODE", query)


def result_judged_before_the_end_is_recorded() -> Mutant:
    """A session whose result cannot be judged has not ended, and keeps its token."""
    record, settle = SessionTasks.record_end, SessionTasks.settle_task

    def judge_first(
        self: SessionTasks, tx: Tx, task_id: str, name: str, ended: SessionExit,
        result: TaskPayload | GatepostError | None, detail: str,
    ) -> None:  # fmt: skip
        if isinstance(result, GatepostError):
            raise result
        record(self, tx, task_id, name, ended)
        settle(self, tx, task_id, name, ended, result, detail)

    return patch.multiple(SessionTasks, record_end=lambda *_: None, settle_task=judge_first)


def _claim_oldest(self: TaskQueue, tx: Tx, limit: int) -> Iterator[Task]:
    waiting = [
        task
        for source in task_table.list_waiting_sources(tx)
        for task in task_table.unclaimed_tasks(tx, source, limit)
    ]
    yield from sorted(waiting, key=lambda task: task.id)[:limit]


def flood_served_first() -> Mutant:
    """The queue of sessions has no shares, and the oldest task of all sources is next."""

    def require_nothing(self: TaskQueue, *given: Any) -> None:
        pass

    return patch.multiple(TaskQueue, next_tasks=_claim_oldest, _require_share=require_nothing)


def oldest_task_next() -> Mutant:
    """Sources have shares of the queue of sessions, and no turns."""
    return patch.object(TaskQueue, "next_tasks", _claim_oldest)


TASK_MUTANTS: dict[str, Callable[[], Any]] = {
    mutant.__name__: mutant
    for mutant in (
        lost_executor_kept,
        lost_gateway_kept,
        restored_executor_kept,
        removed_agent_stops_the_sweep,
        second_completion_replaces,
        cancel_dropped,
        handed_over_task_forgotten,
        completed_without_its_result,
        told_before_commit,
        claim_kept,
        lost_session_launched_again,
        result_judged_before_the_end_is_recorded,
        expired_request_has_failed,
        late_result_ignored,
        lost_reports_not_asked_for,
        refused_skill_asked_for_ever,
        skills_without_bound,
        skills_counted_together,
        flood_served_first,
        oldest_task_next,
    )
}
