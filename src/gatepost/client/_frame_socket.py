"""One WebSocket without tasks: frames are sent and received by plain calls.

The cost of a frame decides how fast a client is, so the sans-I/O half of `websockets` works
directly on the transport.
"""

import asyncio
import ssl
from collections.abc import Callable
from typing import Self, cast
from urllib.parse import urlsplit

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidStatus
from websockets.frames import Frame, Opcode
from websockets.uri import parse_uri

from gatepost.connect.connect_errors import TRUST_ADVICE, explain_connect_error
from gatepost.connect.gateway_endpoint import Target
from gatepost.errors import GatepostError, InvalidRequest, Unavailable
from gatepost.wire.operations import decode_failure

# The gateway keeps its frames near 512 KiB, but a page of dead letters may be larger.
_MAX_FRAME_BYTES = 128 * 1024 * 1024
_CLOSED_TOO_BIG = 1009


class FrameSocket(asyncio.Protocol):
    """`on_frame` gets each frame; `on_lost` gets the reason when the connection ends.

    `on_writable` is called when the transport takes data again after being full.
    """

    def __init__(
        self,
        target: Target,
        on_frame: Callable[[bytes], None],
        on_lost: Callable[[str], None],
        on_writable: Callable[[], None],
    ) -> None:
        address = target.url.replace("http", "ws", 1) + "/v1/ws"
        self._ws = ClientProtocol(parse_uri(address), max_size=_MAX_FRAME_BYTES)
        self._target = target
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._on_writable = on_writable
        self._transport: asyncio.Transport
        self._parts: list[bytes] = []
        self._opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lost_reason = "the gateway closed the connection"
        self.is_paused = False
        self.has_heard = False
        self.was_reset = False

    @classmethod
    async def open(
        cls,
        target: Target,
        on_frame: Callable[[bytes], None],
        on_lost: Callable[[str], None],
        on_writable: Callable[[], None],
    ) -> Self:
        """Connect and shake hands; raises if the gateway cannot be reached or refuses."""
        parts = urlsplit(target.url)
        secure = parts.scheme == "https"
        port = parts.port or (443 if secure else 80)
        loop = asyncio.get_running_loop()
        try:
            _, socket = await loop.create_connection(
                lambda: cls(target, on_frame, on_lost, on_writable),
                parts.hostname or "localhost",
                port,
                ssl=(target.tls or True) if secure else None,
            )
        except ssl.SSLError as error:
            raise Unavailable(
                explain_connect_error(target.url, error, TRUST_ADVICE)
                or f"{target.url} cannot be reached"
            ) from None
        except OSError as error:
            raise Unavailable(
                f"no gateway answers at {target.url} ({error.strerror or error});"
                " start one with `gatepost up`"
            ) from None
        await socket._await_handshake()
        return socket

    @property
    def refused_as_too_big(self) -> bool:
        return self._ws.close_rcvd is not None and self._ws.close_rcvd.code == _CLOSED_TOO_BIG

    def send(self, frame: bytes) -> None:
        self._ws.send_binary(frame)
        self._write_outgoing()

    def ping(self) -> None:
        self.has_heard = False
        self._ws.send_ping(b"")
        self._write_outgoing()

    def abort(self, reason: str) -> None:
        self._lost_reason = reason
        self._transport.abort()

    async def close(self) -> None:
        if self._opened.done() and not self._transport.is_closing():
            self._ws.send_close(1000)
            self._write_outgoing()
        self._transport.close()
        await asyncio.wait([self._ended], timeout=1.0)

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        request = self._ws.connect()
        request.headers["Authorization"] = f"Bearer {self._target.token}"
        self._ws.send_request(request)
        self._write_outgoing()

    def data_received(self, data: bytes) -> None:
        self.has_heard = True
        self._ws.receive_data(data)
        for event in self._ws.events_received():
            if isinstance(event, Frame):
                self._receive_frame(event)
            elif not self._opened.done():
                self._finish_handshake()
        self._write_outgoing()
        if self._ws.close_expected():
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended.set_result(None)
        self.was_reset = isinstance(exc, ConnectionResetError | BrokenPipeError)
        if exc is not None:
            self._lost_reason = f"the connection broke ({exc})"
        elif self._ws.close_rcvd is not None:
            self._lost_reason += f" ({self._ws.close_rcvd})"
        if not self._opened.done():
            self._opened.set_exception(Unavailable(self._lost_reason))
        elif not self._opened.cancelled() and self._opened.exception() is None:
            self._on_lost(self._lost_reason)

    def pause_writing(self) -> None:
        self.is_paused = True

    def resume_writing(self) -> None:
        self.is_paused = False
        self._on_writable()

    # -- helpers

    async def _await_handshake(self) -> None:
        try:
            await self._opened
        except BaseException:
            self._transport.abort()
            await asyncio.wait([self._ended], timeout=1.0)
            raise

    def _finish_handshake(self) -> None:
        if self._ws.handshake_exc is None:
            self._opened.set_result(None)
        else:
            self._opened.set_exception(_handshake_error(self._ws.handshake_exc, self._target.url))

    def _receive_frame(self, frame: Frame) -> None:
        if frame.opcode in (Opcode.BINARY, Opcode.TEXT, Opcode.CONT):
            data = bytes(frame.data)
            if frame.fin and not self._parts:
                self._on_frame(data)
                return
            self._parts.append(data)
            if frame.fin:
                whole, self._parts = b"".join(self._parts), []
                self._on_frame(whole)

    def _write_outgoing(self) -> None:
        for data in self._ws.data_to_send():
            if data:
                self._transport.write(data)
            elif self._transport.can_write_eof():
                self._transport.write_eof()


def _handshake_error(error: Exception, url: str) -> GatepostError:
    """The error of a failed handshake, from the gateway's answer if it has one."""
    if not isinstance(error, InvalidStatus):
        return Unavailable(f"{url} is not a gateway: {error}")
    status = error.response.status_code
    refusal = decode_failure(bytes(error.response.body or b""))
    if refusal is not None:
        return refusal
    if status >= 500:
        return Unavailable(f"the gateway at {url} answers with status {status}")
    return InvalidRequest(f"{url} is not a gateway: it answers with status {status}")
