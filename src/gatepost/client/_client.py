"""The asynchronous client: the mailbox protocol, tasks, and messages between agents."""

import asyncio
from collections.abc import Sequence
from typing import Any, Literal, Unpack

import msgspec
from msgspec import UnsetType

from gatepost.client._encoding import (
    check_encodable,
    decode_json,
    encode_payload,
    fits_frame,
)
from gatepost.client._http_client import read_pieces
from gatepost.client._mailbox_client import DEFAULT_TIMEOUT
from gatepost.client._send_options import PayloadFile, SendOptions, apply_options
from gatepost.client._task import TaskClient
from gatepost.errors import DeadlineExceeded, InvalidRequest, TurnFailed
from gatepost.wire.operations import Await, Awaited, NewSend, Sent, WaitGoal

_MAX_AWAIT_SECS = 30.0
_EVERYBODY: Literal["*"] = "*"


class Client(TaskClient):
    """A connection to one gateway. `name` is the sender of calls without `from_`.

    Every call ends within `timeout` seconds; DeadlineExceeded means that the outcome is unknown.
    Until then the client reconnects and sends unanswered calls again. That is safe: the gateway
    recognizes a repeated message by its id and a repeated settlement by its lease handle.
    """

    async def send(
        self,
        to: str | Sequence[str],
        payload: Any = None,
        *,
        from_: str | None = None,
        wait: WaitGoal | None = None,
        **options: Unpack[SendOptions],
    ) -> Sent:
        """Send a message that is tracked until its turn has ended.

        Returns once the gateway has it on disk. With `wait`, returns once the receiver's gateway
        has accepted it or its turn has ended, or once it was given up (see `outcome` and `reason`).
        With `wait="processed"`, `reply` is the receiver's reply, of any size.
        With several receivers, `copies` has one entry per receiver; an entry that could not be
        sent has an `error`. SendOptions has the keyword arguments.
        """
        new = NewSend(
            from_agent=self._drafts.resolve_sender(from_),
            event_id=self._drafts.next_id(),
            replies="caller" if wait == "processed" else "mailbox",
        )
        apply_options(new, options)
        if to == _EVERYBODY:
            new.to_agents = _EVERYBODY
        elif isinstance(to, str):
            new.to_agent = to
        else:
            new.to_agents = list(to)
        check_encodable(new)
        deadline = self._loop.time() + options.get("timeout", DEFAULT_TIMEOUT)
        await self._attach_payload(new, payload, options.get("payload_file"), deadline)
        sent = await self._wait_until_reached(
            await self._submit_send(new, deadline), wait, deadline
        )
        if wait == "processed":
            await self._load_replies(sent, deadline)
        return sent

    async def await_outcome(
        self, event_id: str, *, until: WaitGoal = "processed", timeout: float = DEFAULT_TIMEOUT
    ) -> Sent:
        """Wait until a message that was sent before is accepted or processed.

        Returns its state, and its reply for as long as the gateway keeps it: at least until the
        message would have expired. DeadlineExceeded means that it is not that far yet.
        """
        deadline = self._loop.time() + timeout
        sent = await self._wait_until_reached(Sent(event_id), until, deadline)
        await self._load_replies(sent, deadline)
        return sent

    async def broadcast(
        self,
        payload: Any = None,
        *,
        from_: str | None = None,
        wait: WaitGoal | None = None,
        **options: Unpack[SendOptions],
    ) -> Sent:
        """Send a message to every agent of the room except the sender; see `copies`."""
        return await self.send(_EVERYBODY, payload, from_=from_, wait=wait, **options)

    async def request(
        self,
        to: str,
        payload: Any = None,
        *,
        from_: str | None = None,
        **options: Unpack[SendOptions],
    ) -> Any:
        """Send a message and return the receiver's reply; raises TurnFailed if the turn failed."""
        sent = await self.send(to, payload, from_=from_, wait="processed", **options)
        if sent.outcome != "ok":
            why = f": {sent.reason}" if sent.reason else ""
            raise TurnFailed(
                f"the turn of {to} ended with {sent.outcome}{why}", outcome=sent.outcome
            )
        if isinstance(sent.reply, UnsetType):
            if sent.reply_ref is not None:
                raise InvalidRequest(f"the reply is not JSON; fetch the blob {sent.reply_ref}")
            return None
        return msgspec.json.decode(sent.reply)

    # -- helpers

    async def _load_replies(self, sent: Sent, deadline: float) -> None:
        """Fetch replies that are stored as blobs. One that is not JSON stays where it is."""
        for copy in sent.copies or [sent]:
            if copy.reply_ref is not None:
                copy.reply = decode_json(await self._download(copy.reply_ref, deadline))

    async def _download(self, digest: str, deadline: float) -> bytes:
        try:
            async with asyncio.timeout_at(deadline):
                return b"".join([piece async for piece in self._http.download(digest)])
        except TimeoutError:
            raise DeadlineExceeded(f"the reply {digest} did not arrive in time") from None

    async def _attach_payload(
        self, new: NewSend, payload: Any, file: PayloadFile | None, deadline: float
    ) -> None:
        """Put the payload into `new`; upload it as a blob first if it is too large for a frame."""
        if file is not None and payload is not None:
            raise InvalidRequest("a message has a `payload` or a `payload_file`, not both")
        if file is None:
            raw = encode_payload(payload)
            if fits_frame(raw):
                new.payload = raw
                return
            pieces = read_pieces(bytes(raw))
        else:
            pieces = read_pieces(file)
        new.payload_ref = await self._http.upload(pieces, deadline - self._loop.time())

    async def _submit_send(self, new: NewSend, deadline: float) -> Sent:
        size = 0 if isinstance(new.payload, UnsetType) else len(memoryview(new.payload))
        await self._operations.slots.take(deadline)
        sent: Sent = await self._operations.send(new, size, deadline)
        return sent

    async def _wait_until_reached(self, sent: Sent, wait: WaitGoal | None, deadline: float) -> Sent:
        """Wait until the message, or each of its copies, is accepted or processed."""
        if wait is None or sent.error is not None:
            return sent
        if sent.copies:
            waiting = (self._wait_until_reached(copy, wait, deadline) for copy in sent.copies)
            sent.copies = list(await asyncio.gather(*waiting))
            return sent
        to_agent = sent.to_agent
        while not sent.has_reached(wait):
            sent = await self._await_progress(sent.event_id, wait, deadline)
        sent.to_agent = to_agent
        return sent

    async def _await_progress(self, event_id: str, until: WaitGoal, deadline: float) -> Sent:
        async with self._long_waits.hold(deadline):
            left = deadline - self._loop.time()
            wait = max(0.0, min(left, _MAX_AWAIT_SECS))
            op = Await(event_id=event_id, wait_secs=wait, until=until)
            try:
                answer: Awaited = await self._request_answer(op, deadline + 0.1)
            except DeadlineExceeded:
                raise _not_reached_error(event_id, until) from None
        if not answer.result.has_reached(until) and self._loop.time() >= deadline:
            raise _not_reached_error(event_id, until)
        return answer.result


def _not_reached_error(event_id: str, wait: WaitGoal) -> DeadlineExceeded:
    missing = "no agent has accepted it" if wait == "accepted" else "its turn has not ended"
    return DeadlineExceeded(
        f"message {event_id} was sent, but {missing} in time; its outcome is unknown"
    )
