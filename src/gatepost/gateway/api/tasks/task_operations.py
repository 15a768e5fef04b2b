"""Operations on tasks: create them, report about them, await and cancel them."""

import asyncio
from collections.abc import Iterator
from itertools import chain

import msgspec
from msgspec import UNSET, UnsetType

from gatepost.delivery.blob_records import find_blob
from gatepost.errors import CapabilityUnavailable, GatepostError, InvalidRequest, NoRoute
from gatepost.events import fingerprint_content
from gatepost.events.json_payload import check_json_text
from gatepost.gateway.api.mailbox_operations import TransactionPlan
from gatepost.gateway.api.tasks.large_contents import LargeContents
from gatepost.gateway.api.tasks.task_view_reader import TaskViewReader
from gatepost.gateway.api.tasks.task_views import summarize_task, view_task
from gatepost.gateway.api.tasks.task_watchers import TaskWatchers
from gatepost.gateway.api.wait_registry import WaitRegistry
from gatepost.gateway.core import Core
from gatepost.hub.policy import PolicyPrincipal
from gatepost.hub.session_states import SessionState
from gatepost.hub.task_request import RequestContent, encode_request
from gatepost.journal import Tx
from gatepost.task_wire import (
    CreatedTask,
    NewTask,
    RefusedReport,
    TaskAwait,
    TaskAwaited,
    TaskCancel,
    TaskCreate,
    TaskReport,
    TaskReports,
    TasksCreated,
    TasksReported,
    TaskView,
)
from gatepost.wire import AnyAnswer


class TaskOperations:
    """Most are one transaction, unless a request or result has to be stored as a blob first.

    `session_states` knows better than the journal in which states the sessions of tasks are.
    """

    def __init__(self, core: Core, waits: WaitRegistry) -> None:
        self._core = core
        self._waits = waits
        self._max_inline_bytes = core.settings.limits.max_payload_inline
        self.watchers = TaskWatchers()
        self.session_states: dict[str, SessionState] = {}
        self._views = TaskViewReader(core, self.session_states)
        self.large_contents = LargeContents(core)
        core.tasks.parts.changes.on_changed = self.watchers.task_changed

    # -- create

    def plan_create(self, op: TaskCreate) -> TransactionPlan | None:
        """One transaction for all tasks, if all requests travel inline."""
        contents = [self.encode_inline(new) for new in op.tasks]
        if None in contents:
            return None
        return self._build_create_plan(op, [each for each in contents if each is not None])

    async def perform_create(self, op: TaskCreate) -> AnyAnswer:
        contents = [await self.prepare_request(new) for new in op.tasks]
        return await self._core.commit(self._build_create_plan(op, contents))

    def _build_create_plan(self, op: TaskCreate, contents: list[RequestContent]) -> TransactionPlan:
        pairs = list(zip(op.tasks, contents, strict=True))
        return lambda tx: TasksCreated(re=op.id, results=self._create_together(tx, pairs))

    def _create_together(
        self, tx: Tx, pairs: list[tuple[NewTask, RequestContent]]
    ) -> list[CreatedTask]:
        """Create all in one savepoint; if one fails, undo them and create each on its own."""
        mark = tx.begin_operation()
        try:
            created = self._create(tx, pairs)
        except GatepostError:
            tx.undo_operation(mark)
            return [self._create_one(tx, *pair) for pair in pairs]
        tx.keep_operation()
        return created

    def _create(self, tx: Tx, pairs: list[tuple[NewTask, RequestContent]]) -> list[CreatedTask]:
        made = self._core.tasks.requested.create_all(tx, pairs)
        return [CreatedTask([summarize_task(task) for task in each]) for each in made]

    def _create_one(self, tx: Tx, new: NewTask, content: RequestContent) -> CreatedTask:
        mark = tx.begin_operation()
        try:
            (created,) = self._create(tx, [(new, content)])
        except GatepostError as error:
            tx.undo_operation(mark)
            self._note_miss(tx, new, error)
            return CreatedTask([], error.code, error.message, error.retry_after)
        tx.keep_operation()
        return created

    async def create_tasks(self, new: NewTask, by: PolicyPrincipal | None) -> list[TaskView]:
        """Record tasks and send their requests; a large request is stored as a blob first."""
        content = await self.prepare_request(new)
        requested = self._core.tasks.requested

        def create(tx: Tx) -> list[TaskView]:
            return [view_task(tx, task) for task in requested.create_tasks(tx, new, content, by)]

        try:
            return await self._core.commit(create)
        except (NoRoute, CapabilityUnavailable) as missed:
            error = missed
            self._core.submit(lambda tx: self._note_miss(tx, new, error))
            raise

    def _note_miss(self, tx: Tx, new: NewTask, error: GatepostError) -> None:
        is_miss = isinstance(error, NoRoute | CapabilityUnavailable)
        if is_miss and not isinstance(new.required_capabilities, UnsetType):
            self._core.tasks.parts.note_routing_miss(tx, new.required_capabilities)

    def encode_inline(self, new: NewTask) -> RequestContent | None:
        """The request of a task, unless that has to be a blob."""
        if not isinstance(new.input_ref, UnsetType):
            return None
        if not isinstance(new.input, UnsetType):
            check_json_text(bytes(new.input))
        payload = encode_request(new)
        if len(payload) > self._max_inline_bytes:
            return None
        return RequestContent(_mark_request(new, payload), payload)

    async def prepare_request(self, new: NewTask) -> RequestContent:
        """Encode the request of a task. InvalidRequest if its input is not one JSON value."""
        content = self.encode_inline(new)
        if content is not None:
            return content
        if not isinstance(new.input_ref, UnsetType):
            return await self._compose_large_request(new, new.input_ref)
        if not isinstance(new.input, UnsetType):
            await self.large_contents.check_new_input(new, [bytes(new.input)])
        payload = encode_request(new)
        blob = await self._core.keep_payload([payload])
        return RequestContent(_mark_request(new, payload), digest=blob.digest)

    async def _compose_large_request(self, new: NewTask, digest: str) -> RequestContent:
        """The input is a blob already: the request is another blob around its content."""
        if not isinstance(new.input, UnsetType):
            raise InvalidRequest("a task has an `input` or an `input_ref`, not both")
        key, _ = await self._core.read(lambda tx: find_blob(tx, digest))
        head = encode_request(new)
        begin = head[:-1] + (b"," if len(head) > 2 else b"") + b'"input":'

        def pieces() -> Iterator[bytes]:
            return chain([begin], self._core.blobs.read_payload(digest, key), [b"}"])

        await asyncio.to_thread(_check_json, pieces())
        given = self._core.blobs.read_payload(digest, key)
        await self.large_contents.check_new_input(new, given)
        blob = await self._core.keep_payload(pieces())
        return RequestContent(_mark_request(new, head + digest.encode()), digest=blob.digest)

    # -- report

    def plan_reports(self, op: TaskReports) -> TransactionPlan | None:
        if any(self._is_large(report) or self._has_large(report) for report in op.reports):
            return None
        return lambda tx: self._apply_reports(tx, op)

    async def perform_reports(self, op: TaskReports) -> AnyAnswer:
        """Store results too large to travel inline as blobs, then report."""
        for report in op.reports:
            if self._is_large(report):
                result, report.result = bytes(report.result), UNSET  # type: ignore[arg-type]
                report.result_ref = (await self._core.keep_payload([result])).digest
            await self.large_contents.check_report(report)
        return await self._core.commit(lambda tx: self._apply_reports(tx, op))

    def _has_large(self, report: TaskReport) -> bool:
        """Whether a result is a blob that may have to be checked against a contract."""
        is_blob = not isinstance(report.result_ref, UnsetType)
        return is_blob and self.large_contents.has_contracts

    def _is_large(self, report: TaskReport) -> bool:
        if isinstance(report.result, UnsetType):
            return False
        return memoryview(report.result).nbytes > self._max_inline_bytes

    def _apply_reports(self, tx: Tx, op: TaskReports) -> TasksReported:
        """Apply all in one savepoint; if one fails, undo them and apply each on its own."""
        mark = tx.begin_operation()
        try:
            self._core.tasks.reports.apply_reports(tx, op.reports)
        except GatepostError:
            tx.undo_operation(mark)
            return TasksReported(re=op.id, refused=self._apply_each(tx, op.reports))
        tx.keep_operation()
        return TasksReported(re=op.id)

    def _apply_each(self, tx: Tx, reports: list[TaskReport]) -> list[RefusedReport]:
        refused = []
        for index, report in enumerate(reports):
            mark = tx.begin_operation()
            try:
                self._core.tasks.reports.apply_reports(tx, [report])
            except GatepostError as error:
                tx.undo_operation(mark)
                refused.append(RefusedReport(index, error.code, error.message))
            else:
                tx.keep_operation()
        return refused

    # -- await and cancel

    async def perform_await(self, op: TaskAwait) -> AnyAnswer:
        return TaskAwaited(re=op.id, task=await self.show_task(op.task_id, op.wait_secs, op.known))

    def plan_cancel(self, op: TaskCancel) -> TransactionPlan:
        return lambda tx: TaskAwaited(
            re=op.id,
            task=self._views.view(tx, self._core.tasks.cancel_task(tx, op.task_id, op.reason).id),
        )

    async def cancel_task(self, id: str, reason: str) -> TaskView:
        return await self._core.commit(
            lambda tx: self._views.view(tx, self._core.tasks.cancel_task(tx, id, reason).id)
        )

    async def show_task(self, id: str, wait_secs: float = 0.0, known: int = 0) -> TaskView:
        """A task once it has ended, or when the wait is over.

        With `known`, a change after that moment ends the wait too.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_secs
        while True:
            watch = self.watchers.next_change if known else self.watchers.end_of
            change = watch(id)
            try:
                # A task that is known to be open is looked at only once it has ended.
                if known or not self.watchers.is_open(id) or wait_secs <= 0:
                    view = await self._views.read_view(id)
                    left = deadline - loop.time()
                    if view.has_ended or left <= 0 or (known and view.updated_at > known):
                        return view
                if not await self._waits.wait_for(change, deadline - loop.time()):
                    return await self._views.read_view(id)
            finally:
                self.watchers.forget(id, change)


def _mark_request(new: NewTask, content: bytes) -> bytes:
    targets = "*" if new.to_agents is UNSET else " ".join(new.to_agents)
    return fingerprint_content(targets.encode() + b"\n" + content)


def _check_json(pieces: Iterator[bytes]) -> None:
    try:
        msgspec.json.decode(b"".join(pieces), type=msgspec.Raw)
    except ValueError as error:
        raise InvalidRequest(f"the input of a task must be JSON: {error}") from None
