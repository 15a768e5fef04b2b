"""The two transports of the `mcp` SDK: lines over a stream, and HTTP requests."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import anyio
import mcp_types
from mcp.server._streamable_http_modern import (
    _SingleExchangeDispatchContext,
    _to_jsonrpc_response,
)
from mcp.server.connection import Connection
from mcp.server.lowlevel.server import Server
from mcp.server.runner import serve_one
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared._context_streams import create_context_streams
from mcp.shared.message import ServerMessageMetadata, SessionMessage
from mcp.shared.transport_context import TransportContext
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.datastructures import Headers
from starlette.requests import Request

from gatepost.gateway.api.unix_socket import drain_writer

_VERSION_HEADER = "mcp-protocol-version"
# The requests that get more than an answer: progress, and updates of resources.
_NEED_STREAM = (b'"progressToken"', b'"subscriptions/listen"')


async def serve_stream(
    server: "Server[Any]", reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Serve one connection, a JSON-RPC message a line, until either side ends it."""
    received, incoming = create_context_streams[SessionMessage | Exception](0)
    outgoing, to_send = create_context_streams[SessionMessage](0)

    async def receive_lines() -> None:
        async with received:
            while line := await reader.readline():
                await received.send(_parse_line(line))

    async def send_lines() -> None:
        async with to_send:
            async for message in to_send:
                text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                writer.write(text.encode() + b"\n")
                await drain_writer(writer)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(receive_lines)
        tasks.start_soon(send_lines)
        await server.run(incoming, outgoing, server.create_initialization_options())
        tasks.cancel_scope.cancel()


def _parse_line(line: bytes) -> SessionMessage | Exception:
    try:
        message = mcp_types.jsonrpc_message_adapter.validate_json(line, by_name=False)
        return SessionMessage(message)
    except ValueError as error:
        return error


@contextlib.asynccontextmanager
async def running_http(server: "Server[Any]", max_body_bytes: int) -> AsyncIterator["HttpManagers"]:
    """Managers that serve HTTP requests, each on its own. Host and Origin are checked before."""
    streaming, plain = (
        StreamableHTTPSessionManager(
            app=server,
            stateless=True,
            json_response=is_plain,
            max_request_body_size=max_body_bytes,
        )
        for is_plain in (False, True)
    )
    async with streaming.run(), plain.run():
        yield HttpManagers(server, streaming, plain, max_body_bytes)


class HttpManagers:
    """Answers with a stream of events where something can come before the answer, else plainly.

    A stream costs a millisecond more.
    """

    def __init__(
        self,
        server: "Server[Any]",
        streaming: StreamableHTTPSessionManager,
        plain: StreamableHTTPSessionManager,
        max_body_bytes: int,
    ) -> None:
        self._server = server
        self._streaming, self._plain = streaming, plain
        self._max_body_bytes = max_body_bytes

    async def serve(self, scope: Any, receive: Any, send: Any) -> None:
        messages, body = [], b""
        while scope["method"] == "POST" and len(body) <= self._max_body_bytes:
            messages.append(await receive())
            body += messages[-1].get("body", b"")
            if not messages[-1].get("more_body"):
                break
        wants_more = not body or any(word in body for word in _NEED_STREAM)
        manager = self._streaming if wants_more else self._plain
        if not wants_more and (call := _find_plain_call(scope, body)) is not None:
            await self._serve_plain_call(call, scope, receive, send)
            return

        async def receive_again() -> Any:
            return messages.pop(0) if messages else await receive()

        await manager.handle_request(scope, receive_again, send)

    async def _serve_plain_call(
        self, call: mcp_types.JSONRPCRequest, scope: Any, receive: Any, send: Any
    ) -> None:
        """Answer one call of a tool as the SDK does for clients of the newest protocol.

        For those of the older one, it would make a transport and its tasks for each request, which
        takes two milliseconds. A client that hangs up ends its call.
        """
        request = Request(scope)
        context = _SingleExchangeDispatchContext(
            transport=TransportContext(kind="streamable-http", can_send_request=False),
            request_id=call.id,
            message_metadata=ServerMessageMetadata(request_context=request),
        )
        version = request.headers[_VERSION_HEADER]
        connection = Connection.from_envelope(version, None, None)
        work = serve_one(
            self._server,
            context,
            call.method,
            call.params,
            connection=connection,
            lifespan_state={},
        )
        answering = asyncio.create_task(_to_jsonrpc_response(call.id, work))
        gone = asyncio.create_task(_await_disconnect(receive))
        try:
            await asyncio.wait((answering, gone), return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                await _send_answer(answering.result(), send)
        finally:
            for task in (answering, gone):
                task.cancel()
            await asyncio.gather(answering, gone, return_exceptions=True)


def _find_plain_call(scope: Any, body: bytes) -> mcp_types.JSONRPCRequest | None:
    """The call of a tool in a request with which nothing is wrong; the SDK judges all others."""
    headers = Headers(scope=scope)
    accepted = headers.get("accept", "")
    is_plain = (
        headers.get("content-type", "").partition(";")[0].strip() == "application/json"
        and "application/json" in accepted
        and "text/event-stream" in accepted
        and headers.get(_VERSION_HEADER) in HANDSHAKE_PROTOCOL_VERSIONS
        and b'"tools/call"' in body
    )
    if not is_plain:
        return None
    try:
        call = mcp_types.JSONRPCRequest.model_validate_json(body)
    except ValueError:
        return None
    return call if call.method == "tools/call" else None


async def _send_answer(answer: Any, send: Any) -> None:
    body = answer.model_dump_json(by_alias=True, exclude_none=True).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def _await_disconnect(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
