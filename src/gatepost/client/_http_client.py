"""Plain HTTP requests to the gateway: large payloads, and its status."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, TypeVar

import msgspec

from gatepost.client._gateway_locator import LocateGateway
from gatepost.errors import DeadlineExceeded, GatepostError, Unavailable
from gatepost.wire import Failure, StoredBlob

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")
_PIECE_BYTES = 256 * 1024


class ClientHttp:
    """HTTP requests to the gateway. httpx is loaded with the first one."""

    def __init__(self, locate: LocateGateway) -> None:
        self._locate = locate
        self._client: httpx.AsyncClient | None = None

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()

    async def get(self, path: str, kind: type[T], timeout: float) -> T:
        async with self._open_response("GET", path, timeout) as response:
            return msgspec.json.decode(await response.aread(), type=kind)

    async def upload(self, pieces: AsyncIterator[bytes], timeout: float) -> str:
        """Store a payload; returns its digest."""
        async with self._open_response("POST", "/v1/blobs", timeout, pieces) as response:
            return msgspec.json.decode(await response.aread(), type=StoredBlob).digest

    async def download(self, digest: str) -> AsyncIterator[bytes]:
        async with self._open_response("GET", f"/v1/blobs/{digest}", 30.0) as response:
            async for piece in response.aiter_bytes(_PIECE_BYTES):
                yield piece

    @contextlib.asynccontextmanager
    async def _open_response(
        self, method: str, path: str, timeout: float, content: AsyncIterator[bytes] | None = None
    ) -> "AsyncIterator[httpx.Response]":
        import httpx

        if self._client is None:
            # The gateway is on this machine or named explicitly, so no proxy is used.
            self._client = httpx.AsyncClient(trust_env=False)
        target = self._locate()
        headers = {"authorization": f"Bearer {target.token}"}
        try:
            async with self._client.stream(
                method, target.url + path, headers=headers, content=content, timeout=timeout
            ) as response:
                await _raise_failure(response)
                yield response
        except httpx.TimeoutException:
            raise DeadlineExceeded(
                f"no answer from {target.url} in time, so the outcome is unknown"
            ) from None
        except httpx.TransportError as error:
            raise Unavailable(f"the gateway at {target.url} cannot be reached: {error}") from None


async def _raise_failure(response: "httpx.Response") -> None:
    if response.is_success:
        return
    try:
        failure = msgspec.json.decode(await response.aread(), type=Failure)
    except msgspec.DecodeError:
        raise Unavailable(f"the gateway answers with status {response.status_code}") from None
    error: GatepostError = failure.to_error()
    error.retry_after = failure.retry_after
    raise error


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
