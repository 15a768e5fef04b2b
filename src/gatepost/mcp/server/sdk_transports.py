"""The two transports of the `mcp` SDK: lines over a stream, and HTTP requests."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import anyio
import mcp_types
from mcp.server.lowlevel.server import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared._context_streams import create_context_streams
from mcp.shared.message import SessionMessage

from gatepost.gateway.api.unix_socket import drain_writer

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
        yield HttpManagers(streaming, plain, max_body_bytes)


class HttpManagers:
    """Answers with a stream of events where something can come before the answer, else plainly.

    A stream costs a millisecond more.
    """

    def __init__(
        self,
        streaming: StreamableHTTPSessionManager,
        plain: StreamableHTTPSessionManager,
        max_body_bytes: int,
    ) -> None:
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

        async def receive_again() -> Any:
            return messages.pop(0) if messages else await receive()

        await manager.handle_request(scope, receive_again, send)
