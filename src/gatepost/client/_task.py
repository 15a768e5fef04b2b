"""Tasks in the client: calls of a requester, and the task of an executor."""

from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from gatepost.client._encoding import (
    check_encodable,
    check_report,
    encode_payload,
    fits_frame,
    unset_if_none,
)
from gatepost.client._http_client import read_pieces
from gatepost.client._mailbox_client import DEFAULT_TIMEOUT, MailboxClient
from gatepost.client._message import Message
from gatepost.errors import DeadlineExceeded, InvalidRequest, TaskFailed
from gatepost.wire.tasks import NewTask, TaskAwait, TaskAwaited, TaskCancel, TaskReport, TaskView

if TYPE_CHECKING:
    from gatepost.client._client import Client

_MAX_AWAIT_SECS = 30.0


class TaskClient(MailboxClient):
    """Calls about tasks; `Client` adds messages between agents."""

    async def create_task(
        self,
        description: str,
        *,
        to: str | Sequence[str] | None = None,
        capabilities: Sequence[str] | None = None,
        input: Any = UNSET,
        from_: str | None = None,
        task_type: str = "",
        ttl_secs: float | None = None,
        idempotency_key: str | None = None,
        may_wait: bool = False,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> TaskView:
        """Create a task for an agent, or for one that has the capabilities.

        Returns once the gateway has it on disk; `await_task` waits for its end. With several
        agents there is one task for each: use `create_tasks`. CapabilityUnavailable if the gateway
        of a capability's executor is offline, unless the task `may_wait`.
        """
        made = await self.create_tasks(
            description,
            to=to,
            capabilities=capabilities,
            input=input,
            from_=from_,
            task_type=task_type,
            ttl_secs=ttl_secs,
            idempotency_key=idempotency_key,
            may_wait=may_wait,
            timeout=timeout,
        )
        return made[0]

    async def create_tasks(
        self,
        description: str,
        *,
        to: str | Sequence[str] | None = None,
        capabilities: Sequence[str] | None = None,
        input: Any = UNSET,
        from_: str | None = None,
        task_type: str = "",
        ttl_secs: float | None = None,
        idempotency_key: str | None = None,
        may_wait: bool = False,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> list[TaskView]:
        """Create a task for each of several agents."""
        targets = [to] if isinstance(to, str) else to
        new = NewTask(
            self._drafts.resolve_sender(from_),
            description,
            UNSET if targets is None else list(targets),
            UNSET if capabilities is None else list(capabilities),
            task_id=self._drafts.next_id(),
            idempotency_key=unset_if_none(idempotency_key),
            task_type=task_type,
            ttl_secs=unset_if_none(ttl_secs),
            may_wait=may_wait,
        )
        check_encodable(new)
        deadline = self._loop.time() + timeout
        if input is not UNSET:
            raw = encode_payload(input)
            if fits_frame(raw):
                new.input = raw
            else:
                new.input_ref = await self._http.upload(read_pieces(bytes(raw)), timeout)
        await self._operations.slots.take(deadline)
        size = 0 if isinstance(new.input, UnsetType) else len(memoryview(new.input))
        made: list[TaskView] = await self._operations.create_task(new, size, deadline)
        return made

    async def show_task(self, task_id: str, *, timeout: float = DEFAULT_TIMEOUT) -> TaskView:
        """The current state of a task."""
        op = TaskAwait(task_id=task_id, wait_secs=0)
        answer: TaskAwaited = await self._request_answer(op, self._loop.time() + timeout)
        return answer.task

    async def await_task(self, task_id: str, *, timeout: float = DEFAULT_TIMEOUT) -> TaskView:
        """Wait for the end of a task. DeadlineExceeded means that it has not ended yet."""
        deadline = self._loop.time() + timeout
        while True:
            task = await self._poll_task(task_id, deadline)
            if task.has_ended:
                return task
            if self._loop.time() >= deadline:
                raise DeadlineExceeded(f"task {task_id} has not ended in time; it is {task.state}")

    async def watch_task(
        self, task_id: str, *, timeout: float = DEFAULT_TIMEOUT
    ) -> AsyncIterator[TaskView]:
        """Yield a task as it is, after every change, and when it has ended.

        Changes in quick succession may be one. DeadlineExceeded if it does not end in time.
        """
        deadline, known = self._loop.time() + timeout, 0
        while True:
            task = await self._poll_task(task_id, deadline, known)
            if task.updated_at > known or task.has_ended:
                known = task.updated_at
                yield task
            if task.has_ended:
                return
            if self._loop.time() >= deadline:
                raise DeadlineExceeded(f"task {task_id} has not ended in time; it is {task.state}")

    async def run_task(
        self,
        description: str,
        *,
        to: str | None = None,
        capabilities: Sequence[str] | None = None,
        input: Any = UNSET,
        from_: str | None = None,
        task_type: str = "",
        timeout: float = DEFAULT_TIMEOUT,
    ) -> Any:
        """Create a task, wait for its end and return its result.

        TaskFailed if it did not complete.
        """
        deadline = self._loop.time() + timeout
        created = await self.create_task(
            description,
            to=to,
            capabilities=capabilities,
            input=input,
            from_=from_,
            task_type=task_type,
            timeout=timeout,
        )
        task = await self.await_task(created.id, timeout=deadline - self._loop.time())
        if task.state != "completed":
            why = f": {task.error}" if task.error else ""
            raise TaskFailed(
                f"task {task.id} {task.state} ({task.error_code}){why}",
                failure=task.error_code or task.state,
            )
        return await self.load_result(task)

    async def load_result(self, task: TaskView) -> Any:
        """The result of a task that completed, fetched from the gateway if it is a blob."""
        if task.result_ref is not None:
            pieces = [piece async for piece in self._http.download(task.result_ref)]
            return msgspec.json.decode(b"".join(pieces))
        return None if isinstance(task.result, UnsetType) else msgspec.json.decode(task.result)

    async def cancel_task(
        self, task_id: str, *, reason: str = "", timeout: float = DEFAULT_TIMEOUT
    ) -> TaskView:
        """Cancel a task. If another gateway executes it, that gateway decides; see `await_task`."""
        op = TaskCancel(task_id=task_id, reason=reason[:2000])
        answer: TaskAwaited = await self._request_answer(op, self._loop.time() + timeout)
        return answer.task

    async def report_task(self, report: TaskReport, *, timeout: float = DEFAULT_TIMEOUT) -> None:
        """Report about a task that one executes; `Agent.on_task` does this itself."""
        result = report.result
        size = 0 if isinstance(result, UnsetType) else len(memoryview(result))
        if not isinstance(result, UnsetType) and not fits_frame(result):
            report.result = UNSET
            report.result_ref = await self._http.upload(read_pieces(bytes(result)), timeout)
        check_report(report)
        await self._operations.report_task(report, size, self._loop.time() + timeout)

    async def _poll_task(self, task_id: str, deadline: float, known: int | None = None) -> TaskView:
        """Wait for the end of a task; with `known`, for a change after that moment too.

        Every task has changed since the moment 0, so `known=0` does not wait.
        """
        async with self._long_waits.hold(deadline):
            wait = max(0.0, min(deadline - self._loop.time(), _MAX_AWAIT_SECS))
            wait = 0.0 if known == 0 else wait
            op = TaskAwait(task_id=task_id, wait_secs=wait, known=known or 0)
            answer: TaskAwaited = await self._request_answer(op, deadline + 0.1)
        return answer.task


class _RequestDocument(Struct):
    description: str = ""
    task_type: str = msgspec.field(default="", name="taskType")
    input: Any = None


class AgentTask:
    """A task for this agent. The handler's return value is its result.

    `id` is the one that its requester knows, at every attempt. `attempt_id` differs for each
    attempt: it is the id of the event that brought it.
    """

    def __init__(self, message: Message, document: Any, client: "Client", agent: str) -> None:
        given = msgspec.convert(document, _RequestDocument)
        event = message.event
        root = None if event is None else event.task_id or event.origin_event_id
        self.id = root or message.msg_id
        self.attempt_id = message.msg_id
        self.requester = message.from_
        self.description = given.description
        self.task_type = given.task_type
        self.input = given.input
        self._client = client
        self._agent = agent

    def __repr__(self) -> str:
        return f"<AgentTask {self.id} from {self.requester}>"

    async def update(
        self,
        progress: float | None = None,
        note: str | None = None,
        *,
        eta_secs: float | None = None,
    ) -> None:
        """Report progress from 0 to 1, a note, or another ETA. WrongState if it has ended."""
        report = TaskReport(self.attempt_id, self._agent, "update")
        report.progress, report.note = unset_if_none(progress), unset_if_none(note)
        report.eta_secs = unset_if_none(eta_secs)
        await self._client.report_task(report)

    async def accept(self, receipt: str, eta_secs: float | None) -> None:
        """Accept the task, which settles its mail too. `Agent` does so before the handler runs."""
        report = TaskReport(self.attempt_id, self._agent, "accept", receipt)
        report.eta_secs = unset_if_none(eta_secs)
        await self._client.report_task(report)

    async def complete(self, result: Any) -> None:
        raw: Raw = encode_payload(result)
        await self._client.report_task(
            TaskReport(self.attempt_id, self._agent, "complete", result=raw)
        )

    async def fail(self, code: str, error: str) -> None:
        report = TaskReport(
            self.attempt_id, self._agent, "fail", error_code=code, error=error[:2000]
        )
        await self._client.report_task(report)


async def load_task(message: Message, client: "Client", agent: str) -> AgentTask:
    """The task that a message brings; InvalidRequest if it brings none."""
    try:
        return AgentTask(message, await message.load(), client, agent)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"this is no task: {error}") from None
