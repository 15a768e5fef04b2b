"""A message as its receiver sees it."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
from msgspec import UnsetType

from gatepost.errors import InvalidRequest
from gatepost.events import Order
from gatepost.wire.operations import EventInfo, LeasedMessage

FetchBlob = Callable[[str], AsyncIterator[bytes]]

_NOT_LOADED = object()


_event_decoder = msgspec.json.Decoder(EventInfo)


class Message:
    """A delivered message. A payload too large to travel with it is stored as a blob at the
    gateway. An agent's handler finds it in `payload`; other receivers fetch it with `load`, or
    piece by piece with `stream`, which also takes what is not JSON."""

    __slots__ = ("_fetch", "_payload", "_wire", "event")

    def __init__(self, message: LeasedMessage, fetch: FetchBlob) -> None:
        event = message.event
        self._wire = message
        self._fetch = fetch
        self._payload: Any = _NOT_LOADED
        self.event = None if isinstance(event, UnsetType) else _event_decoder.decode(event)

    def __repr__(self) -> str:
        return f"<Message {self.msg_id} from {self.from_} to {self.to}>"

    @property
    def msg_id(self) -> str:
        return self._wire.msg_id

    @property
    def from_(self) -> str:
        return self._wire.from_

    @property
    def to(self) -> str:
        return self._wire.to

    @property
    def created_at(self) -> int:
        """Creation time in epoch seconds."""
        return self._wire.created_at

    @property
    def attempt(self) -> int:
        """Number of turns that failed before this one: 0 at the first delivery.

        Attempts of events and tasks are counted from 1.
        """
        return self._wire.attempt

    @property
    def receipt(self) -> str:
        """The lease handle: settles this delivery. The protocol calls it `receipt`."""
        return self._wire.receipt

    @property
    def lease_secs(self) -> float:
        return self._wire.lease_secs

    @property
    def order(self) -> Order:
        """`none` if the message has no order among the messages of its sender."""
        return self._wire.order

    @property
    def subject(self) -> str | None:
        """The subject of the message, if its sender gave one."""
        return None if self.event is None else self.event.subject

    @property
    def kind(self) -> str:
        """`message`, or `reply` for the answer to a message this agent sent."""
        return "message" if self.event is None else self.event.kind

    @property
    def blob_size(self) -> int:
        """Size of a payload that is stored as a blob; 0 if it travels with its message."""
        return 0 if self._digest is None or self.event is None else self.event.size or 0

    @property
    def payload(self) -> Any:
        if self._payload is _NOT_LOADED:
            if self._digest is not None:
                raise InvalidRequest(
                    "this payload is a blob: `await message.load()` first, or if it is not JSON,"
                    " use `message.stream()`"
                )
            self._payload = msgspec.json.decode(self._wire.payload)
        return self._payload

    async def load(self) -> Any:
        """The payload, fetched from the gateway if it is a blob."""
        if self._payload is _NOT_LOADED and self._digest is not None:
            try:
                self._payload = msgspec.json.decode(await self.read())
            except msgspec.DecodeError:
                raise InvalidRequest("this payload is not JSON; use `message.stream()`") from None
        return self.payload

    async def read(self) -> bytes:
        """The payload's bytes, whole."""
        return b"".join([piece async for piece in self.stream()])

    async def stream(self) -> AsyncIterator[bytes]:
        """The payload's bytes, piece by piece, never whole in memory."""
        if self._digest is None:
            yield bytes(self._wire.payload)
            return
        async for piece in self._fetch(self._digest):
            yield piece

    @property
    def _digest(self) -> str | None:
        return None if self.event is None else self.event.payload_ref
