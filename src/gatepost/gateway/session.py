"""One client's session in frames, independent of the transport.

A transport passes frames to `receive_frame`, and sends the output of `take_output` whenever `wake`
is called. Replies to operations of one commit group leave together, in one frame.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Annotated, Any

import msgspec
from msgspec import Struct

from gatepost.errors import GatepostError, InvalidRequest, Unavailable
from gatepost.gateway.operations import Operations, weight
from gatepost.journal import Tx
from gatepost.mailbox import Waiter
from gatepost.wire import (
    AnyAnswer,
    Await,
    Deliver,
    Dequeue,
    Done,
    Failed,
    Failure,
    LeasedMessage,
    Op,
    Operation,
    Peek,
    PeekDeadLetter,
    Send,
    Subscribe,
    Unsubscribe,
)

log = logging.getLogger(__name__)

_MAX_UNANSWERED = 1024
_MAX_UNSENT = 256
_MAX_WAITS = 4096
_FRAME_BYTES = 512 * 1024
_LOOKS = (Peek, PeekDeadLetter)

Frame = Annotated[list[Operation], msgspec.Meta(max_length=4096)]

_decoder = msgspec.json.Decoder(Operation | Frame)
_encoder = msgspec.json.Encoder()


def read_frame(frame: bytes | str) -> Op | list[Op]:
    try:
        ops: Op | list[Op] = _decoder.decode(frame)
        return ops
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"bad frame: {error}") from None


class Subscription(Struct, eq=False):
    """A subscription. The subscribing transaction sets `waiter`, before any later transaction."""

    waiter: Waiter | None = None


class Session:
    """Runs a client's operations. Not thread-safe: everything happens on the event loop."""

    def __init__(self, operations: Operations, wake: Callable[[], None]) -> None:
        self._operations = operations
        self._core = operations.core
        self._wake = wake
        self._out: list[AnyAnswer] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._subscriptions: dict[str, Subscription] = {}
        self._unanswered = 0
        self._closed = False
        self._room = _set_event()
        self._taken = _set_event()
        self._looking = asyncio.Lock()
        self._sending: asyncio.Task[None] | None = None

    async def room(self) -> None:
        """Wait until the client may send more: few operations are open, and it reads replies."""
        await self._room.wait()

    @property
    def unsettled(self) -> bool:
        """Return whether an operation is unanswered, or a reply was not taken yet."""
        return bool(self._unanswered or self._tasks or self._out)

    def receive(self, frame: bytes | str) -> None:
        try:
            ops = read_frame(frame)
        except InvalidRequest as error:
            self.refuse(error)
            return
        for op in ops if isinstance(ops, list) else (ops,):
            self._begin(op)

    def refuse(self, error: GatepostError) -> None:
        """Answer input that was not an operation."""
        self._answer(Failed(error=Failure.from_error(error)))

    def take_output(self) -> list[bytes]:
        """Return all replies, in as few frames as their size allows."""
        out, self._out = self._out, []
        self._taken.set()
        self._make_room()
        return [_encoder.encode(part[0] if len(part) == 1 else part) for part in _parts(out)]

    def close(self) -> None:
        """End the session. Leases stay until they time out, because the client may come back."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        for subscription in self._subscriptions.values():
            if subscription.waiter is not None:
                subscription.waiter.gone = True
            self._core.submit(partial(self._leave, subscription))
        self._subscriptions.clear()

    # -- operations

    def _begin(self, op: Op) -> None:
        self._unanswered += 1
        if self._unanswered >= _MAX_UNANSWERED:
            self._room.clear()
        try:
            self._operations.admit(op)
            self._start(op)
        except GatepostError as error:
            self._finish(Failed(re=op.id, error=Failure.from_error(error)))

    def _start(self, op: Op) -> None:
        behind = self._sending if isinstance(op, Send) else None
        plan = self._operations.plan(op) if behind is None else None
        if plan is not None:
            self._core.writer.submit(plan, partial(self._done, op.id), weight(op))
        elif isinstance(op, Subscribe):
            self._subscribe(op)
        elif isinstance(op, Unsubscribe):
            self._unsubscribe(op)
        elif _waits(op):
            self._wait(op)
        else:
            task = self._spawn(self._perform(op, behind))
            if isinstance(op, Send):
                self._sending = task

    def _wait(self, op: Op) -> None:
        """Start an operation that waits; it does not count against the client's open operations."""
        if len(self._tasks) >= _MAX_WAITS:
            raise Unavailable("too many operations wait on this connection", retry_after=1.0)
        self._spawn(self._perform_waiting(op))
        self._unanswered -= 1

    def _spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if self._sending is task:
            self._sending = None

    async def _perform_waiting(self, op: Op) -> None:
        self._answer(await self._operations.answer(op))

    async def _perform(self, op: Op, behind: "asyncio.Task[None] | None") -> None:
        if behind is not None:
            # A message must not overtake an earlier one whose payload is still being stored.
            await asyncio.wait([behind])
        if isinstance(op, _LOOKS):
            # Large replies are made one at a time, and only once the last output was taken.
            async with self._looking:
                await self._taken.wait()
                self._finish(await self._operations.answer(op))
        else:
            self._finish(await self._operations.answer(op))

    def _done(self, re: int, reply: AnyAnswer, error: GatepostError | None) -> None:
        self._finish(reply if error is None else Failed(re=re, error=Failure.from_error(error)))

    def _finish(self, reply: AnyAnswer) -> None:
        self._unanswered -= 1
        self._make_room()
        self._answer(reply)

    def _answer(self, reply: AnyAnswer) -> None:
        if self._closed:
            return
        self._out.append(reply)
        if len(self._out) == 1:
            self._taken.clear()
            self._wake()
        elif len(self._out) >= _MAX_UNSENT:
            self._room.clear()

    def _make_room(self) -> None:
        if self._unanswered < _MAX_UNANSWERED:
            self._room.set()

    def _subscribe(self, op: Subscribe) -> None:
        if op.mailbox in self._subscriptions:
            raise InvalidRequest(f"this connection already listens to {op.mailbox}")
        consumer = op.consumer or f"session:{self._core.clock.random(8).hex()}"
        push = partial(self._push, op.mailbox)
        subscription = Subscription()

        def join_waiters(tx: Tx) -> list[LeasedMessage]:
            box = self._core.dispatcher.mailbox_ref(tx, op.mailbox)
            waiter = Waiter(box, consumer, op.credit, push)
            again = self._core.dispatcher.add_waiter(tx, waiter)
            subscription.waiter = waiter
            return again

        self._core.writer.submit(join_waiters, partial(self._subscribed, op))
        self._subscriptions[op.mailbox] = subscription

    def _subscribed(
        self, op: Subscribe, again: list[LeasedMessage], error: GatepostError | None
    ) -> None:
        if error is not None:
            self._subscriptions.pop(op.mailbox, None)
        self._done(op.id, Done(re=op.id), error)
        if again:
            self._push(op.mailbox, again)

    def _unsubscribe(self, op: Unsubscribe) -> None:
        subscription = self._subscriptions.get(op.mailbox)
        if subscription is None:
            raise InvalidRequest(f"this connection does not listen to {op.mailbox}")

        def give_up(tx: Tx) -> AnyAnswer:
            if subscription.waiter is not None:
                self._core.dispatcher.release_waiter(tx, subscription.waiter)
            return Done(re=op.id)

        self._core.writer.submit(give_up, partial(self._done, op.id))
        del self._subscriptions[op.mailbox]

    def _leave(self, subscription: Subscription, tx: Tx) -> None:
        if subscription.waiter is not None:
            self._core.dispatcher.remove_waiter(tx, subscription.waiter)

    def _push(self, mailbox: str, messages: list[LeasedMessage]) -> None:
        self._answer(Deliver(mailbox=mailbox, messages=messages))


async def carry(
    session: Session, receive: Coroutine[Any, Any, None], send: Coroutine[Any, Any, None]
) -> None:
    """Run a session until receiving or sending ends, whichever is first."""
    tasks = (asyncio.ensure_future(receive), asyncio.ensure_future(send))
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        session.close()
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            # A lost connection is the usual end, and not an error.
            if isinstance(result, Exception) and not isinstance(result, OSError):
                log.error("a session failed unexpectedly", exc_info=result)


def _waits(op: Op) -> bool:
    return isinstance(op, Await) or (isinstance(op, Dequeue) and op.wait_secs > 0)


def _set_event() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


def _parts(replies: list[AnyAnswer]) -> list[list[AnyAnswer]]:
    """Group replies by size; a delivery too large for a frame is split."""
    parts: list[list[AnyAnswer]] = [[]]
    size = 0
    for part, part_size in (piece for reply in replies for piece in _pieces(reply)):
        if size > _FRAME_BYTES:
            parts.append([])
            size = 0
        parts[-1].append(part)
        size += part_size
    return parts if parts[0] else []


def _pieces(reply: AnyAnswer) -> list[tuple[AnyAnswer, int]]:
    """Return a reply with its weight; split a delivery that is too large for a frame."""
    weight = _weight(reply)
    if weight <= _FRAME_BYTES or not isinstance(reply, Deliver) or len(reply.messages) == 1:
        return [(reply, weight)]
    half = len(reply.messages) // 2
    first = Deliver(mailbox=reply.mailbox, messages=reply.messages[:half])
    second = Deliver(mailbox=reply.mailbox, messages=reply.messages[half:])
    return _pieces(first) + _pieces(second)


def _weight(reply: AnyAnswer) -> int:
    messages = getattr(reply, "messages", ())
    return 100 + sum(300 + memoryview(getattr(m, "payload", b"")).nbytes for m in messages)
