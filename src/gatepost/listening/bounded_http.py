"""uvicorn's protocols with bounds: every wait for the other side has a deadline.

The parser keeps the head of a request in memory until it is complete, before any token was checked.
So its size is limited. A head must come in time, whether it is the first or a later one. A body
must come at a minimum rate, an answer must be read, and a WebSocket must be accepted in time.

One read of a socket may hold ten thousand frames of a WebSocket. They are parsed a millisecond at a
time, with turns of the event loop for others in between.
"""

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from gatepost.errors import GatepostError
from gatepost.listening.connection_pool import ConnectionSlot, attach_slot
from gatepost.listening.frame_limits import MAX_PIECES, SLICE_SECS, TURNS_OF_OTHERS
from gatepost.listening.frame_meter import FrameMeter
from gatepost.wire.operations import Failure

_MAX_HEAD_BYTES = 64 * 1024
# A header has `: ` and CRLF beside its name and value. A request line has two spaces, the version
# and CRLF beside its method and path, and the head ends with another CRLF.
_HEADER_EXTRA, _REQUEST_LINE_EXTRA = 4, 14
_HEAD_SECS = 10.0
_BODY_SECS = 30.0
# Somebody who is known may send a large body for longer, if it keeps coming at this rate.
_MIN_BYTES_PER_SEC = 8 * 1024
# An answer of which nothing is read for this long is given up.
_UNREAD_SECS = 30.0
# The same for the rest of an answer, after which the connection is closed.
_LINGER_SECS = 5.0
_ACCEPT_SECS = 30.0
# The frames of a WebSocket that are parsed before the clock is looked at. A frame takes some
# microseconds.
_PARSED_FRAMES = 64
_CLOSE_TOO_LARGE = 1009
_TOO_LARGE = (431, "payload_too_large", "the request's head is too large")
_TOO_SLOW = (408, "deadline_exceeded", "the request came too slowly")
_PHRASES = {
    401: "Unauthorized",
    408: "Request Timeout",
    429: "Too Many Requests",
    431: "Request Header Fields Too Large",
}
_LOCAL_WEBSOCKET = b"/v1/ws"

ScreenHandshake = Callable[[str | None, str], GatepostError | None]


class WriteDeadline:
    """Aborts a connection whose other side has stopped reading."""

    def __init__(self, transport: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._unread = 0
        self._timer: asyncio.TimerHandle | None = None

    def start(self, secs: float) -> None:
        self.cancel()
        self._unread = self._transport.get_write_buffer_size()
        self._timer = self._loop.call_later(secs, self._check, secs)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def linger(self) -> None:
        """The transport is closing: send what is left of the answer, but not for ever."""
        if self._transport.get_write_buffer_size():
            self.start(_LINGER_SECS)

    def _check(self, secs: float) -> None:
        if self._transport.get_write_buffer_size() < self._unread:
            self.start(secs)
        else:
            self._transport.abort()


class BoundedHttpProtocol(HttpToolsProtocol):
    """`slot` is the place of the connection in the pool.

    `screen` gets the `Authorization` of a WebSocket for the local API and the address it comes
    from, and returns the refusal if there is one.
    """

    _in_head = True
    _in_body = False
    _upgraded = False
    _is_head_too_large = False
    _received = 0
    _body_since = 0.0
    _deadline: asyncio.TimerHandle | None = None

    def __init__(
        self, *args: Any, slot: ConnectionSlot, screen: ScreenHandshake, **more: Any
    ) -> None:
        super().__init__(*args, **more)
        self._slot = slot
        self._screen = screen
        self._writing: WriteDeadline

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._writing = WriteDeadline(transport, self.loop)
        self._slot.abort = transport.abort
        websocket: Any = partial(BoundedWebSocketProtocol, slot=self._slot)
        self.ws_protocol_class = websocket
        self._start_deadline(_HEAD_SECS)

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_deadline()
        self._writing.cancel()
        self._slot.release()
        super().connection_lost(exc)

    # -- reading

    def data_received(self, data: bytes) -> None:
        """Parse no more of a head than it may have: one read can bring several times as much."""
        rest = memoryview(data)
        while rest and not self._upgraded and not self.transport.is_closing():
            most = _MAX_HEAD_BYTES - self._received if self._in_head else _MAX_HEAD_BYTES
            piece, rest = rest[:most], rest[most:]
            self._received += len(piece)
            super().data_received(cast("bytes", piece))
            if self._in_head and self._received >= _MAX_HEAD_BYTES:
                self._refuse(*_TOO_LARGE)
        if self._deadline is None and not self._upgraded and not self.transport.is_closing():
            self._expect_more()

    def _expect_more(self) -> None:
        """Start the deadline of an unfinished head or body. Most requests come in one piece."""
        if self._in_body:
            self._body_since = self.loop.time()
            self._start_deadline(_BODY_SECS)
        elif self._in_head or self._is_answered():
            # Between requests, uvicorn's own timeout ends with the first byte, even of an empty
            # line.
            self._start_deadline(_HEAD_SECS)

    def _is_answered(self) -> bool:
        """Whether no request waits for its answer."""
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is None or cycle.response_complete

    def on_message_begin(self) -> None:
        self._in_head = True
        super().on_message_begin()
        attach_slot(self.scope, self._slot)

    def on_headers_complete(self) -> None:
        self._cancel_deadline()
        if self._measure_head() > _MAX_HEAD_BYTES:
            # This head began behind another request, in one piece with it.
            self._is_head_too_large = True
            raise ValueError(_TOO_LARGE[-1])
        self._in_head, self._in_body, self._received = False, True, 0
        super().on_headers_complete()

    def _measure_head(self) -> int:
        """How many bytes the head has, without optional white space."""
        names = sum(len(name) + len(value) + _HEADER_EXTRA for name, value in self.headers)
        return len(self.parser.get_method()) + len(self.url) + _REQUEST_LINE_EXTRA + names

    def on_message_complete(self) -> None:
        self._cancel_deadline()
        self._in_body, self._received = False, 0
        super().on_message_complete()

    def handle_websocket_upgrade(self) -> None:
        self._upgraded = True
        self._cancel_deadline()
        refusal = self._screen_handshake()
        if refusal is None:
            super().handle_websocket_upgrade()
        else:
            self._refuse(refusal.status, refusal.code, refusal.message)

    def _screen_handshake(self) -> GatepostError | None:
        headers = dict(self.headers)
        # A page of another origin is refused for that.
        if self.url != _LOCAL_WEBSOCKET or b"origin" in headers:
            return None
        authorization = headers.get(b"authorization")
        text = None if authorization is None else authorization.decode("latin-1")
        return self._screen(text, self._slot.source)

    def _start_deadline(self, secs: float) -> None:
        self._cancel_deadline()
        self._deadline = self.loop.call_later(secs, self._end_wait)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _end_wait(self) -> None:
        self._deadline = None
        if self.transport.is_closing():
            return
        if self._in_body and (left := self._body_secs_left()) > 0:
            self._start_deadline(left)
        elif self._in_head and not self._received:
            self.transport.close()
        else:
            self._refuse(*_TOO_SLOW)

    def _body_secs_left(self) -> float:
        if self.flow.read_paused:
            # The body waits for the gateway, and not the other way round.
            return _BODY_SECS
        earned = self._received / _MIN_BYTES_PER_SEC if self._slot.holder is not None else 0.0
        return self._body_since + _BODY_SECS + earned - self.loop.time()

    # -- writing

    def pause_writing(self) -> None:
        super().pause_writing()
        self._writing.start(_UNREAD_SECS)

    def resume_writing(self) -> None:
        self._writing.cancel()
        super().resume_writing()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            self._writing.linger()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._writing.linger()

    def send_400_response(self, msg: str) -> None:
        if self._is_head_too_large:
            self._refuse(*_TOO_LARGE)
            return
        super().send_400_response(msg)
        self._writing.linger()

    def _refuse(self, status: int, code: str, text: str) -> None:
        if self._is_answered() or not self.cycle.response_started:
            body = msgspec.json.encode(Failure(code, text))
            head = (
                f"HTTP/1.1 {status} {_PHRASES[status]}\r\ncontent-type: application/json\r\n"
                f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + body)
        self.transport.close()
        self._writing.linger()


class BoundedWebSocketProtocol(WebSocketsSansIOProtocol):
    """The same for a WebSocket. Its pings end a connection that is silent."""

    def __init__(self, *args: Any, slot: ConnectionSlot, **more: Any) -> None:
        super().__init__(*args, **more)
        self._slot = slot
        self._writing: WriteDeadline
        self._deadline: asyncio.TimerHandle
        self._has_request = False
        self._frames = FrameMeter()
        self._unparsed = bytearray()
        self._is_behind = False
        self._next_slice: asyncio.Handle | None = None
        self._held_pong = b""
        self._is_broken_off = False

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._writing = WriteDeadline(transport, self.loop)
        self._deadline = self.loop.call_later(_ACCEPT_SECS, self._end_handshake)

    def connection_lost(self, exc: Exception | None) -> None:
        self._deadline.cancel()
        self._writing.cancel()
        self._slot.release()
        self._unparsed.clear()
        super().connection_lost(exc)

    # -- reading

    def data_received(self, data: bytes) -> None:
        """The first call brings the request of the handshake, whole. All others bring frames."""
        if not self._has_request:
            self._has_request = True
            super().data_received(data)
            return
        self._unparsed += data
        if self._next_slice is None:
            self._parse_slice()

    def _parse_slice(self) -> None:
        """Parse until the time is up. The rest waits, and nothing more is read meanwhile."""
        self._next_slice = None
        ends = time.perf_counter() + SLICE_SECS
        self._is_behind = False
        while not self.transport.is_closing():
            size = self._frames.measure_frames(self._unparsed, _PARSED_FRAMES)
            if not size:
                break
            piece = bytes(self._unparsed[:size])
            del self._unparsed[:size]
            super().data_received(piece)
            if time.perf_counter() > ends:
                self._is_behind = True
                break
        self._schedule_rest()

    def _schedule_rest(self) -> None:
        """Go on after some turns of others, or once the application has taken its messages."""
        if self.transport.is_closing():
            self._unparsed.clear()
        elif self._is_behind:
            self.transport.pause_reading()
            if not self.read_paused and self._next_slice is None:
                self._pass_turn(TURNS_OF_OTHERS)
        elif not self.read_paused:
            self.transport.resume_reading()

    def _pass_turn(self, left: int) -> None:
        if left:
            self._next_slice = self.loop.call_soon(self._pass_turn, left - 1)
        else:
            self._parse_slice()

    async def receive(self) -> Any:
        message = await super().receive()
        if self._is_behind:
            self._schedule_rest()
        return message

    def handle_cont(self, event: Any) -> None:
        if self.close_sent:
            return
        super().handle_cont(event)
        if len(self.frames) > MAX_PIECES:
            self.conn.fail(_CLOSE_TOO_LARGE, "the message has too many pieces")
            self.handle_parser_exception()

    def handle_ping(self) -> None:
        """Answer, or if the other side does not read, only the latest ping and only later."""
        if self.writable.is_set():
            super().handle_ping()
        else:
            self._held_pong = b"".join(self.conn.data_to_send())

    # -- the handshake, and writing

    def handle_connect(self, event: Any) -> None:
        super().handle_connect(event)
        if hasattr(self, "scope"):
            # The application starts in the next turn of the event loop.
            attach_slot(self.scope, self._slot)

    async def send(self, message: Any) -> None:
        await self.writable.wait()
        if self._is_broken_off:
            # The application did not close, so to uvicorn its next message would be an error.
            raise ClientDisconnected
        await super().send(message)
        if message["type"] == "websocket.http.response.body":
            # uvicorn would report a handshake that was refused as one that was forgotten.
            self.handshake_complete = True

    def pause_writing(self) -> None:
        super().pause_writing()
        self._writing.start(_UNREAD_SECS)

    def resume_writing(self) -> None:
        self._writing.cancel()
        super().resume_writing()
        pong, self._held_pong = self._held_pong, b""
        self.transport.write(pong)

    def handle_parser_exception(self) -> None:
        self._is_broken_off = True
        super().handle_parser_exception()

    def keepalive_timeout(self) -> None:
        self._is_broken_off = True
        super().keepalive_timeout()
        self._writing.linger()

    def _end_handshake(self) -> None:
        if not self.handshake_complete:
            self.transport.abort()
