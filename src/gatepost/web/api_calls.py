"""Calls of the operator's API, within the process: the same routes as for every other client."""

import asyncio
from typing import Any, TypeVar
from urllib.parse import unquote, urlencode

import msgspec
from litestar.types import ASGIApp

from gatepost.errors import Forbidden, GatepostError, InternalError
from gatepost.gateway.doors import OperatorDoor
from gatepost.wire.operations import Failure

T = TypeVar("T")

_DEADLINE_SECS = 10.0
_SLOW_SECS = 120.0


class ApiCalls:
    """Calls with the authority of one session: a read-only one can only read."""

    def __init__(self, app: ASGIApp, operator: OperatorDoor, *, read_only: bool) -> None:
        self._app = app
        self._operator = operator
        self._read_only = read_only

    async def get(self, path: str, answer: type[T], **query: object) -> T:
        return msgspec.json.decode(await self.get_bytes(path, **query), type=answer)

    async def get_bytes(self, path: str, **query: object) -> bytes:
        given = {name: _query_value(value) for name, value in query.items() if value is not None}
        return await self._call("GET", path, urlencode(given), b"", _DEADLINE_SECS)

    async def change(self, method: str, path: str, body: bytes = b"{}") -> bytes:
        """Call what changes something; Forbidden in a read-only session."""
        if self._read_only:
            raise Forbidden("this session is read-only")
        return await self._call(method, path, "", body, _SLOW_SECS)

    async def ask(self, path: str, body: bytes) -> bytes:
        """A call that changes nothing, although it has a body."""
        return await self._call("POST", path, "", body, _SLOW_SECS)

    async def _call(self, method: str, path: str, query: str, body: bytes, secs: float) -> bytes:
        try:
            async with asyncio.timeout(secs):
                status, content = await self._run(method, path, query, body)
        except TimeoutError:
            raise InternalError(f"{method} {path} took longer than {secs:g} s") from None
        if status >= 400:
            raise _decode_failure(content)
        return content

    async def _run(self, method: str, path: str, query: str, body: bytes) -> tuple[int, bytes]:
        headers = [
            (b"host", b"localhost"),
            (b"authorization", self._operator.authorization.encode()),
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
        ]
        scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": unquote(path),
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": headers,
            "client": ("127.0.0.1", 0),
            "server": ("127.0.0.1", 0),
            "state": {},
        }
        messages: list[Any] = [{"type": "http.request", "body": body, "more_body": False}]
        status, content = 500, bytearray()
        never: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        async def receive() -> Any:
            return messages.pop() if messages else await never

        async def send(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            elif message["type"] == "http.response.body":
                content.extend(message.get("body", b""))

        await self._app(scope, receive, send)  # type: ignore[arg-type]
        return status, bytes(content)


def _query_value(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _decode_failure(content: bytes) -> GatepostError:
    try:
        return msgspec.json.decode(content, type=Failure).to_error()
    except msgspec.MsgspecError:
        return InternalError("the gateway could not answer; see its log")
