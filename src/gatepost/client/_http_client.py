"""Plain HTTP requests to the gateway: large payloads, and its status."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING

from gatepost.connect.gateway_endpoint import LocateGateway
from gatepost.wire.gateway_views import Status, StoredBlob

if TYPE_CHECKING:
    from gatepost.connect.http_calls import AsyncHttpCalls

_SESSION_CALLS = "/ansible/agent/invoke"
_SESSION_BLOBS = "/ansible/agent/blobs"
_SESSION_UPLOADS = "/ansible/agent/uploads"
_PIECE_BYTES = 256 * 1024


class ClientHttp:
    """HTTP requests to the gateway. httpx is loaded with the first one."""

    def __init__(self, locate: LocateGateway) -> None:
        self._locate = locate
        self._opened: AsyncHttpCalls | None = None

    @property
    def _calls(self) -> "AsyncHttpCalls":
        from gatepost.connect.http_calls import AsyncHttpCalls

        if self._opened is None:
            self._opened = AsyncHttpCalls(self._locate)
        return self._opened

    async def close(self) -> None:
        if self._opened is not None:
            await self._opened.close()

    async def get_status(self, timeout: float) -> Status:
        """The gateway's status; the session of an external agent asks for it as an operation."""
        if not await self._has_session():
            return await self._calls.get("/v1/status", Status, timeout)
        content = read_pieces(b'{"op":"status"}')
        async with self._calls.open_response("POST", _SESSION_CALLS, timeout, content) as response:
            return await self._calls.read_answer(response, Status)

    async def _has_session(self) -> bool:
        return (await asyncio.to_thread(self._locate)).is_session

    async def upload(self, pieces: AsyncIterator[bytes], timeout: float) -> str:
        """Store a payload; returns its digest."""
        path = _SESSION_UPLOADS if await self._has_session() else "/v1/blobs"
        async with self._calls.open_response("POST", path, timeout, pieces) as response:
            return (await self._calls.read_answer(response, StoredBlob)).digest

    async def download(self, digest: str) -> AsyncIterator[bytes]:
        folder = _SESSION_BLOBS if await self._has_session() else "/v1/blobs"
        async with self._calls.open_response("GET", f"{folder}/{digest}", 30.0) as response:
            async for piece in self._calls.stream_body(response, _PIECE_BYTES):
                yield piece


async def read_pieces(content: bytes | Path | str | IO[bytes]) -> AsyncIterator[bytes]:
    """The bytes of a payload in pieces; a file is never read whole."""
    if isinstance(content, bytes):
        for start in range(0, len(content), _PIECE_BYTES):
            yield content[start : start + _PIECE_BYTES]
        return
    with _open_content(content) as file:
        while piece := await asyncio.to_thread(file.read, _PIECE_BYTES):
            yield piece


@contextlib.contextmanager
def _open_content(content: Path | str | IO[bytes]) -> Iterator[IO[bytes]]:
    if not isinstance(content, Path | str):
        yield content
        return
    with Path(content).expanduser().open("rb") as file:
        yield file
