"""One client's conversation in frames, whatever carries them.

A transport feeds `receive` with frames and sends what `take_output` returns whenever `wake` is
called. Answers to operations that share a commit group leave together, in one frame.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial

import msgspec

from gatepost.errors import GatepostError, Internal, InvalidRequest
from gatepost.gateway.limits import Bucket
from gatepost.gateway.operations import Operations
from gatepost.journal import Tx
from gatepost.mailbox import Waiter
from gatepost.wire import (
    Deliver,
    Done,
    Enqueue,
    Failed,
    Failure,
    Message,
    Op,
    Operation,
    Reply,
    Send,
    Subscribe,
    Unsubscribe,
)

log = logging.getLogger(__name__)

_MAX_UNANSWERED = 1024
_FRAME_BYTES = 512 * 1024

_decoder = msgspec.json.Decoder(Operation | list[Operation])
_encoder = msgspec.json.Encoder()


class Session:
    """Not thread-safe: everything happens on the event loop."""

    def __init__(self, operations: Operations, bucket: Bucket, wake: Callable[[], None]) -> None:
        self._operations = operations
        self._core = operations.core
        self._bucket = bucket
        self._wake = wake
        self._out: list[Reply] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiters: dict[str, Waiter] = {}
        self._unanswered = 0
        self._closed = False
        self._room = asyncio.Event()
        self._room.set()

    async def room(self) -> None:
        """Wait until the client has few enough operations under way to take another frame."""
        await self._room.wait()

    def receive(self, frame: bytes | str) -> None:
        try:
            ops = _decoder.decode(frame)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self.refuse(InvalidRequest(f"bad frame: {error}"))
            return
        for op in ops if isinstance(ops, list) else (ops,):
            self._begin(op)

    def refuse(self, error: GatepostError) -> None:
        """Answer something that was no operation at all."""
        self._answer(Failed(error=Failure.of(error)))

    def take_output(self) -> list[bytes]:
        """Everything to send, as few frames as their size allows."""
        out, self._out = self._out, []
        return [_encoder.encode(part[0] if len(part) == 1 else part) for part in _parts(out)]

    def close(self) -> None:
        """The client is gone. It keeps its leases until they time out, for it may come back."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        for waiter in self._waiters.values():
            waiter.gone = True
            self._core.submit(partial(self._core.dispatcher.leave, waiter=waiter))
        self._waiters.clear()

    # -- inside

    def _begin(self, op: Op) -> None:
        self._unanswered += 1
        if self._unanswered >= _MAX_UNANSWERED:
            self._room.clear()
        try:
            self._bucket.take(len(op.messages) if isinstance(op, Enqueue | Send) else 1)
            self._start(op)
        except GatepostError as error:
            self._finish(Failed(re=op.id, error=Failure.of(error)))

    def _start(self, op: Op) -> None:
        plan = self._operations.plan(op)
        if plan is not None:
            self._core.writer.submit(plan, partial(self._done, op.id))
        elif isinstance(op, Subscribe):
            self._subscribe(op)
        elif isinstance(op, Unsubscribe):
            self._unsubscribe(op)
        else:
            task = asyncio.create_task(self._perform(op))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _perform(self, op: Op) -> None:
        try:
            reply = await self._operations.perform(op)
        except GatepostError as error:
            reply = Failed(re=op.id, error=Failure.of(error))
        except Exception:
            log.exception("an operation failed unexpectedly")
            reply = Failed(re=op.id, error=Failure.of(Internal("an internal error")))
        self._finish(reply)

    def _done(self, re: int, reply: Reply, error: GatepostError | None) -> None:
        self._finish(reply if error is None else Failed(re=re, error=Failure.of(error)))

    def _finish(self, reply: Reply) -> None:
        self._unanswered -= 1
        if self._unanswered < _MAX_UNANSWERED:
            self._room.set()
        self._answer(reply)

    def _answer(self, reply: Reply) -> None:
        self._out.append(reply)
        if len(self._out) == 1:
            self._wake()

    def _subscribe(self, op: Subscribe) -> None:
        if op.mailbox in self._waiters:
            raise InvalidRequest(f"this connection already listens to {op.mailbox}")
        consumer = op.consumer or f"session:{self._core.clock.random(8).hex()}"
        push = partial(self._push, op.mailbox)

        def subscribe(tx: Tx) -> tuple[Waiter, list[Message]]:
            box = self._core.dispatcher.box(tx, op.mailbox)
            waiter = Waiter(box, consumer, op.credit, push)
            return waiter, self._core.dispatcher.wait(tx, waiter)

        self._core.writer.submit(subscribe, partial(self._subscribed, op))

    def _subscribed(
        self, op: Subscribe, value: tuple[Waiter, list[Message]], error: GatepostError | None
    ) -> None:
        if error is not None:
            self._done(op.id, Done(), error)
            return
        waiter, again = value
        if self._closed:
            self._core.submit(partial(self._core.dispatcher.leave, waiter=waiter))
            return
        self._waiters[op.mailbox] = waiter
        self._finish(Done(re=op.id))
        if again:
            self._push(op.mailbox, again)

    def _unsubscribe(self, op: Unsubscribe) -> None:
        waiter = self._waiters.pop(op.mailbox, None)
        if waiter is None:
            raise InvalidRequest(f"this connection does not listen to {op.mailbox}")

        def give_up(tx: Tx) -> Reply:
            self._core.dispatcher.give_up(tx, waiter)
            return Done(re=op.id)

        self._core.writer.submit(give_up, partial(self._done, op.id))

    def _push(self, mailbox: str, messages: list[Message]) -> None:
        self._answer(Deliver(mailbox=mailbox, messages=messages))


def _parts(replies: list[Reply]) -> list[list[Reply]]:
    """Replies in groups of bounded size; a large delivery is divided too."""
    parts: list[list[Reply]] = [[]]
    size = 0
    for reply in (piece for whole in replies for piece in _pieces(whole)):
        if size > _FRAME_BYTES:
            parts.append([])
            size = 0
        parts[-1].append(reply)
        size += _weight(reply)
    return parts if parts[0] else []


def _pieces(reply: Reply) -> list[Reply]:
    if not isinstance(reply, Deliver) or _weight(reply) <= _FRAME_BYTES:
        return [reply]
    half = len(reply.messages) // 2
    if not half:
        return [reply]
    first = Deliver(mailbox=reply.mailbox, messages=reply.messages[:half])
    second = Deliver(mailbox=reply.mailbox, messages=reply.messages[half:])
    return _pieces(first) + _pieces(second)


def _weight(reply: Reply) -> int:
    messages = getattr(reply, "messages", ())
    return 100 + sum(300 + memoryview(getattr(m, "payload", b"")).nbytes for m in messages)
