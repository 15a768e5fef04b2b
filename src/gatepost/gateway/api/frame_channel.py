"""One client connected in frames, independent of the transport.

A transport passes frames to `receive_frame`, and sends the output of `take_output` whenever `wake`
is called. Replies to operations of one commit group leave together, in one frame.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Annotated, Any, Protocol

import msgspec

from gatepost.core.gateway_core import TransactionPlan
from gatepost.errors import GatepostError, InvalidRequest, Unavailable
from gatepost.gateway.api.mail_subscriptions import MailSubscriptions
from gatepost.gateway.api.operations import Operations, operation_weight
from gatepost.listening.json_input import decode_json
from gatepost.wire.frame_types import Op
from gatepost.wire.operations import (
    Ack,
    AnyAnswer,
    Await,
    Deliver,
    Dequeue,
    Failed,
    Failure,
    LeasedMessage,
    Nack,
    Operation,
    Peek,
    PeekDeadLetter,
    Send,
    Subscribe,
    Unsubscribe,
)
from gatepost.wire.tasks import TaskAwait

log = logging.getLogger(__name__)

_MAX_UNANSWERED = 1024
_MAX_UNSENT = 256
_MAX_WAITS = 4096
_MAX_FRAME_BYTES = 512 * 1024
_LARGE_READS = (Peek, PeekDeadLetter)
# Operations that take effect in order of arrival, although some store a payload first.
_KEPT_IN_ORDER: dict[type[Op], tuple[type[Op], ...]] = {
    Send: (Send,),
    Ack: (Ack, Nack),
    Nack: (Ack, Nack),
}

OperationBatch = Annotated[list[Operation], msgspec.Meta(max_length=4096)]

_frame_decoder: msgspec.json.Decoder[Op | list[Op]] = msgspec.json.Decoder(
    Operation | OperationBatch
)
_reply_encoder = msgspec.json.Encoder()


class _OperationId(msgspec.Struct):
    """Only the id of an operation, whose other fields may be invalid."""

    id: int = 0


_ids_decoder: msgspec.json.Decoder[_OperationId | list[_OperationId]] = msgspec.json.Decoder(
    _OperationId | Annotated[list[_OperationId], msgspec.Meta(max_length=4096)]
)


def read_frame(frame: bytes | str) -> Op | list[Op]:
    return decode_json(_frame_decoder, frame, "bad frame: ")


def _read_ids(frame: bytes | str) -> list[int]:
    """Return the ids for answers to a frame that is not an operation; 0 if it has none."""
    try:
        found = _ids_decoder.decode(frame)
    except (ValueError, RecursionError):
        return [0]
    ids = found if isinstance(found, list) else [found]
    return list(dict.fromkeys(each.id for each in ids)) or [0]


class OperationAuthority(Protocol):
    """Limits the operations of a client other than the operator; raises an error for refusals."""

    def authorize(self, op: Op) -> None:
        """Refuse an operation that the client may never do."""

    def has_subject(self, op: Op) -> bool:
        """Whether `check_subject` must be asked before the operation."""

    async def check_subject(self, op: Op) -> None:
        """Refuse an operation after looking up its messages and blobs in the journal."""

    def restrict_plan(self, op: Op, plan: TransactionPlan) -> TransactionPlan:
        """Return the transaction of an operation, with the checks that belong into it."""

    def admit(self, op: Op) -> None:
        """Refuse an operation that exceeds the rate limit."""


class FrameChannel:
    """Runs a client's operations. Not thread-safe: everything happens on the event loop."""

    def __init__(
        self,
        operations: Operations,
        wake: Callable[[], None],
        authority: OperationAuthority | None = None,
    ) -> None:
        self._operations = operations
        self._authority = authority
        self._core = operations.core
        self._wake = wake
        self._replies: list[AnyAnswer] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._subscriptions = MailSubscriptions(
            self._core, self._push_messages, self._finish_planned
        )
        self._unanswered = 0
        self._closed = False
        self._has_capacity = _set_event()
        self._output_taken = _set_event()
        self._large_read_lock = asyncio.Lock()
        self._last_tasks: dict[type[Op], asyncio.Task[None]] = {}

    async def wait_for_capacity(self) -> None:
        """Wait until few operations are open and the client has read its replies."""
        await self._has_capacity.wait()

    @property
    def has_pending_replies(self) -> bool:
        """Return whether an operation is unanswered, or a reply was not taken yet."""
        return bool(self._unanswered or self._tasks or self._replies)

    def receive_frame(self, frame: bytes | str) -> None:
        try:
            ops = read_frame(frame)
        except InvalidRequest as error:
            for re in _read_ids(frame):
                self._queue_reply(Failed(re=re, error=Failure.from_error(error)))
            return
        for op in ops if isinstance(ops, list) else (ops,):
            self._admit_operation(op)

    def send_failure(self, error: GatepostError) -> None:
        """Answer input that was not an operation."""
        self._queue_reply(Failed(error=Failure.from_error(error)))

    def take_output(self) -> list[bytes]:
        """Return all replies, in as few frames as their size allows."""
        out, self._replies = self._replies, []
        self._output_taken.set()
        self._release_capacity()
        return [
            _reply_encoder.encode(part[0] if len(part) == 1 else part)
            for part in _group_replies(out)
        ]

    def close(self) -> None:
        """End it. Leases stay until they time out, because the client may come back."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        self._subscriptions.close()

    # -- operations

    def _admit_operation(self, op: Op) -> None:
        self._unanswered += 1
        if self._unanswered >= _MAX_UNANSWERED:
            self._has_capacity.clear()
        try:
            if self._authority is not None:
                self._authority.authorize(op)
                self._authority.admit(op)
            else:
                self._operations.admit(op)
            self._start_operation(op)
        except GatepostError as error:
            self._finish_operation(Failed(re=op.id, error=Failure.from_error(error)))

    def _start_operation(self, op: Op) -> None:
        behind = self._last_tasks.get(type(op))
        at_once = behind is None and not self._needs_check(op)
        plan = self._operations.plan_transaction(op) if at_once else None
        if plan is not None:
            if self._authority is not None:
                plan = self._authority.restrict_plan(op, plan)
            self._core.writer.submit(
                plan, partial(self._finish_planned, op.id), operation_weight(op)
            )
        elif isinstance(op, Subscribe):
            self._subscriptions.subscribe(op)
        elif isinstance(op, Unsubscribe):
            self._subscriptions.unsubscribe(op)
        elif _is_waiting(op):
            self._start_waiting(op)
        else:
            task = self._spawn_task(self._perform_in_order(op, behind))
            for kind in _KEPT_IN_ORDER.get(type(op), ()):
                self._last_tasks[kind] = task

    def _start_waiting(self, op: Op) -> None:
        """Start an operation that waits; it does not count against the client's open operations."""
        if len(self._tasks) >= _MAX_WAITS:
            raise Unavailable("too many operations wait on this connection", retry_after=1.0)
        self._spawn_task(self._perform_waiting(op))
        self._unanswered -= 1

    def _spawn_task(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)
        return task

    def _task_ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        for kind in [kind for kind, last in self._last_tasks.items() if last is task]:
            del self._last_tasks[kind]

    async def _perform_waiting(self, op: Op) -> None:
        self._queue_reply(await self._answer(op))

    def _needs_check(self, op: Op) -> bool:
        return self._authority is not None and self._authority.has_subject(op)

    async def _answer(self, op: Op) -> AnyAnswer:
        if self._authority is not None and self._needs_check(op):
            try:
                await self._authority.check_subject(op)
            except GatepostError as error:
                return Failed(re=op.id, error=Failure.from_error(error))
        return await self._operations.answer(op)

    async def _perform_in_order(self, op: Op, behind: "asyncio.Task[None] | None") -> None:
        if behind is not None:
            # A message or ack must not overtake an earlier one whose payload is still being stored.
            await asyncio.wait([behind])
        if isinstance(op, _LARGE_READS):
            # Large replies are made one at a time, and only once the last output was taken.
            async with self._large_read_lock:
                await self._output_taken.wait()
                self._finish_operation(await self._answer(op))
        else:
            self._finish_operation(await self._answer(op))

    def _finish_planned(self, re: int, reply: AnyAnswer, error: GatepostError | None) -> None:
        self._finish_operation(
            reply if error is None else Failed(re=re, error=Failure.from_error(error))
        )

    def _finish_operation(self, reply: AnyAnswer) -> None:
        self._unanswered -= 1
        self._release_capacity()
        self._queue_reply(reply)

    def _queue_reply(self, reply: AnyAnswer) -> None:
        if self._closed:
            return
        self._replies.append(reply)
        if len(self._replies) == 1:
            self._output_taken.clear()
            self._wake()
        elif len(self._replies) >= _MAX_UNSENT:
            self._has_capacity.clear()

    def _release_capacity(self) -> None:
        if self._unanswered < _MAX_UNANSWERED:
            self._has_capacity.set()

    def _push_messages(self, mailbox: str, messages: list[LeasedMessage]) -> None:
        self._queue_reply(Deliver(mailbox=mailbox, messages=messages))


async def run_channel(
    channel: FrameChannel,
    receive: Coroutine[Any, Any, None],
    send: Coroutine[Any, Any, None],
) -> None:
    """Run a channel until receiving or sending ends, whichever is first."""
    tasks = (asyncio.ensure_future(receive), asyncio.ensure_future(send))
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        channel.close()
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            # A lost connection is the normal end.
            if isinstance(result, Exception) and not isinstance(result, OSError):
                log.error("a channel failed unexpectedly", exc_info=result)


def _is_waiting(op: Op) -> bool:
    return isinstance(op, Await | TaskAwait) or (isinstance(op, Dequeue) and op.wait_secs > 0)


def _set_event() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


def _group_replies(replies: list[AnyAnswer]) -> list[list[AnyAnswer]]:
    """Group replies by size; a delivery too large for a frame is split."""
    parts: list[list[AnyAnswer]] = [[]]
    size = 0
    for part, part_size in (piece for reply in replies for piece in _split_reply(reply)):
        if size > _MAX_FRAME_BYTES:
            parts.append([])
            size = 0
        parts[-1].append(part)
        size += part_size
    return parts if parts[0] else []


def _split_reply(reply: AnyAnswer) -> list[tuple[AnyAnswer, int]]:
    """Return a reply with its weight; split a delivery that is too large for a frame."""
    weight = _reply_weight(reply)
    if weight <= _MAX_FRAME_BYTES or not isinstance(reply, Deliver) or len(reply.messages) == 1:
        return [(reply, weight)]
    half = len(reply.messages) // 2
    first = Deliver(mailbox=reply.mailbox, messages=reply.messages[:half])
    second = Deliver(mailbox=reply.mailbox, messages=reply.messages[half:])
    return _split_reply(first) + _split_reply(second)


def _reply_weight(reply: AnyAnswer) -> int:
    messages = getattr(reply, "messages", ())
    return 100 + sum(300 + memoryview(getattr(m, "payload", b"")).nbytes for m in messages)
