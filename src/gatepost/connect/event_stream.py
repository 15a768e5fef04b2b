"""Server-sent events as a program reads them: a gateway's stream of changes."""

from collections.abc import AsyncIterator, Iterator
from typing import TypeVar

import msgspec

from gatepost.connect.http_calls import AsyncHttpCalls, NotGatewayAnswer, httpx
from gatepost.errors import Unavailable

T = TypeVar("T")

# A gateway says at least every 15 seconds that it is still there.
QUIET_SECS = 45.0
_CONNECT_SECS = 5.0
# The longest event; a stream may come from anybody who listens at the address.
_MAX_EVENT_BYTES = 1024 * 1024


class EventStreamDecoder:
    """Bytes in, the data of events out."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, piece: bytes) -> list[bytes]:
        """The data of the events that this piece completes."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        found = [data for line in lines if (data := self._take_line(line.rstrip(b"\r")))]
        if len(self._rest) + sum(map(len, self._data)) > _MAX_EVENT_BYTES:
            raise NotGatewayAnswer(200)
        return found

    def _take_line(self, line: bytes) -> bytes | None:
        if line.startswith(b"data:"):
            self._data.append(line.removeprefix(b"data:").removeprefix(b" "))
        elif not line and self._data:
            data, self._data = b"\n".join(self._data), []
            return data
        return None


def decode_events(pieces: Iterator[bytes], kind: type[T]) -> Iterator[T]:
    """The events in the body of an answer, as they come."""
    decoder = EventStreamDecoder()
    for piece in pieces:
        for data in decoder.feed(piece):
            yield _decode(data, kind)


async def listen_to_events(calls: AsyncHttpCalls, path: str, kind: type[T]) -> AsyncIterator[T]:
    """The events of a stream, as they come; raises Unavailable when it ends or falls silent."""
    decoder = EventStreamDecoder()
    timeout = httpx.Timeout(QUIET_SECS, connect=_CONNECT_SECS)
    async with calls.open_response("GET", path, timeout) as response:
        async for piece in calls.stream_body(response):
            for data in decoder.feed(piece):
                yield _decode(data, kind)
    raise Unavailable("the gateway ended the stream of changes")


def _decode(data: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.MsgspecError:
        raise NotGatewayAnswer(200) from None
