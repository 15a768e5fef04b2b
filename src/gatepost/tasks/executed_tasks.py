"""Tasks that this gateway executes, in sessions or by self-hosted agents.

This gateway decides the state of the task and reports it to the requester's gateway by events.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from gatepost.delivery.decisions import NOTHING, Decisions, ForwardMail, TaskRequested, TurnEnded
from gatepost.delivery.outgoing import EMPTY_PAYLOAD
from gatepost.errors import (
    ContractMismatch,
    ContractUnchecked,
    Forbidden,
    GatepostError,
    InvalidRequest,
    PolicyDenied,
    TaskQueueFull,
    WrongState,
)
from gatepost.events import (
    Envelope,
    EventKind,
    TaskInfo,
    fingerprint_content,
    parse_event_id,
)
from gatepost.events.json_payload import check_json_text
from gatepost.journal.transaction import Tx
from gatepost.tasks import task_table
from gatepost.tasks.policy import PolicyAgent
from gatepost.tasks.sessions import has_open_session
from gatepost.tasks.task_attempts import TaskAttempts
from gatepost.tasks.task_changes import HubParts
from gatepost.tasks.task_events import TaskEvents
from gatepost.tasks.task_request import (
    RequestContent,
    TaskRequest,
    content_of,
    mark_input,
    read_request,
)
from gatepost.tasks.task_states import TaskInput, TaskState
from gatepost.tasks.task_sweeps import EndTask, end_each
from gatepost.tasks.task_table import (
    CANCELLED,
    CONTRACT_MISMATCH,
    EXECUTOR_LOST,
    Task,
    TaskPayload,
    failure_class_of,
)
from gatepost.tasks.task_tokens import revoke_task_tokens
from gatepost.wire.tasks import TaskReport

_BEGIN, _UPDATE = (TaskInput.ACCEPT, TaskInput.START), (TaskInput.UPDATE,)
_HAND_OVER = "UPDATE task SET executor = 'remote', executor_node = ? WHERE id = ?"
_TAKE_BACK = "UPDATE task SET executor = ?, executor_node = NULL WHERE id = ?"
_MAX_EARLY_CANCELS = 1000
# The most tasks of a revoked gateway that one transaction ends.
_MOST_AT_ONCE = 1000
_COUNT_EARLY_CANCELS = "SELECT count(*) FROM early_cancel WHERE source = ?"
_KEEP_EARLY_CANCEL = """
INSERT OR IGNORE INTO early_cancel (source, task, reason, at) VALUES (?, ?, ?, ?)
"""
_TAKE_EARLY_CANCEL = "DELETE FROM early_cancel WHERE source = ? AND task = ? RETURNING reason"
_decode_note = msgspec.json.Decoder(dict[str, str]).decode


class ExecutedTasks:
    """Runs in the writer's thread."""

    def __init__(self, parts: HubParts, events: TaskEvents, attempts: TaskAttempts) -> None:
        self._parts = parts
        self._events = events
        self._attempts = attempts

    # -- states

    def accept_task(self, tx: Tx, id: str, eta_at: int | None) -> Task:
        task = task_table.change_task(tx, id, TaskInput.ACCEPT, {"eta_at": eta_at})
        self._report(tx, task, EventKind.TASK_ACCEPT, TaskInfo(eta_at=eta_at))
        return task

    def try_begin(self, tx: Tx, id: str, agent: str | None, eta_at: int | None) -> Task | None:
        """Accept and start a task; None if the task is not pending.

        With `agent`, the task must belong to this self-hosted agent. One event reports both: an
        acceptance with progress.
        """
        values = {"eta_at": eta_at, "progress": 0.0}
        task = task_table.try_inputs(tx, id, _BEGIN, values, agent)
        if task is not None:
            info = TaskInfo(eta_at=eta_at, progress=0.0)
            self._report(tx, task, EventKind.TASK_ACCEPT, info)
        return task

    def start_task(self, tx: Tx, id: str) -> Task:
        """Note that the session or the agent of a task now works on it."""
        task = task_table.change_task(tx, id, TaskInput.START, {"progress": 0.0})
        self._report(tx, task, EventKind.TASK_UPDATE, TaskInfo(progress=0.0))
        return task

    def update_task(
        self, tx: Tx, id: str, progress: float | None, note: str | None, eta_at: int | None
    ) -> Task:
        values = _given_values(progress, note, eta_at)
        task = task_table.change_task(tx, id, TaskInput.UPDATE, values)
        self._report_update(tx, task, values)
        return task

    def try_update(
        self,
        tx: Tx,
        report: TaskReport,
        progress: float | None,
        note: str | None,
        eta_at: int | None,
    ) -> Task | None:
        """Update a task of a self-hosted agent; None if the task is not running."""
        values = _given_values(progress, note, eta_at)
        task = task_table.try_inputs(tx, report.task_id, _UPDATE, values, report.agent)
        if task is not None:
            self._report_update(tx, task, values)
        return task

    def _report_update(self, tx: Tx, task: Task, values: dict[str, Any]) -> None:
        if not values:
            return  # A sign of life, and nothing that its requester has to know.
        info = TaskInfo(progress=values.get("progress"), eta_at=values.get("eta_at"))
        note = values.get("note")
        payload = EMPTY_PAYLOAD if note is None else msgspec.json.encode({"note": note})
        self._report(tx, task, EventKind.TASK_UPDATE, info, payload)

    def complete_task(self, tx: Tx, id: str, result: TaskPayload) -> Task:
        """Complete a task, once: a repeat with the same result gives the same answer.

        A result that is unreadable, or does not fit the contract of the capability, fails the task
        instead, also when it is repeated. Raises ContractUnchecked if nobody has checked this
        result yet. A result that is a blob is not read here.
        """
        if result.result is not None:
            try:
                check_json_text(result.result)
            except InvalidRequest as error:
                return self.fail_task(tx, id, error.code, f"its result: {error.message}")
        # Most gateways have no capabilities, so skip the search for a contract.
        if self._parts.router.capabilities:
            task = task_table.load_task(tx, id)
            if task.error_code == CONTRACT_MISMATCH:
                return task
            problem = "" if task.has_ended else self._find_result_mismatch(tx, task, result)
            if problem:
                return self.fail_task(tx, id, CONTRACT_MISMATCH, problem)
        task, is_new = task_table.complete_task(tx, id, result)
        if is_new:
            self._parts.changes.note_end(tx, task)
            payload = EMPTY_PAYLOAD if result.result is None else result.result
            info = TaskInfo(progress=1.0)
            kind = EventKind.TASK_COMPLETE
            self._events.report(tx, task, kind, info, payload, result.result_ref)
        return task

    def _find_result_mismatch(self, tx: Tx, task: Task, result: TaskPayload) -> str:
        contract = self._parts.find_contract(tx, task.info)
        if contract is None or result.mark is None:
            return ""
        return self._parts.find_mismatch(tx, contract, "output", result.mark)

    def fail_task(self, tx: Tx, id: str, code: str, error: str) -> Task:
        """Fail a task that was accepted."""
        return self._fail(tx, TaskInput.FAIL, task_table.load_task(tx, id), code, error)

    def lose_executor(self, tx: Tx, id: str, error: str) -> Task:
        """The executor of a task is lost: begin another attempt if one is left, or fail it."""
        task = task_table.load_task(tx, id)
        again = self._attempts.try_again(tx, task, error)
        return self.fail_lost_task(tx, id, error) if again is None else again

    def fail_lost_task(self, tx: Tx, id: str, error: str) -> Task:
        """The executor of a task is lost, and no attempt is left."""
        attempt = task_table.load_task(tx, id).attempt
        counted = error if attempt == 1 else f"{error}, at attempt {attempt}"
        return self.fail_task(tx, id, EXECUTOR_LOST, counted)

    def stop_task(self, tx: Tx, id: str, error: str) -> Task:
        """End a task without a report; its requester will ask for the end."""
        task = task_table.load_task(tx, id)
        input = TaskInput.REFUSE if task.state is TaskState.PENDING else TaskInput.FAIL
        values = {"error_code": EXECUTOR_LOST, "error": error[:2000]}
        task = task_table.change_task(tx, id, input, values)
        revoke_task_tokens(tx, id)
        self._parts.changes.note_change(tx, task)
        return task

    def ways_to_fail(self, error: str) -> tuple[EndTask, ...]:
        """The ways to end a task that cannot be retried; each does less than the one before."""
        return partial(self.fail_lost_task, error=error), partial(self.stop_task, error=error)

    def refuse_task(self, tx: Tx, task: Task, code: str, error: str) -> Task:
        return self._fail(tx, TaskInput.REFUSE, task, code, error)

    def _fail(self, tx: Tx, input: TaskInput, task: Task, code: str, error: str) -> Task:
        values = {"error_code": code, "error": error[:2000]}
        task = task_table.change_task(tx, task.id, input, values)
        self._parts.changes.note_end(tx, task)
        payload = msgspec.json.encode({"code": code, "error": error[:2000]})
        info = TaskInfo(failure_class=failure_class_of(code))
        self._events.report(tx, task, EventKind.TASK_FAILED, info, payload)
        return task

    def cancel_task(self, tx: Tx, task: Task, reason: str, *, by_requester: bool = False) -> Task:
        values = {"error_code": CANCELLED, "error": reason[:2000] or None}
        task = task_table.change_task(tx, task.id, TaskInput.CANCEL, values)
        self._parts.changes.note_end(tx, task)
        payload = msgspec.json.encode({"code": CANCELLED, "error": reason[:2000]})
        info = TaskInfo(failure_class=CANCELLED)
        if task.requester_node is None:
            self._events.record_cancel(tx, task)
        else:
            kind = EventKind.TASK_UPDATE if by_requester else EventKind.TASK_FAILED
            self._events.report(tx, task, kind, info, payload)
        return task

    def end_tasks_of(self, tx: Tx, node: str) -> None:
        """Cancel the tasks of a revoked gateway, so that they occupy no places or sessions.

        The next sweep ends those beyond the limit.
        """
        why = f"gateway {node} was revoked"

        def cancel(tx: Tx, id: str) -> None:
            self.cancel_task(tx, task_table.load_task(tx, id), why)

        ids = task_table.open_tasks_of(tx, node, _MOST_AT_ONCE)
        end_each(tx, ids, cancel, partial(self.stop_task, error=why))

    def end_revoked_tasks(self, tx: Tx) -> None:
        """Cancel remaining tasks of revoked gateways, and those that arrived late."""
        directory = self._parts.core.routes.directory
        for node in directory.revoked.keys() - directory.gateways.keys():
            self.end_tasks_of(tx, node)

    def _report(
        self,
        tx: Tx,
        task: Task,
        kind: EventKind,
        info: TaskInfo,
        payload: bytes = EMPTY_PAYLOAD,
        digest: str | None = None,
    ) -> None:
        self._events.report(tx, task, kind, info, payload, digest)
        if not task.has_ended:
            self._parts.changes.note_change(tx, task)

    # -- requests of other gateways

    def apply_request(self, tx: Tx, requested: TaskRequested) -> None:
        envelope = requested.envelope
        source = _remote_node(requested.source, self._parts.core.node.id)
        known = task_table.find_requested_task(tx, envelope.event_id)
        if known is not None:
            self._take_back(tx, known, source)
            return
        digest = envelope.payload_ref.digest if envelope.payload_ref else None
        request = None if digest else read_request(requested.payload)
        task = self._build_task(tx, requested, request)
        error: GatepostError | None = None
        if request is None and not digest:
            error = InvalidRequest("the request of this task cannot be read")
        else:
            content = RequestContent(b"", requested.payload, digest)
            error = self._find_reason_against(tx, task, content)
        mark = fingerprint_content(requested.payload)
        # Keep no content of refused requests, so that a flood leaves little behind.
        inline = None if digest or isinstance(error, TaskQueueFull) else requested.payload
        task_table.add_task(tx, task, TaskPayload(inline, digest, mark))
        self._parts.changes.note_change(tx, task)
        cancelled = tx.fetch_one(_TAKE_EARLY_CANCEL, (requested.source, parse_event_id(task.id)))
        if cancelled is not None:
            self.cancel_task(tx, task, cancelled[0], by_requester=True)
        elif error is not None:
            self.refuse_task(tx, task, error.code, error.message)

    def _build_task(self, tx: Tx, requested: TaskRequested, request: TaskRequest | None) -> Task:
        """A task of another gateway. The description of a large request is not read here."""
        envelope, agent = requested.envelope, requested.envelope.to_agent_id or ""
        return Task(
            id=envelope.event_id,
            agent=agent,
            requester=envelope.source_agent_id,
            requester_node=_remote_node(requested.source, self._parts.core.node.id),
            executor="session" if agent in self._parts.core.agents.hub_run else "agent",
            description=request.description if request else "",
            info=msgspec.json.encode(envelope.task or TaskInfo()),
            created_at=tx.now,
            updated_at=tx.now,
        )

    def _take_back(self, tx: Tx, task: Task, source: str | None) -> None:
        """Execute a task here whose agent moved to this gateway."""
        if source is None and task.executor == "remote" and task.state is TaskState.PENDING:
            executor = "session" if task.agent in self._parts.core.agents.hub_run else "agent"
            tx.execute(_TAKE_BACK, (executor, parse_event_id(task.id)))
            taken = task_table.load_task(tx, task.id)
            self._parts.changes.note_change(tx, taken)
            own = (self._parts.core.node.id, parse_event_id(task.id))
            cancelled = tx.fetch_one(_TAKE_EARLY_CANCEL, own)
            if cancelled is not None:
                self.cancel_task(tx, taken, cancelled[0])

    def _find_reason_against(
        self, tx: Tx, task: Task, content: RequestContent
    ) -> GatepostError | None:
        """Why this gateway refuses a task of another one; None if it accepts it.

        A large request is not read here and counts as described.
        """
        requester = PolicyAgent(task.requester_name, task.requester_node or "", True)
        try:
            self._parts.policy.evaluate_task_assignment(
                requester,
                self._parts.describe_agent(tx, task.agent),
                description="described" if content.digest else task.description,
                task_type=msgspec.json.decode(task.info, type=TaskInfo).task_type or "",
            ).require_allowed()
            self._require_fitting_input(tx, task, content)
            if task.executor == "session":
                self._parts.queue.require_place(tx, task.source)
        except (PolicyDenied, TaskQueueFull, ContractMismatch) as error:
            return error
        return None

    def _require_fitting_input(self, tx: Tx, task: Task, content: RequestContent) -> None:
        """Check the verdict about a request; delivery has held the request until it was known."""
        contract = self._parts.find_contract(tx, task.info)
        if contract is None or task.requester_node is None:
            return
        try:
            problem = self._parts.find_mismatch(tx, contract, "input", mark_input(content))
        except ContractUnchecked:
            problem = "the contract of its capability changed when it arrived"
        if problem:
            raise ContractMismatch(problem)

    def needs_check(self, tx: Tx, envelope: Envelope, open_payload: Callable[[], bytes]) -> bool:
        """Whether the request of another gateway waits for a verdict about its input."""
        if envelope.kind != EventKind.TASK_CREATE or envelope.task is None:
            return False
        contract = self._parts.contract_of(tx, envelope.task)
        if contract is None or not contract.checks_input:
            return False
        try:
            mark = mark_input(content_of(envelope, open_payload))
        except (GatepostError, ValueError):
            return False  # It cannot be read, and is refused for that.
        return self._parts.verdicts.find(contract, "input", mark, tx.now) is None

    def find_cancelled(self, tx: Tx, requested: TaskRequested) -> tuple[Task, str] | None:
        """The open task that another gateway cancels, and the reason; None if it has ended.

        A cancellation can overtake its task, which may wait for a blob: it is kept for that.
        """
        envelope = requested.envelope
        source = _remote_node(requested.source, self._parts.core.node.id)
        id, reason = envelope.ref_event_id or "", _decode_note(requested.payload).get("reason", "")
        task = task_table.find_task(tx, id)
        if task is None:
            self.keep_early_cancel(tx, requested.source, id, reason)
            return None
        if task.requester_node != source or task.requester != envelope.source_agent_id:
            raise Forbidden(f"task {task.id} was requested by another")
        return None if task.has_ended else (task, reason)

    def keep_early_cancel(self, tx: Tx, source: str, id: str, reason: str) -> None:
        ((known,),) = tx.fetch_all(_COUNT_EARLY_CANCELS, (source,))
        if known >= _MAX_EARLY_CANCELS:
            raise WrongState(f"{source} has cancelled too many tasks that have not arrived")
        tx.execute(_KEEP_EARLY_CANCEL, (source, parse_event_id(id), reason[:2000], tx.now))

    def hand_over_task(self, tx: Tx, forward: ForwardMail) -> Decisions:
        """Hand a task over to the gateway to which its agent, and so its mail, has moved.

        From now on this gateway follows the task as one that another gateway executes, and passes
        the reports on. The mail of a task that has begun or ended is not forwarded: its turn ends
        here.
        """
        info = forward.info
        task = None if info is None else task_table.find_requested_task(tx, info.event_id)
        if task is None or info is None:
            return NOTHING
        # Its new gateway has the skill too, and asks its agents itself.
        is_open = task.state is TaskState.PENDING and not task.is_distribution
        if not is_open or has_open_session(tx, task.id):
            return (TurnEnded(info, *forward.event.agents, "ok"),)
        tx.execute(_HAND_OVER, (forward.route.node, parse_event_id(task.id)))
        request = task.request_info
        forward.event.set_task(request, self._parts.find_policy_version(request))
        return NOTHING


def _given_values(progress: float | None, note: str | None, eta_at: int | None) -> dict[str, Any]:
    given = {"progress": progress, "note": note, "eta_at": eta_at}
    return {name: value for name, value in given.items() if value is not None}


def _remote_node(source: str, own: str) -> str | None:
    return None if source == own else source
