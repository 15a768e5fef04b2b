"""HTTP calls to a gateway: each returns the value of the answer, or raises the gateway's error.

No call uses a proxy: it would see the token. Any program that listens at the address can send an
answer. So a body is read in pieces up to a limit of bytes and time, and never decompressed.
"""

import asyncio
import contextlib
import ssl
import sys
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any, Self, TypeVar, cast

import msgspec

from gatepost.connect.gateway_endpoint import LocateGateway, Target
from gatepost.errors import DeadlineExceeded, Unavailable
from gatepost.tls import authority_context
from gatepost.wire.operations import decode_failure

# httpx loads click, rich and pygments for its own command line whenever they are installed, which
# costs a third of a `gatepost send`. With this entry its command line module cannot be imported,
# and httpx works without it.
cast(dict[str, object], sys.modules).setdefault("httpx._main", None)
import httpx  # noqa: E402

# Callers import httpx from here, after the line above.
__all__ = [
    "UNCOMPRESSED",
    "AsyncHttpCalls",
    "HttpCalls",
    "NotGatewayAnswer",
    "decode_answer",
    "httpx",
    "read_body",
]

T = TypeVar("T")

_CONNECT_SECS = 5.0
# A page of dead letters with their payloads is the largest answer; blobs are streamed.
_MAX_ANSWER_BYTES = 128 * 1024 * 1024
_BODY_SECS = 60.0
UNCOMPRESSED = {"accept-encoding": "identity"}


class NotGatewayAnswer(Exception):
    """An answer that is not from a gateway. Each caller reports it with its own advice."""

    def __init__(self, status: int) -> None:
        super().__init__(f"HTTP {status} with unexpected content")
        self.status = status


def decode_answer(status: int, body: bytes, kind: type[T]) -> T:
    """The value of an answer; raises the gateway's error, or NotGatewayAnswer."""
    if not 200 <= status < 300:
        raise decode_failure(body) or NotGatewayAnswer(status)
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.MsgspecError:
        raise NotGatewayAnswer(status) from None


class _AnswerBody:
    """The body of an answer, piece by piece, up to `most` bytes."""

    def __init__(self, response: httpx.Response, most: int) -> None:
        self._status = response.status_code
        self._left = most
        self._pieces: list[bytes] = []
        check_uncompressed(response)

    def add_piece(self, piece: bytes) -> None:
        self._left -= len(piece)
        if self._left < 0:
            raise NotGatewayAnswer(self._status)
        self._pieces.append(piece)

    def join_pieces(self) -> bytes:
        return b"".join(self._pieces)


def check_uncompressed(response: httpx.Response) -> None:
    """Raise NotGatewayAnswer for a compressed body, which could unpack to gigabytes."""
    if response.headers.get("content-encoding", "identity") != "identity":
        raise NotGatewayAnswer(response.status_code)


async def read_body(response: httpx.Response, most: int = _MAX_ANSWER_BYTES) -> bytes:
    """Read the body of a streamed answer; raises NotGatewayAnswer for more than `most` bytes.

    The caller sets the deadline.
    """
    body = _AnswerBody(response, most)
    async for piece in response.aiter_raw():
        body.add_piece(piece)
    return body.join_pieces()


def _read_body_blocking(response: httpx.Response) -> bytes:
    body = _AnswerBody(response, _MAX_ANSWER_BYTES)
    ends_at = time.monotonic() + _BODY_SECS
    for piece in response.iter_raw():
        body.add_piece(piece)
        if time.monotonic() > ends_at:
            raise httpx.ReadTimeout("the answer does not end", request=response.request)
    return body.join_pieces()


class HttpCalls:
    """Blocking calls to one gateway. Errors of the network are those of httpx."""

    def __init__(
        self,
        url: str,
        token: str = "",
        *,
        timeout: float = 30.0,
        verify: ssl.SSLContext | bool = True,
    ) -> None:
        self._timeout = timeout
        self._http = httpx.Client(
            base_url=url,
            headers=_bearer_header(token) | UNCOMPRESSED,
            # Loading the system's certificates takes longer than a whole call without TLS.
            verify=_choose_verification(url, verify),
            trust_env=False,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def call(
        self,
        method: str,
        path: str,
        kind: type[T],
        *,
        body: object = None,
        wait: float = 0.0,
        **request: Any,
    ) -> T:
        """Call with `body` as JSON; `wait` is the time the gateway may take by design."""
        if body is not None:
            request["content"] = msgspec.json.encode(body)
        timeout = httpx.Timeout(self._timeout + wait, connect=_CONNECT_SECS)
        with self._http.stream(method, path, timeout=timeout, **request) as response:
            return decode_answer(response.status_code, _read_body_blocking(response), kind)

    @contextlib.contextmanager
    def download(self, path: str) -> Iterator[Iterator[bytes]]:
        """Stream the body of an answer."""
        timeout = httpx.Timeout(self._timeout, connect=_CONNECT_SECS)
        with self._http.stream("GET", path, timeout=timeout) as response:
            if not response.is_success:
                decode_answer(response.status_code, _read_body_blocking(response), object)
            check_uncompressed(response)
            yield response.iter_raw()


class AsyncHttpCalls:
    """Calls to the gateway that `locate` finds: its address may change between calls."""

    def __init__(self, locate: LocateGateway) -> None:
        self._locate = locate
        self._http: httpx.AsyncClient | None = None
        self._tls: ssl.SSLContext | None = None

    async def close(self) -> None:
        if self._http is not None:
            await self._http.aclose()

    async def get(self, path: str, kind: type[T], timeout: float) -> T:
        async with self.open_response("GET", path, timeout) as response:
            return await self.read_answer(response, kind)

    async def put(self, path: str, body: object, kind: type[T], timeout: float) -> T:
        return await self.call("PUT", path, body, kind, timeout)

    async def post(self, path: str, body: object, kind: type[T], timeout: float) -> T:
        return await self.call("POST", path, body, kind, timeout)

    async def call(self, method: str, path: str, body: object, kind: type[T], timeout: float) -> T:
        async with self.open_response(method, path, timeout, _one_piece(body)) as response:
            return await self.read_answer(response, kind)

    async def read_answer(self, response: httpx.Response, kind: type[T]) -> T:
        try:
            async with asyncio.timeout(_BODY_SECS):
                body = await read_body(response)
            return decode_answer(response.status_code, body, kind)
        except TimeoutError:
            raise DeadlineExceeded("the answer does not end, so the outcome is unknown") from None
        except NotGatewayAnswer as error:
            raise Unavailable(f"the gateway answers with status {error.status}") from None

    async def stream_body(
        self, response: httpx.Response, piece_bytes: int | None = None
    ) -> AsyncIterator[bytes]:
        """The body in pieces of this size, or as they come."""
        check_uncompressed(response)
        async for piece in response.aiter_raw(piece_bytes):
            yield piece

    async def _open_client(self, target: Target) -> httpx.AsyncClient:
        """The client for this target; another certificate needs another client."""
        if self._http is not None and self._tls is not target.tls:
            await self._http.aclose()
            self._http = None
        if self._http is None:
            verify = _choose_verification(target.url, target.tls or True)
            self._http, self._tls = httpx.AsyncClient(verify=verify, trust_env=False), target.tls
        return self._http

    @contextlib.asynccontextmanager
    async def open_response(
        self,
        method: str,
        path: str,
        timeout: float | httpx.Timeout,
        content: AsyncIterator[bytes] | None = None,
    ) -> AsyncIterator[httpx.Response]:
        """Open a successful answer; the caller reads its body."""
        target = await asyncio.to_thread(self._locate)
        headers = _bearer_header(target.token) | UNCOMPRESSED
        http = await self._open_client(target)
        try:
            async with http.stream(
                method, target.url + path, headers=headers, content=content, timeout=timeout
            ) as response:
                if not response.is_success:
                    await self.read_answer(response, object)
                yield response
        except NotGatewayAnswer as error:
            raise Unavailable(f"the gateway answers with status {error.status}") from None
        except httpx.TimeoutException:
            raise DeadlineExceeded(
                f"no answer from {target.url} in time, so the outcome is unknown"
            ) from None
        except httpx.TransportError as error:
            raise Unavailable(f"the gateway at {target.url} cannot be reached: {error}") from None


def _choose_verification(url: str, verify: ssl.SSLContext | bool) -> ssl.SSLContext | bool:
    if not url.startswith("https:"):
        return False
    # httpx uses its own list of authorities, not the system's or SSL_CERT_FILE.
    return authority_context() if verify is True else verify


async def _one_piece(body: object) -> AsyncIterator[bytes]:
    yield msgspec.json.encode(body)


def _bearer_header(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"} if token else {}
