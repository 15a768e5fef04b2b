"""uvicorn's HTTP protocol with bounds on the size and duration of a request's head.

The parser keeps the head in memory until it is complete, before any token was checked. So its size
is limited, and a new connection must send it in time.
"""

import asyncio
from typing import Any

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gatepost.wire import Failure

_MAX_HEAD_BYTES = 64 * 1024
_HEAD_SECS = 30.0
_REFUSAL = msgspec.json.encode(Failure("payload_too_large", "the request's head is too large"))


class BoundedHttpProtocol(HttpToolsProtocol):
    _head_bytes = 0
    _in_head = True
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._deadline = self.loop.call_later(_HEAD_SECS, transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_deadline()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._head_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._head_bytes > _MAX_HEAD_BYTES and not self.transport.is_closing():
            self._refuse_head()

    def on_headers_complete(self) -> None:
        self._cancel_deadline()
        self._in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_head, self._head_bytes = True, 0
        super().on_message_complete()

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _refuse_head(self) -> None:
        head = (
            "HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: application/json\r\n"
            f"content-length: {len(_REFUSAL)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + _REFUSAL)
        self.transport.close()
