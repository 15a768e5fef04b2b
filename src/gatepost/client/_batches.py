"""Calls that wait for an answer, coalesced: many callers, one operation on the wire."""

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
    """One operation and those who wait for it. `deadline` is in the event loop's time."""

    __slots__ = ("deadline", "futures", "id", "since", "timer", "weight")

    # Whether it takes one of the places that bound what a client may have under way.
    counted = True

    def __init__(self, deadline: float) -> None:
        self.futures: list[Future] = []
        self.id = 0
        self.weight = 0
        self.since = self.deadline = deadline
        self.timer: asyncio.TimerHandle | None = None

    @abstractmethod
    def op(self) -> Op: ...

    @abstractmethod
    def resolve(self, answer: Any) -> None:
        """Tell each caller its part of the answer."""

    def parts(self) -> "list[Pending]":
        """The same calls, each as an operation of its own."""
        return [self]

    def fail(self, error: GatepostError) -> None:
        for future in self.futures:
            reject(future, type(error)(error.message, retry_after=error.retry_after))

    def wanted(self) -> bool:
        """Whether anybody still waits."""
        return not all(future.done() for future in self.futures)


class Single(Pending):
    """An operation that is not coalesced; its caller gets the answer as it came."""

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
    """Ends or prolongs turns, so it never waits for a place behind calls that start them."""

    __slots__ = ()
    counted = False


class Verdict(Settling):
    """Ends one turn; what fails about it is raised."""

    __slots__ = ()

    def resolve(self, answer: Settled) -> None:
        if answer.failures:
            reject(self.futures[0], error_of(answer.failures[0]))
        else:
            accept(self.futures[0], None)


class Batch(Pending, Generic[T]):
    """Calls of one kind. `size` is what an item weighs on the wire, roughly."""

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
        found: list[Pending] = []
        for item, size, future in zip(self.items, self.sizes, self.futures, strict=True):
            part = self._empty()
            part.add(item, size, future)
            found.append(part)
        return found

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
    """Acks of one mailbox: receipts, each with the reply its sender gets, if any."""

    __slots__ = ("mailbox",)

    counted = False

    def __init__(self, deadline: float, mailbox: str) -> None:
        super().__init__(deadline)
        self.mailbox = mailbox

    def op(self) -> Op:
        receipts = [receipt for receipt, _ in self.items]
        replies = {receipt: reply for receipt, reply in self.items if reply is not None}
        return Ack(id=self.id, mailbox=self.mailbox, receipts=receipts, replies=replies)

    def resolve(self, answer: Settled) -> None:
        failures = {failure.subject: failure for failure in answer.failures}
        for (receipt, _), future in zip(self.items, self.futures, strict=True):
            failure = failures.get(receipt)
            if failure is None:
                accept(future, None)
            else:
                reject(future, error_of(failure))

    def _empty(self) -> Self:
        return type(self)(self.deadline, self.mailbox)


def error_of(failure: Failure) -> GatepostError:
    error = failure.error()
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
