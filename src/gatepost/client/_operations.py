"""Operations waiting for an answer; calls of one kind are coalesced into one operation."""

import asyncio
from abc import ABC, abstractmethod
from typing import Any, Generic, Self, TypeVar

from gatepost.client._encoding import EncodedReply, UploadedReply
from gatepost.errors import GatepostError, error_from_code
from gatepost.wire.frame_types import Op
from gatepost.wire.operations import (
    Ack,
    Enqueue,
    EnqueueAck,
    Enqueued,
    NewMessage,
    NewSend,
    Send,
    SendResults,
    Sent,
    Settled,
)
from gatepost.wire.tasks import (
    NewTask,
    TaskCreate,
    TaskReport,
    TaskReports,
    TasksCreated,
    TasksReported,
)

T = TypeVar("T")
Future = asyncio.Future[Any]


class PendingOperation(ABC):
    """One operation and the futures of its callers. `deadline` is in event loop time."""

    __slots__ = ("deadline", "first_deadline", "futures", "id", "timer", "weight")

    # Whether the operation counts against the client's limit of unanswered calls.
    takes_slot = True

    def __init__(self, deadline: float) -> None:
        self.futures: list[Future] = []
        self.id = 0
        self.weight = 0
        self.first_deadline = self.deadline = deadline
        self.timer: asyncio.TimerHandle | None = None

    @abstractmethod
    def build_op(self) -> Op:
        """The operation as it goes on the wire."""

    @abstractmethod
    def resolve_calls(self, answer: Any) -> None:
        """Give each caller its part of the answer."""

    def split_calls(self) -> "list[PendingOperation]":
        """The same calls, one operation each."""
        return [self]

    def fail_calls(self, error: GatepostError) -> None:
        for future in self.futures:
            reject_future(future, type(error)(error.message, retry_after=error.retry_after))

    def has_waiters(self) -> bool:
        """Whether any caller still waits."""
        return not all(future.done() for future in self.futures)


class SingleOperation(PendingOperation):
    """An operation of one caller, who gets the whole answer."""

    __slots__ = ("_op",)

    def __init__(self, op: Op, future: Future, deadline: float) -> None:
        super().__init__(deadline)
        self._op = op
        self.futures.append(future)

    def build_op(self) -> Op:
        self._op.id = self.id
        return self._op

    def resolve_calls(self, answer: Any) -> None:
        resolve_future(self.futures[0], answer)


class UnslottedOperation(SingleOperation):
    """An operation that ends or extends turns, or starts and stops listening.

    It takes no slot: it must not wait behind the calls that start turns.
    """

    __slots__ = ()
    takes_slot = False


class SettleOperation(UnslottedOperation):
    """Acks or nacks one turn; its failure is raised."""

    __slots__ = ()

    def resolve_calls(self, answer: Settled) -> None:
        if answer.failures:
            reject_future(self.futures[0], answer.failures[0].to_error())
        else:
            resolve_future(self.futures[0], None)


class CallBatch(PendingOperation, Generic[T]):
    """Calls of one kind in one operation. `size` is roughly an item's bytes on the wire."""

    __slots__ = ("items", "sizes")

    def __init__(self, deadline: float) -> None:
        super().__init__(deadline)
        self.items: list[T] = []
        self.sizes: list[int] = []

    def add_call(self, item: T, size: int, future: Future) -> None:
        self.items.append(item)
        self.sizes.append(size)
        self.futures.append(future)
        self.weight += size

    def split_calls(self) -> list[PendingOperation]:
        parts: list[PendingOperation] = []
        for item, size, future in zip(self.items, self.sizes, self.futures, strict=True):
            part = self._new_empty()
            part.add_call(item, size, future)
            parts.append(part)
        return parts

    def _new_empty(self) -> Self:
        return type(self)(self.deadline)


class EnqueueCalls(CallBatch[NewMessage]):
    __slots__ = ()

    def build_op(self) -> Op:
        return Enqueue(id=self.id, messages=self.items)

    def resolve_calls(self, answer: Enqueued) -> None:
        for future, ack in zip(self.futures, answer.results, strict=True):
            _conclude_future(future, ack)


class SendCalls(CallBatch[NewSend]):
    __slots__ = ()

    def build_op(self) -> Op:
        return Send(id=self.id, messages=self.items)

    def resolve_calls(self, answer: SendResults) -> None:
        for future, sent in zip(self.futures, answer.results, strict=True):
            _conclude_future(future, sent)


class TaskCreateCalls(CallBatch[NewTask]):
    """Each caller gets the list of the tasks that its request made."""

    __slots__ = ()

    def build_op(self) -> Op:
        return TaskCreate(id=self.id, tasks=self.items)

    def resolve_calls(self, answer: TasksCreated) -> None:
        for future, created in zip(self.futures, answer.results, strict=True):
            if created.code:
                error = error_from_code(created.code, created.error)
                error.retry_after = created.retry_after
                reject_future(future, error)
            else:
                resolve_future(future, created.tasks)


class TaskReportCalls(CallBatch[TaskReport]):
    """Reports end and extend work, so they take no slot."""

    __slots__ = ()

    takes_slot = False

    def build_op(self) -> Op:
        return TaskReports(id=self.id, reports=self.items)

    def resolve_calls(self, answer: TasksReported) -> None:
        refused = {each.index: each for each in answer.refused}
        for index, future in enumerate(self.futures):
            failure = refused.get(index)
            if failure is None:
                resolve_future(future, None)
            else:
                reject_future(future, error_from_code(failure.code, failure.error))


class AckCalls(CallBatch[tuple[str, EncodedReply | None]]):
    """Acks of one mailbox: each item is a lease handle and the reply to its sender, if any."""

    __slots__ = ("mailbox",)

    takes_slot = False

    def __init__(self, deadline: float, mailbox: str) -> None:
        super().__init__(deadline)
        self.mailbox = mailbox

    def build_op(self) -> Op:
        handles = [handle for handle, _ in self.items]
        op = Ack(id=self.id, mailbox=self.mailbox, receipts=handles)
        for handle, reply in self.items:
            if isinstance(reply, UploadedReply):
                op.reply_refs[handle] = reply.digest
            elif reply is not None:
                op.replies[handle] = reply
        return op

    def resolve_calls(self, answer: Settled) -> None:
        failures = {failure.subject: failure for failure in answer.failures}
        for (handle, _), future in zip(self.items, self.futures, strict=True):
            failure = failures.get(handle)
            if failure is None:
                resolve_future(future, None)
            else:
                reject_future(future, failure.to_error())

    def _new_empty(self) -> Self:
        return type(self)(self.deadline, self.mailbox)


def resolve_future(future: Future, value: object) -> None:
    if not future.done():
        future.set_result(value)


def reject_future(future: Future, error: GatepostError) -> None:
    if not future.done():
        future.set_exception(error)


def _conclude_future(future: Future, result: EnqueueAck | Sent) -> None:
    if result.error is None:
        resolve_future(future, result)
    else:
        reject_future(future, result.error.to_error())
