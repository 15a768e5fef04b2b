"""Tasks requested by this gateway: their requests, and the reports of other gateways."""

from collections.abc import Iterable
from typing import NamedTuple

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from gatepost.delivery.abuse import AbuseKind
from gatepost.delivery.blob_records import (
    await_result,
    find_blob,
    has_blob,
    keep_blob,
    take_awaited,
)
from gatepost.delivery.decisions import (
    NOTHING,
    BlobWanted,
    Decisions,
    TaskReported,
)
from gatepost.delivery.delivery_reads import OPEN_DELIVERY_SQL, find_route
from gatepost.delivery.fanout import copy_event_id
from gatepost.delivery.forward import find_forwards
from gatepost.delivery.outgoing import EMPTY_PAYLOAD, OutgoingEvent
from gatepost.delivery.send_request import find_used_key, remember_key
from gatepost.errors import (
    ContractMismatch,
    Forbidden,
    IdempotencyConflict,
    InvalidRequest,
    WrongState,
)
from gatepost.events import (
    Envelope,
    EventKind,
    PayloadRef,
    Signal,
    TaskInfo,
    fingerprint_content,
    format_event_id,
    parse_event_id,
)
from gatepost.events.json_payload import check_json_payload
from gatepost.journal.transaction import Tx
from gatepost.tasks import task_table
from gatepost.tasks.policy import Operator, PolicyPrincipal
from gatepost.tasks.task_attempts import TaskAttempts
from gatepost.tasks.task_changes import HubParts
from gatepost.tasks.task_events import TaskEvents, draft_request
from gatepost.tasks.task_request import RequestContent, mark_input
from gatepost.tasks.task_routing import TaskTarget
from gatepost.tasks.task_states import UNTAKEN_STATES, TaskInput, TaskState
from gatepost.tasks.task_sweeps import end_each
from gatepost.tasks.task_table import (
    CANCELLED,
    EXECUTOR_LOST,
    PRESUMED,
    Task,
    TaskPayload,
    failure_class_of,
)
from gatepost.wire.tasks import NewTask

_SELECT_ATTEMPT = "SELECT event_id FROM task_attempt WHERE task = ? ORDER BY number DESC LIMIT 1"
_SELECT_SILENT = """
SELECT id FROM task WHERE executor = 'remote' AND ended_at IS NULL
    AND iif(state = 'unknown', unknown_until < ?1, updated_at < ?2) LIMIT ?3
"""
_SELECT_OPEN_AT = """
SELECT id FROM task WHERE executor = 'remote' AND ended_at IS NULL AND executor_node = ? LIMIT ?
"""
_TTL = 86_400_000
_BEGIN = (TaskInput.ACCEPT, TaskInput.START)
_SELECT_TAKEN_BY = f"""
SELECT id FROM task WHERE executor = 'remote' AND ended_at IS NULL AND executor_node = ?
AND NOT EXISTS (
    {OPEN_DELIVERY_SQL.format(event="task.id")}
) ORDER BY id
"""
_UNREADABLE, _FOREIGN_BLOB = AbuseKind.UNREADABLE_PAYLOAD, AbuseKind.FOREIGN_BLOB
_decode_note = msgspec.json.Decoder(dict[str, str]).decode


class NewlyRequested(NamedTuple):
    """A task to record, and the event that requests it."""

    task: Task
    payload: TaskPayload
    out: OutgoingEvent


class RequestedTasks:
    """Runs in the writer's thread."""

    def __init__(self, parts: HubParts, events: TaskEvents, attempts: TaskAttempts) -> None:
        self._parts = parts
        self._events = events
        self._attempts = attempts

    def create_tasks(
        self, tx: Tx, new: NewTask, content: RequestContent, by: PolicyPrincipal | None = None
    ) -> list[Task]:
        """Record a task for each target and send its request. A repeated call changes nothing."""
        (made,) = self.create_all(tx, [(new, content)], by)
        return made

    def create_all(
        self,
        tx: Tx,
        wanted: Iterable[tuple[NewTask, RequestContent]],
        by: PolicyPrincipal | None = None,
    ) -> list[list[Task]]:
        """Record tasks for several requests, and send all that are new together.

        If one request is refused, its error is raised; the caller undoes the others.
        """
        fresh: list[NewlyRequested] = []
        made = [self._prepare_tasks(tx, new, content, by, fresh) for new, content in wanted]
        task_table.add_tasks(tx, [(each.task, each.payload) for each in fresh])
        for each in fresh:
            if each.task.executor == "session":
                self._events.record_request(tx, each.out, each.out.expires_at(tx.now, _TTL))
            self._parts.changes.note_change(tx, each.task)
        sent = [each.out for each in fresh if each.task.executor != "session"]
        self._events.send_requests(tx, sent)
        return made

    def _prepare_tasks(
        self,
        tx: Tx,
        new: NewTask,
        content: RequestContent,
        by: PolicyPrincipal | None,
        fresh: "list[NewlyRequested]",
    ) -> list[Task]:
        """The tasks of a request: those of an earlier call, or new ones, added to `fresh`."""
        known = self.find_earlier(tx, new, content)
        if known is not None:
            return known
        id = new.task_id if new.task_id is not UNSET else self._parts.core.node.event_ids.next_id()
        targets = self._parts.router.find_targets(tx, new, str(id))
        many = len(targets) > 1
        principal = by or self._parts.describe_agent(tx, new.from_agent)
        made = []
        for each in targets:
            own_id = copy_event_id(str(id), each.agent) if many else str(id)
            self._require_permission(tx, new, content, each, principal)
            task = self._build_task(tx, own_id, new, each)
            if task.executor == "session":
                source = None if isinstance(by, Operator) else task.source
                coming = sum(each.task.executor == "session" for each in fresh)
                self._parts.queue.require_place(tx, source, coming)
            inline = None if content.digest else content.payload
            payload = TaskPayload(inline, content.digest, content.mark)
            out = _build_request(task, new, content, each, tx.now)
            out.eta_secs = self._parts.find_eta(each.agent, each.info)
            fresh.append(NewlyRequested(task, payload, out))
            made.append(task)
        if not isinstance(new.idempotency_key, UnsetType):
            remember_key(tx, *_idempotency_key(new), content.mark, made[0].id)
        return made

    def ask_to_cancel(self, tx: Tx, task: Task, reason: str) -> None:
        """Ask the executor's gateway to cancel a task; that gateway decides."""
        id = self._parts.core.node.event_ids.next_id()
        payload = msgspec.json.encode({"reason": reason})
        ref = find_request(tx, self._parts.core.node.id, task)
        envelope = Envelope(
            event_id=id,
            kind=EventKind.TASK_CANCEL,
            source_agent_id=task.requester,
            to_agent_id=task.agent,
            corr_id=task.id,
            ref_event_id=ref,
            origin_event_id=None if ref == task.id else task.id,
            order="none",
        )
        out = OutgoingEvent(envelope, payload)
        self._events.send_cancel(tx, out, find_executor_node(tx, task, ref))

    def find_earlier(self, tx: Tx, new: NewTask, content: RequestContent) -> list[Task] | None:
        """The tasks that an earlier call with the same idempotency key made, if there was one."""
        if not isinstance(new.idempotency_key, UnsetType):
            used = find_used_key(tx, *_idempotency_key(new))
            if used is not None and used.fingerprint != content.mark:
                raise IdempotencyConflict("this idempotency key was used with another task")
            if used is not None:
                return [task_table.load_task(tx, used.event_id)]
        if isinstance(new.task_id, UnsetType):
            return None
        task = task_table.find_task(tx, new.task_id)
        if task is None:
            return None
        mark = task_table.load_payload(tx, task.id).request_mark
        if task.requester != new.from_agent or mark != content.mark:
            raise IdempotencyConflict(f"task {task.id} was another task")
        return [task]

    def _require_permission(
        self,
        tx: Tx,
        new: NewTask,
        content: RequestContent,
        target: TaskTarget,
        principal: PolicyPrincipal,
    ) -> None:
        """Ask the policy, and whether the input fits its contract."""
        self._parts.policy.evaluate_task_assignment(
            principal,
            self._parts.describe_agent(tx, target.agent),
            description=new.description,
            task_type=new.task_type,
        ).require_allowed()
        contract = self._parts.contract_of(tx, target.info)
        if contract is not None and contract.checks_input:
            problem = self._parts.find_mismatch(tx, contract, "input", mark_input(content))
            if problem:
                raise ContractMismatch(problem)

    def _build_task(self, tx: Tx, id: str, new: NewTask, target: TaskTarget) -> Task:
        executor, node = self._parts.find_executor(tx, target.agent)
        return Task(
            id=id,
            agent=target.agent,
            requester=new.from_agent,
            executor=executor,
            executor_node=node,
            description=new.description,
            info=msgspec.json.encode(target.info),
            created_at=tx.now,
            updated_at=tx.now,
        )

    # -- reports of other gateways

    def apply_report(self, tx: Tx, reported: TaskReported) -> Decisions:
        """Apply a report of the executor's gateway; reports of other nodes are ignored.

        Reports about a task that has ended here are ignored, unless the end was presumed: then the
        true end amends it.
        """
        envelope = reported.envelope
        ref = envelope.ref_event_id or ""
        task = task_table.find_requested_task(tx, ref)
        if task is None or task.executor != "remote":
            return NOTHING
        if task.has_ended and not (task.is_presumed and _is_end(envelope)):
            self._stop_late_executor(tx, task, reported)
            return NOTHING
        if reported.source != find_executor_node(tx, task, ref):
            raise Forbidden(f"{reported.source} does not execute task {task.id}")
        if task.executor_node != reported.source and not task.has_ended:
            sql = "UPDATE task SET executor_node = ? WHERE id = ?"
            tx.execute(sql, (reported.source, parse_event_id(task.id)))
        decisions = self._follow(tx, task, reported)
        if task.state is TaskState.UNKNOWN:
            self._note_word(tx, task, reported.source)
        return decisions

    def _note_word(self, tx: Tx, task: Task, node: str) -> None:
        """Stop waiting for the word of an executor."""
        now = task_table.load_task(tx, task.id)
        if now.state is not task.state:
            detail = f"{node} says that it is {now.state}; it was {task.state} until now"
            self._parts.core.incidents.raise_(tx, "task_known", task.id, detail)

    def _stop_late_executor(self, tx: Tx, task: Task, reported: TaskReported) -> None:
        """An executor that was away begins a task that has already ended here."""
        begins = reported.envelope.kind == EventKind.TASK_ACCEPT and task.accepted_at is None
        if begins and task.executor_node == reported.source:
            self.ask_to_cancel(tx, task, f"it had ended for its requester: {task.error_code}")

    def _follow(self, tx: Tx, task: Task, reported: TaskReported) -> Decisions:
        envelope = reported.envelope
        info = envelope.task or TaskInfo()
        if envelope.payload_ref is not None and envelope.kind == EventKind.TASK_COMPLETE:
            return self._await_blob(tx, task, reported.source, envelope.payload_ref)
        content = self._events.open_report(reported.source, envelope)
        if envelope.kind == EventKind.TASK_ACCEPT:
            self._follow_acceptance(tx, task, info)
        elif info.failure_class == CANCELLED or envelope.kind == EventKind.TASK_FAILED:
            self._follow_failure(tx, task, info, content)
        elif envelope.kind == EventKind.TASK_UPDATE:
            self._follow_update(tx, task, info, content)
        else:
            self._follow_result(tx, task, reported.source, content)
        return NOTHING

    def _follow_acceptance(self, tx: Tx, task: Task, info: TaskInfo) -> None:
        """Apply an acceptance; with progress, it also reports that the work has begun."""
        inputs = (TaskInput.ACCEPT,) if info.progress is None else _BEGIN
        begun = task_table.try_inputs(
            tx, task.id, inputs, {"eta_at": info.eta_at, "progress": info.progress}
        )
        if begun is None:
            raise WrongState(f"task {task.id} is {task.state}, so it cannot be accepted")
        self._parts.changes.note_change(tx, begun)
        self._pass_on(tx, begun, EventKind.TASK_ACCEPT, info)

    def _follow_update(self, tx: Tx, task: Task, info: TaskInfo, content: bytes) -> None:
        note = msgspec.json.decode(content, type=dict[str, str] | None) or {}
        if "attempt" in note:
            self._follow_retry(tx, task, note, content)
            return
        self._advance_to_running(tx, task)
        given = {"progress": info.progress, "eta_at": info.eta_at, "note": note.get("note")}
        values = {name: value for name, value in given.items() if value is not None}
        task = task_table.change_task(tx, task.id, TaskInput.UPDATE, values)
        self._parts.changes.note_change(tx, task)
        self._pass_on(tx, task, EventKind.TASK_UPDATE, info, content)

    def _follow_retry(self, tx: Tx, task: Task, note: dict[str, str], content: bytes) -> None:
        """The executor was lost, and its gateway begins another attempt."""
        attempt = task.attempt + 1
        values = {"attempt": attempt, "note": note.get("note"), "progress": 0.0, "eta_at": None}
        task = task_table.change_task(tx, task.id, TaskInput.RETRY, values)
        self._parts.changes.note_change(tx, task)
        self._pass_on(tx, task, EventKind.TASK_UPDATE, TaskInfo(progress=0.0), content)

    def _follow_failure(self, tx: Tx, task: Task, info: TaskInfo, content: bytes) -> None:
        given = _decode_note(content)
        code = given.get("code") or info.failure_class or "failed"
        end = self.presume_failed if PRESUMED in given else self.end_task
        end(tx, task, code[:64], given.get("error", ""))

    def end_task(self, tx: Tx, task: Task, code: str, error: str) -> None:
        """End a task that failed or was cancelled, as reported by its executor or without one."""
        values = {"error_code": code, "error": error[:2000]}
        ended = task_table.change_task(tx, task.id, _input_of_end(task, code), values)
        self._note_end(tx, task, ended)
        self._pass_on_failure(tx, ended, {})

    def presume_failed(self, tx: Tx, task: Task, code: str, error: str) -> None:
        """Presume that a task failed. A later report of its executor amends the end."""
        if task.is_presumed:
            return
        values = {"error_code": code, "error": error[:2000], "is_presumed": 1}
        ended = task_table.change_task(tx, task.id, _input_of_end(task, ""), values)
        self._note_end(tx, task, ended)
        self._parts.core.incidents.raise_(tx, "task_presumed_failed", task.id, error)
        self._pass_on_failure(tx, ended, {PRESUMED: "yes"})

    def _note_end(self, tx: Tx, before: Task, task: Task) -> None:
        if not before.is_presumed:
            self._parts.changes.note_end(tx, task)
            return
        self._parts.changes.note_amendment(tx, before, task)
        self._parts.core.incidents.raise_(
            tx,
            "task_known",
            task.id,
            f"{task.executor_node} says that it is {task.state}; its requester was told"
            f" {before.state} ({before.error_code})",
        )
        signal = Signal(signal="amended", reason=f"{task.state} {task.error_code or ''}".strip())
        self._parts.core.coordinator.writer.append_record(tx, task.id, signal)

    def _pass_on_failure(self, tx: Tx, task: Task, mark: dict[str, str]) -> None:
        code, error = task.error_code or "failed", task.error or ""
        content = msgspec.json.encode({"code": code, "error": error, **mark})
        info = TaskInfo(failure_class=failure_class_of(code))
        self._pass_on(tx, task, EventKind.TASK_FAILED, info, content)

    def _follow_result(self, tx: Tx, task: Task, source: str, content: bytes) -> None:
        """Apply a result, which must be one JSON value: clients get it inside a document."""
        try:
            check_json_payload(content)
        except InvalidRequest as error:
            self._parts.core.abuse.report_abuse(source, _UNREADABLE, error.message)
            self.end_task(tx, task, error.code, f"its result: {error.message}")
            return
        mark = fingerprint_content(content)
        self._follow_completion(tx, task, TaskPayload(result=content, mark=mark))

    def _follow_completion(self, tx: Tx, task: Task, result: TaskPayload) -> None:
        before, input = task, TaskInput.AMEND_COMPLETED
        if not task.is_presumed:
            self._advance_to_running(tx, task)
            input = TaskInput.COMPLETE
        task = task_table.complete_task(tx, task.id, result, input)[0]
        self._note_end(tx, before, task)
        content = EMPTY_PAYLOAD if result.result is None else result.result
        info = TaskInfo(progress=1.0)
        self._pass_on(tx, task, EventKind.TASK_COMPLETE, info, content, result.result_ref)

    def _pass_on(
        self,
        tx: Tx,
        task: Task,
        kind: EventKind,
        info: TaskInfo,
        content: bytes = EMPTY_PAYLOAD,
        digest: str | None = None,
    ) -> None:
        """Report a change of a task that this gateway handed on, to the gateway it came from."""
        if task.requester_node is not None:
            self._events.report(tx, task, kind, info, content, digest)

    def _advance_to_running(self, tx: Tx, task: Task) -> None:
        for state, input in (
            (TaskState.PENDING, TaskInput.ACCEPT),
            (TaskState.UNKNOWN, TaskInput.ACCEPT),
            (TaskState.ACCEPTED, TaskInput.START),
        ):
            if task.state is state:
                task = task_table.change_task(tx, task.id, input)

    def _await_blob(self, tx: Tx, task: Task, source: str, ref: PayloadRef) -> Decisions:
        """A result that is a blob completes its task once the blob is here."""
        key = self._events.unwrap_blob_key(source, ref)
        await_result(tx, ref, parse_event_id(task.id), source, key)
        if has_blob(tx, ref.digest):
            return self.complete_with_blob(tx, ref.digest)
        return (BlobWanted(ref.digest, source),)

    def complete_with_blob(self, tx: Tx, digest: str) -> Decisions:
        for id, key, size, source in take_awaited(tx, digest):
            keep_blob(tx, PayloadRef(digest, size, {}), key)
            task = task_table.find_task(tx, format_event_id(id))
            if task is None or (task.has_ended and not task.is_presumed):
                continue
            # The executor must hold the key of the blob that it refers to.
            if find_blob(tx, digest)[0] != key:
                self._parts.core.abuse.report_abuse(source, _FOREIGN_BLOB, digest)
                self.end_task(tx, task, "forbidden", "its result is the blob of another")
                continue
            result = TaskPayload(result_ref=digest, mark=digest.encode())
            self._follow_completion(tx, task, result)
        return NOTHING

    # -- executors that say nothing

    def await_word(self, tx: Tx, task: Task, why: str) -> None:
        """A request was given up although its receiver may have taken it: wait for a report."""
        until = tx.now + int(self._parts.settings.abandon_secs * 1000)
        task = task_table.change_task(tx, task.id, TaskInput.DOUBT, {"unknown_until": until})
        self._parts.changes.note_change(tx, task)
        detail = f"unknown, waiting for {task.executor_node}: its request is given up ({why})"
        self._parts.core.incidents.raise_(tx, "task_unknown", task.id, detail)

    def end_forgotten_tasks(self, tx: Tx, node: str) -> None:
        """Fail the tasks of a gateway that was restored from a backup: it may not know them.

        Tasks whose requests are still under way can be executed there.
        """
        why = f"gateway {node} was restored from a backup"

        def fail(tx: Tx, id: str) -> None:
            self.presume_failed(tx, task_table.load_task(tx, id), EXECUTOR_LOST, why)

        found = tx.fetch_all(_SELECT_TAKEN_BY, (node,))
        end_each(tx, [format_event_id(id) for (id,) in found], fail)

    def end_lost_tasks(self, tx: Tx, limit: int = 100) -> int:
        """Fail the tasks of other gateways that were revoked, or silent for too long."""
        directory = self._parts.core.routes.directory
        silent_since = tx.now - int(self._parts.settings.abandon_secs * 1000)
        silent = tx.fetch_all(_SELECT_SILENT, (tx.now, silent_since, limit))
        lost = {id: "has been silent for too long" for (id,) in silent}
        for node in directory.revoked.keys() - directory.gateways.keys():
            found = tx.fetch_all(_SELECT_OPEN_AT, (node, limit))
            lost |= {id: "was revoked" for (id,) in found}
        reasons = {format_event_id(id): what for id, what in lost.items()}

        def lose(tx: Tx, id: str) -> None:
            task = task_table.load_task(tx, id)
            why = f"gateway {task.executor_node} {reasons[id]}"
            if self._attempts.try_elsewhere(tx, task, task.executor_node, why) is None:
                self.presume_failed(tx, task, EXECUTOR_LOST, _count_attempts(task, why))

        def fail(tx: Tx, id: str) -> None:
            task = task_table.load_task(tx, id)
            why = f"gateway {task.executor_node} {reasons[id]}"
            self.presume_failed(tx, task, EXECUTOR_LOST, _count_attempts(task, why))

        return len(end_each(tx, reasons, lose, fail))


def _is_end(envelope: Envelope) -> bool:
    """Whether a report is about the end of a task."""
    if envelope.kind == EventKind.TASK_UPDATE:
        return envelope.task is not None and envelope.task.failure_class == CANCELLED
    return envelope.kind in (EventKind.TASK_COMPLETE, EventKind.TASK_FAILED)


def _input_of_end(task: Task, code: str) -> TaskInput:
    """The input by which a task ends without a result."""
    if task.is_presumed:
        is_cancelled = code == CANCELLED
        return TaskInput.AMEND_CANCELLED if is_cancelled else TaskInput.AMEND_FAILED
    if code == CANCELLED:
        return TaskInput.CANCEL
    return TaskInput.REFUSE if task.state in UNTAKEN_STATES else TaskInput.FAIL


def _build_request(
    task: Task, new: NewTask, content: RequestContent, target: TaskTarget, now: int
) -> OutgoingEvent:
    expires = None if isinstance(new.ttl_secs, UnsetType) else now + int(new.ttl_secs * 1000)
    traceparent = None if isinstance(new.traceparent, UnsetType) else new.traceparent
    envelope = draft_request(task, task.id, target.info, target.policy_version, traceparent)
    return OutgoingEvent(replace(envelope, expires_at=expires), content.payload, content.digest)


def _count_attempts(task: Task, why: str) -> str:
    return why if task.attempt == 1 else f"{why}, at attempt {task.attempt}"


def _idempotency_key(new: NewTask) -> tuple[str, str]:
    # Keys of clients cannot contain a space, so these cannot collide with keys of messages.
    return new.from_agent, f"task {new.idempotency_key}"


def find_executor_node(tx: Tx, task: Task, ref: str) -> str | None:
    """The node that the request `ref` is routed to, which may differ from the first one.

    The true end of a task can come from the executor of any attempt.
    """
    if task.accepted_at is not None and not task.is_presumed:
        return task.executor_node
    row = find_route(tx, parse_event_id(ref))
    return task.executor_node if row is None else row[0]


def find_request(tx: Tx, own: str, task: Task) -> str:
    """The event that last requested a task from another gateway."""
    id = parse_event_id(task.id)
    again = tx.fetch_one(_SELECT_ATTEMPT, (id,))
    source = own if again else task.requester_node or own
    sent = again[0] if again else id
    for _ in range(task_table.MAX_FORWARDS):
        # Handed on to the gateway where its agent lives now.
        forwards = find_forwards(tx, source, sent)
        if not forwards:
            break
        source, sent = own, forwards[-1][0]
    return format_event_id(sent)
