"""The hub's core: tasks from their request to their end, one transaction at a time.

A gateway meets a task in two roles, which can coincide. The requester's gateway records the task
and sends the request. The executor's gateway runs the agent, decides every state, and reports it.
A request and its cancellation are tracked events of delivery. Reports are events that the
requester's gateway reads from the executor's outbox.

All of it runs in the writer's thread.
"""

from gatepost.config.hub_settings import HubSettings
from gatepost.delivery.assembly import DeliveryCore
from gatepost.delivery.coordinator import TaskNotice
from gatepost.delivery.decisions import (
    NOTHING,
    Decisions,
    DeliveryEnded,
    ForwardMail,
    JournalLost,
    TaskReported,
    TaskRequested,
    TurnEnded,
)
from gatepost.errors import GatepostError
from gatepost.events import EventKind
from gatepost.hub import tasks
from gatepost.hub.agent_reports import AgentReports
from gatepost.hub.escalations import Escalations
from gatepost.hub.executed_tasks import ExecutedTasks
from gatepost.hub.policy import Policy
from gatepost.hub.registry import AgentRegistry
from gatepost.hub.requested_tasks import RequestedTasks
from gatepost.hub.restored_tasks import RestoredTasks
from gatepost.hub.session_tasks import SessionTasks
from gatepost.hub.task_attempts import TaskAttempts
from gatepost.hub.task_changes import HubParts
from gatepost.hub.task_events import TaskEvents
from gatepost.hub.task_states import TaskState
from gatepost.hub.tasks import Task
from gatepost.journal.transaction import Tx


class TaskEngine:
    """The two roles in tasks, and the notices that delivery has for them."""

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
        self.restored = RestoredTasks(self.executed, events)
        self.escalations = Escalations(self.parts)
        self.parts.changes.on_failed = self.escalations.escalate_failure
        core.coordinator.observe(on_task_notice=self.apply_notice)

    def cancel_task(self, tx: Tx, id: str, reason: str = "") -> Task:
        """Cancel a task, or ask the gateway that executes it to do so: that one decides."""
        task = tasks.load_task(tx, id)
        if task.executor != "remote" or task.has_ended:
            return self.executed.cancel_task(tx, task, reason)
        self.requested.ask_to_cancel(tx, task, reason)
        return task

    def escalate_late_tasks(self, tx: Tx) -> None:
        """Tell somebody of tasks that are late, and cancel those that are much too late."""
        for task in self.escalations.escalate_late_tasks(tx):
            self.cancel_task(tx, task.id, "it is much later than its ETA")

    def apply_notice(self, tx: Tx, notice: TaskNotice) -> Decisions:
        """Apply something that delivery heard. Nothing of it can fail the transaction."""
        if self._changes_nothing(notice):
            return NOTHING
        mark = tx.begin_operation()
        try:
            decisions = self._apply(tx, notice)
        except (GatepostError, ValueError) as error:
            tx.undo_operation(mark)
            incidents = self.parts.core.incidents
            incidents.raise_(tx, "task_event_ignored", _subject_of(notice), str(error))
            return NOTHING
        tx.keep_operation()
        return decisions

    def _changes_nothing(self, notice: TaskNotice) -> bool:
        """Whether these are the usual ends of mail and delivery of a task that is accepted."""
        if isinstance(notice, TurnEnded):
            return self.reports.is_being_settled(notice.info.event_id)
        return isinstance(notice, DeliveryEnded) and notice.outcome in ("ok", "kept")

    def _apply(self, tx: Tx, notice: TaskNotice) -> Decisions:
        if isinstance(notice, str):
            return self.requested.complete_with_blob(tx, notice)
        if isinstance(notice, TaskReported):
            return self.requested.apply_report(tx, notice)
        if isinstance(notice, ForwardMail):
            return self.executed.hand_over_task(tx, notice)
        if isinstance(notice, TaskRequested):
            self._apply_request(tx, notice)
        elif isinstance(notice, JournalLost):
            self.requested.end_forgotten_tasks(tx, notice.node)
            self.restored.report_ends_again(tx, notice.node)
        elif isinstance(notice, DeliveryEnded):
            self._end_undelivered(tx, notice)
        else:
            self._apply_turn_end(tx, notice)
        return NOTHING

    def _apply_turn_end(self, tx: Tx, turn: TurnEnded) -> None:
        """Mail with a task ended: without an `accept`, its agent rejected it or never took it."""
        task = tasks.find_requested_task(tx, turn.info.event_id)
        if task is None or task.state is not TaskState.PENDING:
            return
        reason = turn.reason or f"its mail ended as {turn.outcome}"
        error = f"{task.agent} did not accept it: {reason}"
        if task.executor == "agent":
            self.executed.refuse_task(tx, task, "rejected", error)
        elif task.executor == "remote" and turn.outcome not in ("ok", "kept"):
            self.requested.end_undelivered(tx, task, "rejected", error)

    def _apply_request(self, tx: Tx, requested: TaskRequested) -> None:
        if requested.envelope.kind != EventKind.TASK_CANCEL:
            self.executed.apply_request(tx, requested)
            return
        found = self.executed.find_cancelled(tx, requested)
        if found is None:
            return
        task, reason = found
        if task.executor == "remote":
            self.requested.ask_to_cancel(tx, task, reason)
        else:
            self.executed.cancel_task(tx, task, reason, by_requester=True)

    def _end_undelivered(self, tx: Tx, ended: DeliveryEnded) -> None:
        """A request that no executor took has failed."""
        task = tasks.find_requested_task(tx, ended.event_id)
        if task is None or task.state is not TaskState.PENDING:
            return
        code = "expired" if "expired" in (ended.outcome, ended.reason) else "undeliverable"
        error = f"nobody took the task: {ended.reason or ended.outcome}"
        if task.executor == "remote":
            self.requested.end_undelivered(tx, task, code, error)
        else:
            self.executed.refuse_task(tx, task, code, error)


def _subject_of(notice: TaskNotice) -> str:
    if isinstance(notice, TaskRequested | TaskReported):
        return f"{notice.source}/{notice.envelope.event_id}"
    if isinstance(notice, TurnEnded):
        return notice.info.event_id
    if isinstance(notice, ForwardMail):
        return notice.msg_id
    if isinstance(notice, JournalLost):
        return notice.node
    return notice if isinstance(notice, str) else notice.event_id
