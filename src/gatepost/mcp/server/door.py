"""The door for MCP: clients over HTTP, `gatepost mcp` at the Unix socket, and hooks of clients.

A client of the Unix socket runs under the operator's account, so it may say as which agent it acts:
that is a word on the command line of `gatepost mcp`, and never an argument of a tool. It gets the
operator's tools only if it asks for them there.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from gatepost.errors import ExtraMissing, GatepostError, InvalidRequest
from gatepost.gateway.doors import DoorCaller, DoorServices
from gatepost.mcp.server.agent_desk import AgentDesks
from gatepost.mcp.server.fenced_text import Fence
from gatepost.mcp.server.http_endpoint import HttpEndpoint, caller_of_request
from gatepost.mcp.server.notices import NoticeDesk, NoticeRequest
from gatepost.mcp.server.sdk import ADVICE, Sdk
from gatepost.mcp.server.tool_call import ReportProgress, ToolCall

log = logging.getLogger(__name__)

_SERVER_ERROR = -32000


class Greeting(Struct):
    """The first line of a connection: of a client of MCP, or of a hook that asks for a notice."""

    door: Literal["mcp"]
    agent: str | None = None
    operator: bool = False
    notice: NoticeRequest | None = None


class McpDoor:
    def __init__(self, services: DoorServices) -> None:
        self._services = services
        self._sdk = Sdk()
        self._desks = AgentDesks(services.perform)
        self._fence = Fence(services.clock)
        self._notices = NoticeDesk(services, self._desks)
        self._http = HttpEndpoint(services, self._sdk)

    def create_routes(self) -> list[Any]:
        return self._http.create_routes()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        tasks = [
            asyncio.create_task(self._desks.keep_leases()),
            asyncio.create_task(self._run_http()),
        ]
        if self._sdk.is_installed and self._was_used():
            # A client that has to wait for the import misses its first turn.
            tasks.append(asyncio.create_task(self._load_sdk()))
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _was_used(self) -> bool:
        """Whether a client of MCP was ever installed for this gateway, or has ever called."""
        return self._mark.exists()

    @property
    def _mark(self) -> Path:
        return self._services.settings.node.state_dir / "mcp"

    def _note_use(self) -> None:
        with contextlib.suppress(OSError):
            self._mark.mkdir(exist_ok=True)

    async def _load_sdk(self) -> None:
        try:
            await self._sdk.load()
        except Exception:
            log.exception("the SDK of MCP cannot be imported")

    async def _run_http(self) -> None:
        """Start the session manager at the first request, and run it until the gateway stops."""
        await self._http.is_wanted.wait()
        try:
            sdk = await self._sdk.load()
            self._note_use()
            server = sdk.server.build_http_server(
                self._open_call, lambda ctx: caller_of_request(ctx.request)
            )
            max_bytes = self._services.settings.limits.max_body_bytes
            async with sdk.transports.running_http(server, max_bytes) as managers:
                self._http.serve = managers.serve
                self._http.is_ready.set()
                await asyncio.Event().wait()
        except Exception:
            log.exception("the MCP server over HTTP has failed")
        finally:
            self._http.serve = None
            self._http.is_ready.set()

    def _open_call(self, caller: DoorCaller, report: ReportProgress) -> ToolCall:
        return ToolCall(self._services, self._desks, self._fence, caller, report)

    # -- the Unix socket

    async def serve_connection(
        self, greeting: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            given = msgspec.json.decode(greeting, type=Greeting)
        except msgspec.MsgspecError as error:
            raise InvalidRequest(f"the greeting cannot be read: {error}") from None
        if given.notice is not None:
            await self._answer_notice(given, reader, writer)
        else:
            await self._serve_client(given, reader, writer)

    async def _answer_notice(
        self, given: Greeting, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        assert given.notice is not None, "the greeting of a hook"
        caller = self._services.local_caller(given.agent, is_operator=False)
        answer = await self._notices.answer(caller, given.notice, reader)
        writer.write(msgspec.json.encode(answer) + b"\n")
        await writer.drain()

    async def _serve_client(
        self, given: Greeting, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            if not self._sdk.is_installed:
                raise ExtraMissing(ADVICE)
            caller = self._services.local_caller(given.agent, is_operator=given.operator)
            if caller.session is not None:
                await self._services.register(caller)
            sdk = await self._sdk.load()
        except GatepostError as error:
            await _refuse_client(error, reader, writer)
            return
        self._note_use()
        server, stop = sdk.server.build_connection_server(self._open_call, partial(_return, caller))
        with self._desks.connected(caller):
            try:
                await sdk.transports.serve_stream(server, reader, writer)
            finally:
                await stop()


def _return(caller: DoorCaller, _: object) -> DoorCaller:
    return caller


class _RequestId(Struct):
    id: int | str | None = None


async def _refuse_client(
    error: GatepostError, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Answer the client's first request with the reason, which the client shows to its user."""
    line = await reader.readline()
    try:
        id = msgspec.json.decode(line, type=_RequestId).id
    except msgspec.MsgspecError:
        id = None
    failure = {"code": _SERVER_ERROR, "message": f"{error.code}: {error.message}"}
    answer = {"jsonrpc": "2.0", "id": id, "error": failure}
    writer.write(msgspec.json.encode(answer) + b"\n")
    await writer.drain()


def open_door(services: DoorServices) -> McpDoor:
    return McpDoor(services)
