"""The asynchronous client of the mailbox protocol."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from msgspec import Raw

from gatepost.client._connection import ClientConnection
from gatepost.client._encoding import (
    MAX_FRAME_BYTES,
    Moment,
    UploadedReply,
    check_lease_handle,
    encode_payload,
    fits_frame,
)
from gatepost.client._gateway_locator import locator
from gatepost.client._http_client import ClientHttp, read_pieces
from gatepost.client._message import Message
from gatepost.client._message_drafts import MessageDrafts
from gatepost.client._operation_slots import LongWaitSlots
from gatepost.clock import Clock, SystemClock
from gatepost.connect.gateway_endpoint import LocateGateway
from gatepost.errors import (
    DeadlineExceeded,
    GatepostError,
    PayloadTooLarge,
    Unavailable,
)
from gatepost.events import EventIdGenerator, Order, check_agent_id
from gatepost.wire.frame_types import Op
from gatepost.wire.gateway_views import Status
from gatepost.wire.operations import (
    Ack,
    Count,
    DeadLetter,
    DeadLetters,
    Dequeue,
    EnqueueAck,
    Extend,
    Failure,
    LeasedMessage,
    Messages,
    Nack,
    Peek,
    PeekDeadLetter,
    Purge,
    PurgeDeadLetter,
    Register,
    Settled,
    StatedSkill,
    Summaries,
    Summary,
)

DEFAULT_TIMEOUT = 30.0


class MailboxClient:
    """Calls of the mailbox protocol; `Client` adds messages between agents."""

    def __init__(
        self,
        name: str | None = None,
        *,
        state_dir: Path | str | None = None,
        url: str | None = None,
        token: str | None = None,
        token_file: Path | str | None = None,
        context: str | None = None,
        max_outstanding: int = 10_000,
        clock: Clock | None = None,
    ) -> None:
        self.name = None if name is None else check_agent_id(name)
        self._clock = clock or SystemClock()
        self._locate: LocateGateway = locator(
            state_dir, url, token, token_file=token_file, context=context
        )
        self._http = ClientHttp(self._locate)
        self._connection = ClientConnection(
            self._locate, self._clock, max_outstanding=max_outstanding
        )
        self._operations = self._connection.operations
        self._drafts = MessageDrafts(self.name, EventIdGenerator(self._clock))
        self._long_waits = LongWaitSlots()
        self._loop: asyncio.AbstractEventLoop

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        await self._connection.open()
        return self

    async def open_when_reachable(self) -> None:
        """Connect like `async with`, but wait if the gateway does not run yet."""
        self._loop = asyncio.get_running_loop()
        await self._connection.open_when_reachable()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._connection.close()
        await self._http.close()

    @property
    def frames_sent(self) -> int:
        """Number of frames sent; calls made in one tick of the event loop share a frame."""
        return self._operations.frames_sent

    # -- the mailbox protocol

    async def enqueue(
        self,
        to: str,
        payload: Any,
        *,
        from_: str | None = None,
        msg_id: str | None = None,
        created_at: int | None = None,
        ttl_secs: float | None = None,
        order: Order | None = None,
        not_before: Moment | None = None,
        max_retries: int | None = None,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> EnqueueAck:
        """Put a message into a mailbox; returns once the gateway has it on disk."""
        raw = encode_payload(payload)
        new = self._drafts.new_message(
            to, from_, raw, msg_id, created_at, ttl_secs, order, not_before, max_retries
        )
        size = len(memoryview(raw))
        if size > MAX_FRAME_BYTES:
            raise PayloadTooLarge("use `send`, which stores large payloads as blobs")
        operations, deadline = self._operations, self._loop.time() + timeout
        if operations.slots.is_full:
            await operations.slots.wait_for_free(deadline)
        else:
            operations.slots.take_free()
        ack: EnqueueAck = await operations.enqueue(new, size, deadline)
        return ack

    async def enqueue_many(
        self,
        to: str,
        payloads: Iterable[Any],
        *,
        from_: str | None = None,
        ttl_secs: float | None = None,
        order: Order | None = None,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> list[EnqueueAck]:
        """Enqueue many messages. The result of a refused one has an `error`."""
        calls = []
        for payload in payloads:
            id = self._drafts.next_id()
            call = self.enqueue(
                to,
                payload,
                from_=from_,
                msg_id=id,
                ttl_secs=ttl_secs,
                order=order,
                timeout=timeout,
            )
            calls.append(_ack_or_refusal(id, call))
        return await asyncio.gather(*calls)

    async def dequeue(
        self,
        mailbox: str,
        *,
        limit: int = 1,
        wait_secs: float = 0.0,
        consumer: str | None = None,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> list[Message]:
        """Lease up to `limit` messages, waiting up to `wait_secs` for the first.

        The same `consumer` gets the same messages again until it has settled them.
        """
        op = Dequeue(mailbox=mailbox, limit=limit, wait_secs=wait_secs)
        # With its own consumer name, a repeated dequeue gets the messages it got before.
        op.consumer = self._clock.random(8).hex() if consumer is None else consumer
        deadline = self._loop.time() + wait_secs + timeout
        async with self._long_waits.hold(deadline):
            answer: Messages = await self._request_answer(op, deadline)
        return [Message(message, self._http.download) for message in answer.messages]

    def ack(
        self, mailbox: str, receipt: str, *, reply: Any = None, timeout: float = DEFAULT_TIMEOUT
    ) -> "asyncio.Future[None]":
        """End a turn with success; `receipt` is the lease handle, `reply` goes to the sender.

        The ack is sent without being awaited; await it to know that the gateway has it. A reply
        over 1 MB is uploaded first: await that ack before the next one for the same sender.
        """
        self._drafts.check_name(mailbox)
        check_lease_handle(receipt)
        deadline = self._loop.time() + timeout
        if reply is None or isinstance(reply, UploadedReply):
            return self._operations.ack(mailbox, receipt, reply, deadline)
        raw = encode_payload(reply)
        if fits_frame(raw):
            return self._operations.ack(mailbox, receipt, raw, deadline)
        return asyncio.ensure_future(self._upload_and_ack(mailbox, receipt, raw, deadline))

    async def _upload_and_ack(
        self, mailbox: str, receipt: str, reply: Raw, deadline: float
    ) -> None:
        uploaded = await self.upload_reply(reply, timeout=deadline - self._loop.time())
        await self._operations.ack(mailbox, receipt, uploaded, deadline)

    async def upload_reply(self, reply: Raw, *, timeout: float = DEFAULT_TIMEOUT) -> UploadedReply:
        """Store a reply as a blob at the gateway; pass the result to `ack`."""
        pieces = read_pieces(bytes(reply))
        return UploadedReply(await self._http.upload(pieces, max(0.0, timeout)))

    async def ack_by_id(
        self, mailbox: str, msg_id: str, *, timeout: float = DEFAULT_TIMEOUT
    ) -> None:
        """Ack a leased message by its id, whichever consumer holds it."""
        op = Ack(mailbox=mailbox, msg_ids=[msg_id])
        await self._operations.settle(op, self._loop.time() + timeout)

    def nack(
        self,
        mailbox: str,
        receipt: str,
        *,
        reason: str = "",
        retry: bool = True,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> "asyncio.Future[None]":
        """Fail a turn: the message is delivered again later or becomes a dead letter.

        Without `retry` it becomes a dead letter at once. The nack is sent without being awaited;
        await it to know that the gateway has it.
        """
        op = Nack(mailbox=mailbox, receipts=[receipt], reason=reason[:2000], retry=retry)
        return self._operations.settle(op, self._loop.time() + timeout)

    async def nack_by_id(
        self,
        mailbox: str,
        msg_id: str,
        *,
        reason: str = "",
        retry: bool = True,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> None:
        """Nack a leased message by its id, whichever consumer holds it."""
        op = Nack(mailbox=mailbox, msg_ids=[msg_id], reason=reason[:2000], retry=retry)
        await self._operations.settle(op, self._loop.time() + timeout)

    async def extend(
        self, mailbox: str, receipts: Sequence[str], *, timeout: float = DEFAULT_TIMEOUT
    ) -> list[str]:
        """Extend leases; returns the lease handles that are no longer valid."""
        stale: list[str] = []
        deadline = self._loop.time() + timeout
        for start in range(0, len(receipts), 1000):
            op = Extend(mailbox=mailbox, receipts=list(receipts[start : start + 1000]))
            pending = self._operations.submit_unslotted(op, deadline)
            answer: Settled = await pending.futures[0]
            stale += [failure.subject for failure in answer.failures]
        return stale

    async def peek(
        self, mailbox: str, *, limit: int = 100, after: str = "", timeout: float = DEFAULT_TIMEOUT
    ) -> list[Summary]:
        """List unsettled mail without leasing it."""
        op = Peek(mailbox=mailbox, limit=limit, after=after)
        answer: Summaries = await self._request_answer(op, self._loop.time() + timeout)
        return answer.messages

    async def purge(self, mailbox: str, *, timeout: float = DEFAULT_TIMEOUT) -> int:
        """Turn all waiting mail into dead letters; returns their number."""
        op = Purge(mailbox=mailbox)
        answer: Count = await self._request_answer(op, self._loop.time() + timeout)
        return answer.count

    async def peek_dead_letter(
        self, mailbox: str, *, limit: int = 100, after: str = "", timeout: float = DEFAULT_TIMEOUT
    ) -> list[DeadLetter]:
        """List dead letters, oldest first."""
        op = PeekDeadLetter(mailbox=mailbox, limit=limit, after=after)
        answer: DeadLetters = await self._request_answer(op, self._loop.time() + timeout)
        return answer.messages

    async def purge_dead_letter(self, mailbox: str, *, timeout: float = DEFAULT_TIMEOUT) -> int:
        """Discard all dead letters; returns their number."""
        op = PurgeDeadLetter(mailbox=mailbox)
        answer: Count = await self._request_answer(op, self._loop.time() + timeout)
        return answer.count

    async def subscribe(
        self,
        mailbox: str,
        deliver: Callable[[list[Message]], None],
        *,
        credit: int = 64,
        consumer: str | None = None,
        resumed: Callable[[], None] | None = None,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> None:
        """Call `deliver` with incoming mail, at most `credit` unsettled messages at a time.

        After a reconnect the gateway delivers again the messages this consumer still holds; then
        `resumed` is called. The caller settles messages in the order of delivery.
        """

        def wrap(messages: list[LeasedMessage]) -> None:
            fetch = self._http.download
            deliver([Message(message, fetch) for message in messages])

        await self._connection.subscribe(
            mailbox,
            wrap,
            credit=credit,
            consumer=consumer or self._clock.random(8).hex(),
            deadline=self._loop.time() + timeout,
            resumed=resumed,
        )

    async def unsubscribe(self, mailbox: str, *, timeout: float = DEFAULT_TIMEOUT) -> None:
        """Stop listening; unsettled mail is returned without counting an attempt."""
        await self._connection.unsubscribe(mailbox, self._loop.time() + timeout)

    async def register(
        self,
        agent: str,
        *,
        standby: bool = False,
        order: Order | None = None,
        takes_skills: bool | None = None,
        executor_skills: Mapping[str, str] | None = None,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> str:
        """Register `agent`, so that messages can be sent to it.

        `order` is the default order of its mail. With `takes_skills` it is asked to install
        delegation skills. `executor_skills` are those it hosts: id or path → version. Arguments
        that are not given change nothing. Returns why the agent's mail goes to another gateway;
        empty if it comes here.
        """
        stated = executor_skills
        op = Register(
            agent=agent,
            standby=standby,
            order=order,
            takes_skills=takes_skills,
            executor_skills=None
            if stated is None
            else tuple(StatedSkill(ref, version) for ref, version in stated.items()),
        )
        answer = await self._request_answer(op, self._loop.time() + timeout)
        return str(answer.problem)

    async def status(self, *, timeout: float = DEFAULT_TIMEOUT) -> Status:
        """The gateway's status."""
        return await self._http.get_status(timeout)

    async def _request_answer(self, op: Op, deadline: float) -> Any:
        await self._operations.slots.take(deadline)
        return await self._operations.submit_op(op, deadline)


async def _ack_or_refusal(id: str, call: Any) -> EnqueueAck:
    try:
        ack: EnqueueAck = await call
    except (DeadlineExceeded, Unavailable):
        raise
    except GatepostError as error:
        return EnqueueAck(id, False, 0, Failure.from_error(error, id))
    return ack
