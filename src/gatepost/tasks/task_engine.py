"""The hub's core: tasks from their request to their end, one transaction at a time.

A gateway meets a task in two roles, which can coincide. The requester's gateway records the task
and sends the request. The executor's gateway runs the agent, decides every state, and reports it.
A request and its cancellation are tracked events of delivery. Reports are events that the
requester's gateway reads from the executor's outbox.

This runs in the writer's thread.
"""

from collections.abc import Callable
from functools import partial

from gatepost.access.agent_sessions import find_missing_scope
from gatepost.access.scopes import OPERATION_SCOPES, REPORT_SCOPES
from gatepost.config.hub_settings import HubSettings
from gatepost.delivery.assembly import DeliveryCore
from gatepost.delivery.decisions import (
    NOTHING,
    BlobArrived,
    Decisions,
    DeliveryEnded,
    EventsSkipped,
    ForwardMail,
    JournalLost,
    NodeRevoked,
    TaskNotice,
    TaskReported,
    TaskReportWanted,
    TaskRequested,
    TurnEnded,
    VerdictArrived,
)
from gatepost.delivery.parts import TaskHub
from gatepost.delivery.undelivered import is_safe_to_replay
from gatepost.errors import InsufficientScope, InvalidRequest
from gatepost.events import Envelope, EventKind, TaskInfo
from gatepost.journal.transaction import Tx, try_operation
from gatepost.tasks import task_table
from gatepost.tasks.agent_reports import AgentReports
from gatepost.tasks.escalations import Escalations
from gatepost.tasks.executed_tasks import ExecutedTasks
from gatepost.tasks.policy import Policy
from gatepost.tasks.registry import AgentRegistry
from gatepost.tasks.report_requests import ReportRequests
from gatepost.tasks.requested_tasks import RequestedTasks
from gatepost.tasks.restored_tasks import RestoredTasks
from gatepost.tasks.session_tasks import SessionTasks
from gatepost.tasks.skill_installs import SkillInstalls
from gatepost.tasks.task_attempts import TaskAttempts
from gatepost.tasks.task_changes import HubParts
from gatepost.tasks.task_events import TaskEvents
from gatepost.tasks.task_states import TaskState
from gatepost.tasks.task_sweeps import end_each
from gatepost.tasks.task_table import Task

_ACCEPT_SCOPES = (OPERATION_SCOPES["task_report"], REPORT_SCOPES["accept"])
# Requests given up for these reasons may have been taken, so a report may still come.
_MAY_BE_TAKEN = ("expired", "exhausted")


class TaskEngine(TaskHub):
    """The two roles in tasks; passes the notices of delivery on to them."""

    def __init__(
        self, core: DeliveryCore, registry: AgentRegistry, policy: Policy, settings: HubSettings
    ) -> None:
        self.parts = HubParts(core, registry, policy, settings)
        events = TaskEvents(core)
        attempts = TaskAttempts(self.parts, events)
        self.requested = RequestedTasks(self.parts, events, attempts)
        self.executed = ExecutedTasks(self.parts, events, attempts)
        self.session_tasks = SessionTasks(self.parts, self.executed)
        self.reports = AgentReports(self.parts, self.executed)
        self.restored = RestoredTasks(self.executed)
        self.report_requests = ReportRequests(self.parts, events)
        self.escalations = Escalations(self.parts)
        self.skills = SkillInstalls(self.parts, self.requested, self.executed)
        self.parts.changes.on_failed = self.escalations.escalate_failure
        self.parts.changes.on_amended = self.escalations.escalate_amendment
        core.parts.hub = self

    def cancel_task(self, tx: Tx, id: str, reason: str = "") -> Task:
        """Cancel a task, or ask the executor's gateway, which decides."""
        task = task_table.load_task(tx, id)
        if task.executor != "remote" or task.has_ended:
            return self.executed.cancel_task(tx, task, reason)
        self.requested.ask_to_cancel(tx, task, reason)
        return task

    def escalate_late_tasks(self, tx: Tx) -> None:
        """Escalate tasks that are late, and cancel those that are much too late."""
        overdue = [task.id for task in self.escalations.escalate_late_tasks(tx)]
        end_each(tx, overdue, partial(self.cancel_task, reason="it is much later than its ETA"))

    def apply_notice(self, tx: Tx, notice: TaskNotice) -> Decisions:
        """Apply a notice of delivery. An error in it does not fail the transaction."""
        if self._changes_nothing(notice):
            return NOTHING
        decisions, error = try_operation(tx, lambda tx: self._apply_readable(tx, notice))
        if error is None:
            return decisions or NOTHING
        incidents = self.parts.core.incidents
        incidents.raise_(tx, "task_event_ignored", _subject_of(notice), str(error))
        return NOTHING

    def has_task(self, tx: Tx, id: bytes) -> bool:
        return task_table.has_task(tx, id)

    def is_result_for(self, tx: Tx, digest: str, node: str) -> bool:
        return task_table.is_result_for(tx, digest, node)

    def needs_check(self, tx: Tx, envelope: Envelope, open_payload: Callable[[], bytes]) -> bool:
        return self.executed.needs_check(tx, envelope, open_payload)

    def find_eta(self, agent: str, info: TaskInfo | None) -> int | None:
        return self.parts.find_eta(agent, info)

    def _apply_readable(self, tx: Tx, notice: TaskNotice) -> Decisions:
        try:
            return self._apply(tx, notice)
        except ValueError as error:
            raise InvalidRequest(f"it cannot be read: {error}") from None

    def _changes_nothing(self, notice: TaskNotice) -> bool:
        """Whether a notice is the usual end of mail or delivery of an accepted task."""
        if isinstance(notice, TurnEnded):
            return self.reports.is_being_settled(notice.info.event_id)
        return isinstance(notice, DeliveryEnded) and notice.outcome in ("ok", "kept")

    def _apply(self, tx: Tx, notice: TaskNotice) -> Decisions:
        if isinstance(notice, BlobArrived):
            return self.requested.complete_with_blob(tx, notice.digest)
        if isinstance(notice, TaskReported):
            return self.requested.apply_report(tx, notice)
        if isinstance(notice, ForwardMail):
            return self.executed.hand_over_task(tx, notice)
        if isinstance(notice, TaskRequested):
            self._apply_request(tx, notice)
        elif isinstance(notice, JournalLost):
            self.requested.end_forgotten_tasks(tx, notice.node)
            self.report_requests.report_ends_again(tx, notice.node)
        elif isinstance(notice, TaskReportWanted):
            self.report_requests.answer_request(tx, notice)
        elif isinstance(notice, EventsSkipped):
            self.report_requests.ask_after_skip(tx, notice.node)
        elif isinstance(notice, NodeRevoked):
            self.executed.end_tasks_of(tx, notice.node)
        elif isinstance(notice, DeliveryEnded):
            self._end_undelivered(tx, notice)
        elif isinstance(notice, VerdictArrived):
            self._apply_verdict(tx, notice)
        else:
            self._apply_turn_end(tx, notice)
        return NOTHING

    def _apply_turn_end(self, tx: Tx, turn: TurnEnded) -> None:
        """Mail with a task has ended; if it was not accepted, it was rejected or never taken."""
        task = task_table.find_requested_task(tx, turn.info.event_id)
        if task is None or task.state is not TaskState.PENDING:
            return
        reason = turn.reason or f"its mail ended as {turn.outcome}"
        error = f"{task.agent} did not accept it: {reason}"
        if task.executor == "agent":
            missing = find_missing_scope(tx, task.agent, _ACCEPT_SCOPES)
            if missing is not None:
                lack = f"{task.agent} cannot accept it: its session lacks the scope {missing}"
                self.executed.refuse_task(tx, task, InsufficientScope.code, lack)
                return
            self.executed.refuse_task(tx, task, "rejected", error)
        elif task.executor == "remote" and turn.outcome not in ("ok", "kept"):
            self.requested.end_task(tx, task, "rejected", error)

    def _apply_request(self, tx: Tx, requested: TaskRequested) -> None:
        is_own = requested.source == self.parts.core.node.id
        if requested.envelope.is_skill_distribution and not is_own:
            self.skills.apply_offer(tx, requested)
            return
        if requested.envelope.kind != EventKind.TASK_CANCEL:
            self.executed.apply_request(tx, requested)
            return
        found = self.executed.find_cancelled(tx, requested)
        if found is None:
            return
        task, reason = found
        if task.executor == "remote":
            if task.state is TaskState.PENDING and requested.source == self.parts.core.node.id:
                # The agent lives here now: the request comes back too, after this event.
                self.executed.keep_early_cancel(tx, requested.source, task.id, reason)
                return
            self.requested.ask_to_cancel(tx, task, reason)
        else:
            self.executed.cancel_task(tx, task, reason, by_requester=True)

    def _end_undelivered(self, tx: Tx, ended: DeliveryEnded) -> None:
        """Fail a request that no executor took; wait for a report about any other.

        An executor reports the end of a task before the end of its mail. If it did not, it
        forwarded the request and does not know the end either.
        """
        task = task_table.find_requested_task(tx, ended.event_id)
        if task is None or task.state is not TaskState.PENDING:
            return
        code = "expired" if "expired" in (ended.outcome, ended.reason) else "undeliverable"
        reason = ended.reason or ended.outcome
        error = f"nobody took the task: {reason}"
        if task.executor != "remote":
            self.executed.refuse_task(tx, task, code, error)
        elif is_safe_to_replay(reason, ended.verdict):
            self.requested.end_task(tx, task, code, error)
        elif ended.elapsed is not None or reason in _MAY_BE_TAKEN:
            self.requested.await_word(tx, task, reason)
        else:
            self.requested.presume_failed(tx, task, code, f"its request was given up: {reason}")

    def _apply_verdict(self, tx: Tx, amended: VerdictArrived) -> None:
        """The receiver of a request that was given up says that it did not take it."""
        task = task_table.find_requested_task(tx, amended.event_id)
        is_refused = is_safe_to_replay(amended.reason, amended.verdict)
        if task is not None and task.state is TaskState.UNKNOWN and is_refused:
            code = "expired" if amended.reason == "expired" else "undeliverable"
            self.requested.end_task(tx, task, code, f"nobody took the task: {amended.reason}")


def _subject_of(notice: TaskNotice) -> str:
    if isinstance(notice, TaskRequested | TaskReported):
        return f"{notice.source}/{notice.envelope.event_id}"
    if isinstance(notice, TurnEnded):
        return notice.info.event_id
    if isinstance(notice, ForwardMail):
        return notice.msg_id
    if isinstance(notice, JournalLost | NodeRevoked | EventsSkipped):
        return notice.node
    return notice.digest if isinstance(notice, BlobArrived) else notice.event_id
