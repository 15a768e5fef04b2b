"""Operations waiting for an answer; calls of one kind are coalesced into one operation."""

import asyncio
from abc import ABC, abstractmethod
from typing import Any, Generic, Self, TypeVar

from msgspec import Raw

from gatepost.errors import GatepostError
from gatepost.wire import (
    Ack,
    Enqueue,
    EnqueueAck,
    Enqueued,
    Failure,
    NewMessage,
    NewSend,
    Op,
    Send,
    SendResults,
    Sent,
    Settled,
)

T = TypeVar("T")
Future = asyncio.Future[Any]


class Pending(ABC):
    """One operation and the futures of its callers. `deadline` is in event loop time."""

    __slots__ = ("deadline", "first_deadline", "futures", "id", "timer", "weight")

    # Whether the operation counts against the client's limit of unanswered calls.
    counted = True

    def __init__(self, deadline: float) -> None:
        self.futures: list[Future] = []
        self.id = 0
        self.weight = 0
        self.first_deadline = self.deadline = deadline
        self.timer: asyncio.TimerHandle | None = None

    @abstractmethod
    def op(self) -> Op:
        """The operation as it goes on the wire."""

    @abstractmethod
    def resolve(self, answer: Any) -> None:
        """Give each caller its part of the answer."""

    def parts(self) -> "list[Pending]":
        """The same calls, one operation each."""
        return [self]

    def fail(self, error: GatepostError) -> None:
        for future in self.futures:
            reject(future, type(error)(error.message, retry_after=error.retry_after))

    def wanted(self) -> bool:
        """Whether any caller still waits."""
        return not all(future.done() for future in self.futures)


class Single(Pending):
    """An operation of one caller, who gets the whole answer."""

    __slots__ = ("_op",)

    def __init__(self, op: Op, future: Future, deadline: float) -> None:
        super().__init__(deadline)
        self._op = op
        self.futures.append(future)

    def op(self) -> Op:
        self._op.id = self.id
        return self._op

    def resolve(self, answer: Any) -> None:
        accept(self.futures[0], answer)


class Settling(Single):
    """An operation that ends or extends turns, or starts and stops listening.

    It takes no slot: it must not wait behind the calls that start turns.
    """

    __slots__ = ()
    counted = False


class Verdict(Settling):
    """Acks or nacks one turn; its failure is raised."""

    __slots__ = ()

    def resolve(self, answer: Settled) -> None:
        if answer.failures:
            reject(self.futures[0], error_of(answer.failures[0]))
        else:
            accept(self.futures[0], None)


class Batch(Pending, Generic[T]):
    """Calls of one kind in one operation. `size` is roughly an item's bytes on the wire."""

    __slots__ = ("items", "sizes")

    def __init__(self, deadline: float) -> None:
        super().__init__(deadline)
        self.items: list[T] = []
        self.sizes: list[int] = []

    def add(self, item: T, size: int, future: Future) -> None:
        self.items.append(item)
        self.sizes.append(size)
        self.futures.append(future)
        self.weight += size

    def parts(self) -> list[Pending]:
        parts: list[Pending] = []
        for item, size, future in zip(self.items, self.sizes, self.futures, strict=True):
            part = self._empty()
            part.add(item, size, future)
            parts.append(part)
        return parts

    def _empty(self) -> Self:
        return type(self)(self.deadline)


class Enqueues(Batch[NewMessage]):
    __slots__ = ()

    def op(self) -> Op:
        return Enqueue(id=self.id, messages=self.items)

    def resolve(self, answer: Enqueued) -> None:
        for future, ack in zip(self.futures, answer.results, strict=True):
            _conclude(future, ack)


class Sends(Batch[NewSend]):
    __slots__ = ()

    def op(self) -> Op:
        return Send(id=self.id, messages=self.items)

    def resolve(self, answer: SendResults) -> None:
        for future, sent in zip(self.futures, answer.results, strict=True):
            _conclude(future, sent)


class Acks(Batch[tuple[str, Raw | None]]):
    """Acks of one mailbox: each item is a lease handle and the reply to its sender, if any."""

    __slots__ = ("mailbox",)

    counted = False

    def __init__(self, deadline: float, mailbox: str) -> None:
        super().__init__(deadline)
        self.mailbox = mailbox

    def op(self) -> Op:
        handles = [handle for handle, _ in self.items]
        replies = {handle: reply for handle, reply in self.items if reply is not None}
        return Ack(id=self.id, mailbox=self.mailbox, receipts=handles, replies=replies)

    def resolve(self, answer: Settled) -> None:
        failures = {failure.subject: failure for failure in answer.failures}
        for (handle, _), future in zip(self.items, self.futures, strict=True):
            failure = failures.get(handle)
            if failure is None:
                accept(future, None)
            else:
                reject(future, error_of(failure))

    def _empty(self) -> Self:
        return type(self)(self.deadline, self.mailbox)


def error_of(failure: Failure) -> GatepostError:
    error = failure.to_error()
    error.retry_after = failure.retry_after
    return error


def accept(future: Future, value: object) -> None:
    if not future.done():
        future.set_result(value)


def reject(future: Future, error: GatepostError) -> None:
    if not future.done():
        future.set_exception(error)


def _conclude(future: Future, result: EnqueueAck | Sent) -> None:
    if result.error is None:
        accept(future, result)
    else:
        reject(future, error_of(result.error))
