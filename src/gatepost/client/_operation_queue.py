"""The unanswered operations of a client, and the frames in which they leave.

Operations submitted in one tick of the event loop leave in one frame. When the connection breaks,
unanswered operations are sent again in their order on the next one; that is safe because every
operation is idempotent.
"""

import asyncio
import logging
from collections.abc import Collection
from typing import Any, TypeVar

import msgspec
from msgspec import Raw

from gatepost.client._encoding import EncodedReply
from gatepost.client._frame_packer import FramePacker
from gatepost.client._frame_socket import FrameSocket
from gatepost.client._operation_slots import OperationSlots
from gatepost.client._operations import (
    AckCalls,
    EnqueueCalls,
    Future,
    PendingOperation,
    SendCalls,
    SettleOperation,
    SingleOperation,
    TaskCreateCalls,
    TaskReportCalls,
    UnslottedOperation,
)
from gatepost.client._reconnecting_socket import ReconnectingSocket
from gatepost.errors import (
    DeadlineExceeded,
    GatepostError,
    InvalidRequest,
    PayloadTooLarge,
    Unavailable,
)
from gatepost.wire.frame_types import Op
from gatepost.wire.operations import Ack, Failed, Nack, NewMessage, NewSend, Operation
from gatepost.wire.tasks import NewTask, TaskReport

log = logging.getLogger("gatepost.client")

OpenBatch = EnqueueCalls | SendCalls | TaskCreateCalls | TaskReportCalls
Single = TypeVar("Single", bound=SingleOperation)

_BATCH_MAX = 1000
# Flush a batch of this many calls before the tick ends, so that the gateway works on it while
# the caller still submits the rest.
_EARLY_FLUSH_CALLS = 128
_EARLY_FLUSH_TASKS = 256
_MESSAGE_OVERHEAD = 256
# Calls of one tick with deadlines this close share one operation and the later deadline.
_SHARED_DEADLINE_SECS = 0.05
# These statuses of a refused operation can be caused by a single bad call in it.
_STATUSES_OF_ONE_CALL = range(400, 429)

_checker = msgspec.json.Decoder(Operation)
_encoder = msgspec.json.Encoder()


class OperationQueue:
    """Each operation returns a future. Callers of operations that take a slot hold one already."""

    def __init__(self, socket: ReconnectingSocket, max_outstanding: int) -> None:
        self._socket = socket
        self._loop: asyncio.AbstractEventLoop
        self._unanswered: dict[int, PendingOperation] = {}
        self._queue: list[PendingOperation] = []
        self._scheduled = False
        self._open_batch: OpenBatch | None = None
        self._open_acks: dict[str, AckCalls] = {}
        self._next_id = 0
        self._packer = FramePacker()
        self._closed = False
        self.slots = OperationSlots(max_outstanding)
        self.frames_sent = 0

    def open(self) -> None:
        self._loop = asyncio.get_running_loop()

    def refuse_operations(self) -> None:
        """Refuse further operations."""
        self._closed = True

    def fail_unanswered(self) -> None:
        for pending in list(self._unanswered.values()):
            self._fail_operation(
                pending, Unavailable("the client was closed; the outcome is unknown")
            )

    # -- operations

    def enqueue(self, new: NewMessage, size: int, deadline: float) -> Future:
        batch = self._open_batch
        if type(batch) is not EnqueueCalls or not self._try_join_batch(batch, size, deadline):
            batch = self._open_batch = EnqueueCalls(deadline)
            self.queue_operation(batch)
        future = self._loop.create_future()
        batch.add_call(new, size + _MESSAGE_OVERHEAD, future)
        if len(batch.items) == _EARLY_FLUSH_CALLS:
            self.flush_queue()
        return future

    def send(self, new: NewSend, size: int, deadline: float) -> Future:
        batch = self._open_batch
        if type(batch) is not SendCalls or not self._try_join_batch(batch, size, deadline):
            batch = self._open_batch = SendCalls(deadline)
            self.queue_operation(batch)
        future = self._loop.create_future()
        batch.add_call(new, size + _MESSAGE_OVERHEAD, future)
        return future

    def create_task(self, new: NewTask, size: int, deadline: float) -> Future:
        return self._join_tasks(TaskCreateCalls, new, size, deadline)

    def report_task(self, report: TaskReport, size: int, deadline: float) -> Future:
        return self._join_tasks(TaskReportCalls, report, size, deadline)

    def _join_tasks(self, kind: type[Any], item: object, size: int, deadline: float) -> Future:
        """Add a call to the open batch of its kind, or begin one."""
        batch: Any = self._open_batch
        if type(batch) is not kind or not self._try_join_batch(batch, size, deadline):
            batch = self._open_batch = kind(deadline)
            self.queue_operation(batch)
        future = self._loop.create_future()
        batch.add_call(item, size + _MESSAGE_OVERHEAD, future)
        if len(batch.items) == _EARLY_FLUSH_TASKS:
            self.flush_queue()
        return future

    def ack(
        self, mailbox: str, lease_handle: str, reply: EncodedReply | None, deadline: float
    ) -> Future:
        batch = self._open_acks.get(mailbox)
        size = memoryview(reply).nbytes + 128 if isinstance(reply, Raw) else 64 + 128 * bool(reply)
        if batch is None or not self._try_join_batch(batch, size, deadline):
            batch = self._open_acks[mailbox] = AckCalls(deadline, mailbox)
            self.queue_operation(batch)
        future = self._loop.create_future()
        batch.add_call((lease_handle, reply), size, future)
        return future

    def settle(self, op: Ack | Nack, deadline: float) -> Future:
        """Ack or nack one turn, after the acks submitted before it."""
        return self._submit_single(SettleOperation, op, deadline).futures[0]

    def submit_op(self, op: Op, deadline: float) -> Future:
        """Submit any other operation; the future holds its answer."""
        return self._submit_single(SingleOperation, op, deadline).futures[0]

    def submit_unslotted(self, op: Op, deadline: float) -> UnslottedOperation:
        """Submit an operation that starts or stops listening, or extends turns."""
        return self._submit_single(UnslottedOperation, op, deadline)

    # -- outgoing

    def _submit_single(self, kind: type[Single], op: Op, deadline: float) -> Single:
        _check_op(op)
        self._open_batch = None
        self._open_acks.clear()
        pending = kind(op, self._loop.create_future(), deadline)
        self.queue_operation(pending)
        return pending

    def _try_join_batch(self, batch: Any, size: int, deadline: float) -> bool:
        if (
            len(batch.items) >= _BATCH_MAX
            or batch.weight + size > self._packer.limit
            or abs(deadline - batch.first_deadline) > _SHARED_DEADLINE_SECS
        ):
            return False
        batch.deadline = max(batch.deadline, deadline)
        return True

    def queue_operation(self, pending: PendingOperation) -> None:
        if self._closed:
            raise Unavailable("the client is closed")
        self._next_id += 1
        pending.id = self._next_id
        self._unanswered[pending.id] = pending
        self._queue.append(pending)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self.flush_queue)

    def flush_queue(self) -> None:
        """At the end of a tick, send the operations submitted in it."""
        self._scheduled = False
        self._open_batch = None
        self._open_acks.clear()
        for pending in self._queue:
            if pending.timer is None:
                pending.timer = self._loop.call_at(
                    pending.deadline, self._expire_operation, pending
                )
        socket = self._socket.current
        if socket is None:
            # The operations stay in `_unanswered` and are sent on the next connection.
            self._queue.clear()
        elif not socket.is_paused:
            queue, self._queue = self._queue, []
            self._write_frames(queue, socket)

    def _write_frames(self, queue: list[PendingOperation], socket: FrameSocket) -> None:
        for frame in self._packer.pack_frames(queue):
            self.frames_sent += 1
            socket.send(frame)

    # -- answers and failures

    def handle_answer(self, answer: Any) -> None:
        pending = self._unanswered.pop(answer.re, None)
        if pending is None:
            if answer.re == 0:
                log.error("the gateway refused a frame: %s", answer)
            return
        if pending.timer is not None:
            pending.timer.cancel()
        if type(answer) is not Failed:
            pending.resolve_calls(answer)
        elif len(pending.futures) > 1 and answer.error.to_error().status in _STATUSES_OF_ONE_CALL:
            self._requeue_separately(pending)
            return
        else:
            pending.fail_calls(answer.error.to_error())
        if pending.takes_slot:
            self.slots.release_slots(len(pending.futures))

    def _requeue_separately(self, pending: PendingOperation) -> None:
        """Send each call on its own, so that one bad call does not fail the others."""
        for part in pending.split_calls():
            self.queue_operation(part)

    def _expire_operation(self, pending: PendingOperation) -> None:
        why = f"; {self._socket.problem}" if self._socket.current is None else ""
        self._fail_operation(
            pending, DeadlineExceeded(f"no answer in time, so the outcome is unknown{why}")
        )

    def _fail_operation(self, pending: PendingOperation, error: GatepostError) -> None:
        if self._unanswered.pop(pending.id, None) is None:
            return
        if pending.timer is not None:
            pending.timer.cancel()
        pending.fail_calls(error)
        if pending.takes_slot:
            self.slots.release_slots(len(pending.futures))

    # -- connections that come and go

    def resend_unanswered(self, except_for: Collection[PendingOperation]) -> None:
        """On a new connection, send unanswered operations again, in their order."""
        unanswered, self._unanswered = list(self._unanswered.values()), {}
        self._packer.reset_sizes()
        self._queue.clear()
        for pending in unanswered:
            if pending in except_for:
                continue
            if pending.has_waiters():
                self.queue_operation(pending)
            elif pending.takes_slot:
                self.slots.release_slots(len(pending.futures))

    def adapt_to_lost_socket(self, socket: FrameSocket) -> None:
        """Send smaller frames if the gateway refused one as too large."""
        if socket.refused_as_too_big:
            self._shrink_frames()
        elif socket.was_reset:
            # The gateway may have refused a frame as too large and reset the connection before
            # its close code was read. If it died instead, smaller frames do no harm.
            self._packer.shrink_limit_gently()

    def _shrink_frames(self) -> None:
        """Send unanswered operations again in smaller frames; fail a call that can never fit."""
        too_large = self._packer.shrink_limit()
        if too_large is not None:
            message = "the message is larger than the gateway's limits.max_body_bytes allows"
            self._fail_operation(too_large, PayloadTooLarge(message))
        unanswered, self._unanswered = list(self._unanswered.values()), {}
        for pending in self._packer.split_oversized(unanswered):
            self.queue_operation(pending)


def _check_op(op: Op) -> None:
    """Check an operation before it joins a frame: one bad operation fails the whole frame."""
    try:
        _checker.decode(_encoder.encode(op))
    except msgspec.ValidationError as error:
        raise InvalidRequest(str(error)) from None
