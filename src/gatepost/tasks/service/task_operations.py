"""Operations on tasks: create them, report about them, await and cancel them."""

import asyncio
from collections.abc import Callable
from functools import partial

from msgspec import UNSET, UnsetType

from gatepost.core.gateway_core import Core, TransactionPlan
from gatepost.core.wait_registry import WaitRegistry
from gatepost.errors import (
    CapabilityUnavailable,
    ContractUnchecked,
    Forbidden,
    GatepostError,
    InvalidRequest,
    NoRoute,
)
from gatepost.events import SKILL_DISTRIBUTION, fingerprint_content
from gatepost.events.json_payload import check_json_text
from gatepost.events.reserved_names import require_sender_name
from gatepost.journal import Tx
from gatepost.tasks.policy import PolicyPrincipal
from gatepost.tasks.service.large_requests import LargeRequests, without_aliases
from gatepost.tasks.service.task_contents import TaskContents
from gatepost.tasks.service.task_views import TaskViewReader, summarize_task, view_task
from gatepost.tasks.service.task_watchers import TaskWatchers
from gatepost.tasks.session_states import SessionState
from gatepost.tasks.task_request import RequestContent, encode_request
from gatepost.tasks.task_states import TaskState
from gatepost.tasks.task_table import Task
from gatepost.wire.operations import AnyAnswer
from gatepost.wire.tasks import (
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

# The result of a request without its input: a refusal, or the tasks of an earlier identical call.
# None if the task must be created.
KnownResult = list[Task] | GatepostError | None
Requirement = Callable[[Tx], object]


class TaskOperations:
    """Most are one transaction, unless a request or result has to be stored as a blob first.

    `session_states` has the current states of sessions, which the journal may lack.
    """

    def __init__(self, core: Core, waits: WaitRegistry) -> None:
        self._core = core
        self._waits = waits
        self._max_inline_bytes = core.settings.limits.max_payload_inline
        self.watchers = TaskWatchers()
        self.session_states: dict[str, SessionState] = {}
        self._views = TaskViewReader(core, self.session_states)
        self._large = LargeRequests(core)
        self.contents = TaskContents(core, self._large.find_key)
        core.tasks.parts.changes.on_changed = self.watchers.task_changed

    # -- create

    def plan_create(self, op: TaskCreate) -> TransactionPlan | None:
        """One transaction for all tasks, if all requests travel inline and none has a contract."""
        if any(self.contents.needs_check(new) for new in op.tasks):
            return None
        contents = [self.encode_inline(new) for new in op.tasks]
        if None in contents:
            return None
        return self._build_create_plan(op, [each for each in contents if each is not None])

    async def perform_create(self, op: TaskCreate) -> AnyAnswer:
        drafts = [self._draft_request(new) for new in op.tasks]
        results = await self._try_out(op.tasks, drafts)
        pairs = [
            pair
            for pair, known in zip(zip(op.tasks, drafts, strict=True), results, strict=True)
            if known is None
        ]
        pairs = await self._prepare_requests(pairs)
        created = iter(
            await self._large.commit(
                lambda tx: self._create_together(tx, pairs),
                [content for _, content in pairs],
                lambda made: [not each.code for each in made],
            )
        )
        return TasksCreated(
            re=op.id,
            results=[next(created) if known is None else _describe(known) for known in results],
        )

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
        for new, content in pairs:
            self._replace_aliases(tx, new)
            self._large.keep(tx, content)
        made = self._core.tasks.requested.create_all(tx, pairs)
        created = zip(pairs, made, strict=True)
        self._core.mirror.add_task_copies(tx, ((*pair, each) for pair, each in created))
        return [CreatedTask([summarize_task(task) for task in each]) for each in made]

    def _create_one(self, tx: Tx, new: NewTask, content: RequestContent) -> CreatedTask:
        mark = tx.begin_operation()
        try:
            (created,) = self._create(tx, [(new, content)])
        except GatepostError as error:
            tx.undo_operation(mark)
            self._note_miss(tx, new, error)
            return _describe(error)
        tx.keep_operation()
        return created

    async def create_tasks(
        self, new: NewTask, by: PolicyPrincipal | None, require: Requirement | None = None
    ) -> list[TaskView]:
        """Record tasks and send their requests; a large request is stored as a blob first.

        `require` raises an error if the caller may not do so any more.
        """
        draft = self._draft_request(new)
        (known,) = await self._try_out([new], [draft], by)
        if isinstance(known, GatepostError):
            raise known
        if known is not None:
            return await self._core.read(lambda tx: [view_task(tx, task) for task in known])
        ((_, content),) = await self._prepare_requests([(new, draft)])
        requested = self._core.tasks.requested

        def create(tx: Tx) -> list[TaskView]:
            if require is not None:
                require(tx)
            self._replace_aliases(tx, new)
            self._large.keep(tx, content)
            made = requested.create_tasks(tx, new, content, by)
            self._core.mirror.add_task_copies(tx, [(new, content, made)])
            return [view_task(tx, task) for task in made]

        try:
            return await self._large.commit(create, [content], lambda made: [True])
        except (NoRoute, CapabilityUnavailable) as missed:
            error = missed
            self._core.submit(lambda tx: self._note_miss(tx, new, error))
            raise

    def _replace_aliases(self, tx: Tx, new: NewTask) -> None:
        if not isinstance(new.to_agents, UnsetType):
            resolve = self._core.aliases.resolve_name
            new.to_agents = [resolve(tx, agent) for agent in new.to_agents]

    def _note_miss(self, tx: Tx, new: NewTask, error: GatepostError) -> None:
        is_miss = isinstance(error, NoRoute | CapabilityUnavailable)
        if is_miss and not isinstance(new.required_capabilities, UnsetType):
            self._core.tasks.parts.note_routing_miss(tx, new.required_capabilities)

    def encode_inline(self, new: NewTask) -> RequestContent | None:
        """The request of a task; None if it must be a blob."""
        require_sender_name(new.from_agent)
        if new.task_type == SKILL_DISTRIBUTION:
            raise Forbidden("only a gateway distributes skills: publish the capability")
        if not isinstance(new.input_ref, UnsetType):
            return None
        if not isinstance(new.input, UnsetType):
            check_json_text(bytes(new.input))
        payload = encode_request(new)
        if len(payload) > self._max_inline_bytes:
            return None
        return RequestContent(_mark_request(new, payload), payload)

    def _draft_request(self, new: NewTask) -> RequestContent:
        """The inline request of a task; a large one lacks its `input_ref`."""
        content = self.encode_inline(new)
        if content is not None:
            return content
        head = encode_request(new)
        if isinstance(new.input_ref, UnsetType):
            return RequestContent(_mark_request(new, head), head)
        if not isinstance(new.input, UnsetType):
            raise InvalidRequest("a task has an `input` or an `input_ref`, not both")
        return RequestContent(_mark_request(new, head + new.input_ref.encode()), head)

    def _is_large_request(self, new: NewTask, draft: RequestContent) -> bool:
        has_ref = not isinstance(new.input_ref, UnsetType)
        return has_ref or len(draft.payload) > self._max_inline_bytes

    async def _try_out(
        self,
        wanted: list[NewTask],
        drafts: list[RequestContent],
        by: PolicyPrincipal | None = None,
    ) -> list[KnownResult]:
        """Try to create tasks before their large requests are written; see `KnownResult`."""
        pairs = list(zip(wanted, drafts, strict=True))

        def try_all(tx: Tx) -> list[KnownResult]:
            found = [
                self._try_one(tx, *pair, by) if self._is_large_request(*pair) else None
                for pair in pairs
            ]
            left = zip(wanted, found, strict=True)
            self._large.require_size(tx, (new for new, known in left if known is None))
            return found

        if any(self._is_large_request(*pair) for pair in pairs):
            return await self._core.commit(try_all)
        return [None] * len(pairs)

    def _try_one(
        self, tx: Tx, new: NewTask, draft: RequestContent, by: PolicyPrincipal | None
    ) -> KnownResult:
        """Create a task without its input, and roll it back."""
        requested = self._core.tasks.requested
        mark = tx.begin_operation()
        try:
            new = without_aliases(new, partial(self._core.aliases.resolve_name, tx))
            known = requested.find_earlier(tx, new, draft)
            if known is None:
                requested.create_tasks(tx, new, draft, by)
            return known
        except ContractUnchecked:
            return None  # There cannot be a verdict about an input that has not been read.
        except GatepostError as error:
            refusal = error
        finally:
            tx.undo_operation(mark)
        self._note_miss(tx, new, refusal)
        return refusal

    async def _prepare_requests(
        self, pairs: list[tuple[NewTask, RequestContent]]
    ) -> list[tuple[NewTask, RequestContent]]:
        """Write the large requests of tasks, and ensure that their inputs have verdicts.

        InvalidRequest if an input is not one JSON value that every agent can read.
        """
        ready: list[tuple[NewTask, RequestContent]] = []
        try:
            for new, draft in pairs:
                is_large = self._is_large_request(new, draft)
                content = await self._large.write_request(new, draft) if is_large else draft
                ready.append((new, content))
            await self.contents.check_new(ready)
        except BaseException:
            self._large.forget(content.digest for _, content in ready)
            raise
        return ready

    # -- report

    def plan_reports(self, op: TaskReports) -> TransactionPlan | None:
        if any(self._is_large(report) or self._may_need_check(report) for report in op.reports):
            return None
        return lambda tx: self._apply_reports(tx, op)

    async def perform_reports(self, op: TaskReports) -> AnyAnswer:
        """Store results too large to travel inline as blobs, and check all, before they count."""
        for report in op.reports:
            if self._is_large(report):
                result, report.result = bytes(report.result), UNSET  # type: ignore[arg-type]
                report.result_ref = (await self._core.keep_payload([result])).digest
        return await self.contents.commit_checked(
            lambda tx: self._apply_reports(tx, op), lambda: self.contents.check_reports(op.reports)
        )

    def _may_need_check(self, report: TaskReport) -> bool:
        return report.action == "complete" and self.contents.has_contracts

    def _is_large(self, report: TaskReport) -> bool:
        if isinstance(report.result, UnsetType):
            return False
        return memoryview(report.result).nbytes > self._max_inline_bytes

    def _apply_reports(self, tx: Tx, op: TaskReports) -> TasksReported:
        """Apply all in one savepoint; if one fails, undo them and apply each on its own.

        ContractUnchecked, and nothing is applied, if a result has to be checked first.
        """
        mark = tx.begin_operation()
        try:
            changed = self._core.tasks.reports.apply_reports(tx, op.reports)
        except ContractUnchecked:
            raise
        except GatepostError:
            tx.undo_operation(mark)
            return TasksReported(re=op.id, refused=self._apply_each(tx, op.reports))
        tx.keep_operation()
        refused = map(_describe_mismatch, range(len(changed)), op.reports, changed)
        return TasksReported(re=op.id, refused=[each for each in refused if each is not None])

    def _apply_each(self, tx: Tx, reports: list[TaskReport]) -> list[RefusedReport]:
        refused = []
        for index, report in enumerate(reports):
            mark = tx.begin_operation()
            try:
                (task,) = self._core.tasks.reports.apply_reports(tx, [report])
            except ContractUnchecked:
                raise
            except GatepostError as error:
                tx.undo_operation(mark)
                refused.append(RefusedReport(index, error.code, error.message))
            else:
                tx.keep_operation()
                mismatch = _describe_mismatch(index, report, task)
                refused += [] if mismatch is None else [mismatch]
        return refused

    # -- await and cancel

    async def perform_await(self, op: TaskAwait) -> AnyAnswer:
        return TaskAwaited(re=op.id, task=await self.show_task(op.task_id, op.wait_secs, op.known))

    def plan_cancel(self, op: TaskCancel) -> TransactionPlan:
        return lambda tx: TaskAwaited(
            re=op.id,
            task=self._views.view(tx, self._core.tasks.cancel_task(tx, op.task_id, op.reason).id),
        )

    async def cancel_task(
        self, id: str, reason: str, require: Requirement | None = None
    ) -> TaskView:
        def cancel(tx: Tx) -> TaskView:
            if require is not None:
                require(tx)
            return self._views.view(tx, self._core.tasks.cancel_task(tx, id, reason).id)

        return await self._core.commit(cancel)

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
                # A task that is known to be open is read again only after it has ended.
                if known or not self.watchers.is_open(id) or wait_secs <= 0:
                    view = await self._views.read_view(id)
                    left = deadline - loop.time()
                    if view.has_ended or left <= 0 or (known and view.updated_at > known):
                        return view
                if not await self._waits.wait_for(change, deadline - loop.time()):
                    return await self._views.read_view(id)
            finally:
                self.watchers.forget(id, change)


def _describe_mismatch(index: int, report: TaskReport, task: Task) -> RefusedReport | None:
    """A completion that failed its task: the result does not fit, or cannot be read."""
    if report.action != "complete" or task.state is not TaskState.FAILED:
        return None
    return RefusedReport(index, task.error_code or "failed", task.error or "")


def _mark_request(new: NewTask, content: bytes) -> bytes:
    targets = "*" if new.to_agents is UNSET else " ".join(new.to_agents)
    return fingerprint_content(targets.encode() + b"\n" + content)


def _describe(known: list[Task] | GatepostError) -> CreatedTask:
    if isinstance(known, GatepostError):
        return CreatedTask([], known.code, known.message, known.retry_after)
    return CreatedTask([summarize_task(task) for task in known])
