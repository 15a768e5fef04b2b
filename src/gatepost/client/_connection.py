"""Operations and their answers over one WebSocket that is reopened when it breaks.

Operations submitted in one tick of the event loop leave in one frame. When the connection breaks,
unanswered operations are sent again in their order on the next one; that is safe because every
operation is idempotent.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
from msgspec import Raw

from gatepost.client._batches import (
    Acks,
    Enqueues,
    Future,
    Pending,
    Sends,
    Settling,
    Single,
    Verdict,
    error_of,
)
from gatepost.client._discover import Locate
from gatepost.client._link import Link
from gatepost.client._listening import Listening
from gatepost.client._packing import Packer
from gatepost.client._places import Places
from gatepost.client._socket import FrameSocket
from gatepost.clock import Clock
from gatepost.errors import (
    DeadlineExceeded,
    GatepostError,
    InvalidRequest,
    PayloadTooLarge,
    Unavailable,
)
from gatepost.wire import (
    Ack,
    AnyAnswer,
    Deliver,
    Extend,
    Failed,
    LeasedMessage,
    Nack,
    NewMessage,
    NewSend,
    Op,
    Operation,
)

log = logging.getLogger("gatepost.client")

_BATCH_MAX = 1000
# Flush a batch of this many calls before the tick ends, so that the gateway works on it while
# the caller still submits the rest.
_FULL_ENOUGH = 128
_MESSAGE_OVERHEAD = 256
# Calls of one tick with deadlines this close share one operation and the later deadline.
_SAME_DEADLINE = 0.05
_LISTEN_WITHIN = 10.0
# Statuses of a refused operation that one bad call in it may have caused.
_ONE_MAY_BE_BAD = range(400, 429)

_decoder = msgspec.json.Decoder(AnyAnswer | list[AnyAnswer])
_checker = msgspec.json.Decoder(Operation)
_encoder = msgspec.json.Encoder()


class Connection:
    """Not thread-safe: use it only on the event loop that opened it."""

    def __init__(self, locate: Locate, clock: Clock, *, max_outstanding: int = 10_000) -> None:
        self._link = Link(
            locate,
            clock,
            on_open=self._resume,
            on_frame=self._received,
            on_lost=self._lost,
            on_writable=self._flush,
        )
        self._loop: asyncio.AbstractEventLoop
        self._unanswered: dict[int, Pending] = {}
        self._queue: list[Pending] = []
        self._scheduled = False
        self._filling: Enqueues | Sends | None = None
        self._acking: dict[str, Acks] = {}
        self._next_id = 0
        self.places = Places(max_outstanding)
        self._packer = Packer()
        self._listening: dict[str, Listening] = {}
        self._closed = False
        self.frames_sent = 0

    # -- open and close

    async def open(self) -> None:
        self._loop = asyncio.get_running_loop()
        await self._link.open()

    async def close(self) -> None:
        self._closed = True
        await self._link.close()
        for pending in list(self._unanswered.values()):
            self._give_up(pending, Unavailable("the client was closed; the outcome is unknown"))

    # -- operations. Each returns a future. Callers of operations that take a slot hold one already.

    def enqueue(self, new: NewMessage, size: int, deadline: float) -> Future:
        batch = self._filling
        if type(batch) is not Enqueues or not self._fits(batch, size, deadline):
            batch = self._filling = Enqueues(deadline)
            self._submit(batch)
        future = self._loop.create_future()
        batch.add(new, size + _MESSAGE_OVERHEAD, future)
        if len(batch.items) == _FULL_ENOUGH:
            self._flush()
        return future

    def send(self, new: NewSend, size: int, deadline: float) -> Future:
        batch = self._filling
        if type(batch) is not Sends or not self._fits(batch, size, deadline):
            batch = self._filling = Sends(deadline)
            self._submit(batch)
        future = self._loop.create_future()
        batch.add(new, size + _MESSAGE_OVERHEAD, future)
        return future

    def ack(self, mailbox: str, lease_handle: str, reply: Raw | None, deadline: float) -> Future:
        batch = self._acking.get(mailbox)
        size = 64 if reply is None else memoryview(reply).nbytes + 128
        if batch is None or not self._fits(batch, size, deadline):
            batch = self._acking[mailbox] = Acks(deadline, mailbox)
            self._submit(batch)
        future = self._loop.create_future()
        batch.add((lease_handle, reply), size, future)
        return future

    def settle(self, op: Ack | Nack, deadline: float) -> Future:
        """Ack or nack one turn, after the acks submitted before it."""
        return self._single(Verdict, op, deadline)

    def extend(self, op: Extend, deadline: float) -> Future:
        return self._single(Settling, op, deadline)

    def ask(self, op: Op, deadline: float) -> Future:
        """Submit any other operation; the future holds its answer."""
        return self._single(Single, op, deadline)

    # -- subscriptions

    async def subscribe(
        self,
        mailbox: str,
        deliver: Callable[[list[LeasedMessage]], None],
        *,
        credit: int,
        consumer: str,
        deadline: float,
        resumed: Callable[[], None] | None = None,
    ) -> None:
        """Call `deliver` with incoming mail, and `resumed` after each reconnect."""
        if mailbox in self._listening:
            raise InvalidRequest(f"this client already listens to {mailbox}")
        listening = Listening(mailbox, credit, consumer, deliver, resumed)
        self._listening[mailbox] = listening
        try:
            subscribed = self._single(Settling, listening.subscribe(), deadline)
            listening.joining = self._queue[-1]
            await subscribed
        except BaseException:
            self._listening.pop(mailbox, None)
            raise

    async def unsubscribe(self, mailbox: str, deadline: float) -> None:
        """Stop listening; the gateway takes back unsettled mail without counting an attempt."""
        listening = self._listening.get(mailbox)
        if listening is None:
            return
        unsubscribed = self._single(Settling, listening.unsubscribe(), deadline)
        listening.leaving = self._queue[-1]
        try:
            await unsubscribed
        finally:
            self._listening.pop(mailbox, None)

    # -- outgoing

    def _single(self, kind: type[Single], op: Op, deadline: float) -> Future:
        _check(op)
        self._filling = None
        self._acking.clear()
        future = self._loop.create_future()
        self._submit(kind(op, future, deadline))
        return future

    def _fits(self, batch: Any, size: int, deadline: float) -> bool:
        if (
            len(batch.items) >= _BATCH_MAX
            or batch.weight + size > self._packer.limit
            or abs(deadline - batch.first_deadline) > _SAME_DEADLINE
        ):
            return False
        batch.deadline = max(batch.deadline, deadline)
        return True

    def _submit(self, pending: Pending) -> None:
        if self._closed:
            raise Unavailable("the client is closed")
        self._next_id += 1
        pending.id = self._next_id
        self._unanswered[pending.id] = pending
        self._queue.append(pending)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """At the end of a tick, send the operations submitted in it."""
        self._scheduled = False
        self._filling = None
        self._acking.clear()
        for pending in self._queue:
            if pending.timer is None:
                pending.timer = self._loop.call_at(pending.deadline, self._expire, pending)
        socket = self._link.socket
        if socket is None:
            # The operations stay in `_unanswered` and are sent on the next connection.
            self._queue.clear()
        elif not socket.paused:
            queue, self._queue = self._queue, []
            self._write(queue, socket)

    def _write(self, queue: list[Pending], socket: FrameSocket) -> None:
        for frame in self._packer.frames(queue):
            self.frames_sent += 1
            socket.send(frame)

    # -- incoming

    def _received(self, frame: bytes) -> None:
        try:
            answers = _decoder.decode(frame)
        except msgspec.DecodeError as error:
            self._link.drop(f"the gateway sent a frame this client cannot read: {error}")
            return
        for answer in answers if isinstance(answers, list) else (answers,):
            if type(answer) is Deliver:
                self._deliver(answer)
            else:
                self._answer(answer)

    def _answer(self, answer: Any) -> None:
        pending = self._unanswered.pop(answer.re, None)
        if pending is None:
            if answer.re == 0:
                log.error("the gateway refused a frame: %s", answer)
            return
        if pending.timer is not None:
            pending.timer.cancel()
        if type(answer) is not Failed:
            pending.resolve(answer)
        elif len(pending.futures) > 1 and error_of(answer.error).status in _ONE_MAY_BE_BAD:
            self._one_by_one(pending)
            return
        else:
            pending.fail(error_of(answer.error))
        if pending.counted:
            self.places.release(len(pending.futures))

    def _one_by_one(self, pending: Pending) -> None:
        """Send each call on its own, so that one bad call does not fail the others."""
        for part in pending.parts():
            self._submit(part)

    def _deliver(self, delivery: Deliver) -> None:
        listening = self._listening.get(delivery.mailbox)
        if listening is None:
            return
        try:
            listening.deliver(delivery.messages)
        except Exception:
            log.exception("delivering mail of %s failed", delivery.mailbox)

    def _expire(self, pending: Pending) -> None:
        why = f"; {self._link.problem}" if self._link.socket is None else ""
        self._give_up(
            pending, DeadlineExceeded(f"no answer in time, so the outcome is unknown{why}")
        )

    def _give_up(self, pending: Pending, error: GatepostError) -> None:
        if self._unanswered.pop(pending.id, None) is None:
            return
        if pending.timer is not None:
            pending.timer.cancel()
        pending.fail(error)
        if pending.counted:
            self.places.release(len(pending.futures))

    # -- connections that come and go

    def _resume(self) -> None:
        """On a new connection, send unanswered operations again, then subscribe again.

        In this order the gateway knows of every settled message before it delivers again the
        messages that this consumer still holds.
        """
        unanswered, self._unanswered = list(self._unanswered.values()), {}
        # Renewed below: these belong to the lost connection.
        subscribing = [pending for each in self._listening.values() for pending in each.pending()]
        self._packer.fresh()
        self._queue.clear()
        for pending in unanswered:
            if pending in subscribing:
                continue
            if pending.wanted():
                self._submit(pending)
            elif pending.counted:
                self.places.release(len(pending.futures))
        for listening in self._listening.values():
            self._listen_again(listening)

    def _listen_again(self, listening: Listening) -> None:
        if listening.joining is not None and listening.joining.wanted():
            self._submit(listening.joining)
        else:
            op, future = listening.subscribe(), self._loop.create_future()
            listening.joining = Settling(op, future, self._loop.time() + _LISTEN_WITHIN)
            self._submit(listening.joining)
            future.add_done_callback(partial(self._listens_again, listening))
        if listening.leaving is not None:
            self._submit(listening.leaving)

    def _listens_again(self, listening: Listening, future: Future) -> None:
        error = future.exception()
        if error is not None and not self._closed:
            self._link.drop(f"cannot subscribe again to {listening.mailbox}: {error}")
        elif error is None and listening.resumed is not None:
            listening.resumed()

    def _lost(self, socket: FrameSocket) -> None:
        if socket.refused_as_too_big:
            self._smaller_frames()
        elif socket.reset:
            # The gateway may have refused a frame as too large and reset the connection before
            # its close code was read. If it died instead, smaller frames do no harm.
            self._packer.shrink_a_little()

    def _smaller_frames(self) -> None:
        """Send unanswered operations again in smaller frames; fail a call that can never fit."""
        too_large = self._packer.shrink()
        if too_large is not None:
            message = "the message is larger than the gateway's limits.max_body_bytes allows"
            self._give_up(too_large, PayloadTooLarge(message))
        unanswered, self._unanswered = list(self._unanswered.values()), {}
        for pending in self._packer.divided(unanswered):
            self._submit(pending)


def _check(op: Op) -> None:
    """Check an operation before it joins a frame: one bad operation fails the whole frame."""
    try:
        _checker.decode(_encoder.encode(op))
    except msgspec.ValidationError as error:
        raise InvalidRequest(str(error)) from None
