"""Resources: the mailbox of the caller, long bodies, and traces. Each is the caller's own."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator

import msgspec

from gatepost.errors import NotFound, PayloadTooLarge, UnknownMessage
from gatepost.mcp.server.agent_tools import list_waiting
from gatepost.mcp.server.resource_names import BLOB, MAIL, MAILBOX, TRACE, parse_uri
from gatepost.mcp.server.tool_call import ToolCall
from gatepost.mcp.server.tool_types import TraceArguments
from gatepost.mcp.server.trace_tool import trace
from gatepost.wire.operations import Await, Awaited

JSON, TEXT = "application/json", "text/plain"
MAX_BLOB_BYTES = 2 * 1024 * 1024
_TRACE_WAIT_SECS = 55.0


class ResourceText(msgspec.Struct, frozen=True):
    text: str
    mime_type: str


async def read_resource(call: ToolCall, uri: str) -> ResourceText:
    kind, name = parse_uri(uri)
    if kind == MAILBOX and name == call.caller.agent:
        return ResourceText(await _describe_mailbox(call), JSON)
    if kind == TRACE:
        journey = await trace(call, TraceArguments(name))
        return ResourceText(msgspec.json.encode(journey).decode(), JSON)
    if kind == MAIL and name in call.desk.in_hand:
        mail = call.desk.in_hand[name]
        if mail.long_body is not None:
            return ResourceText(call.fence.show_whole(mail.long_body, mail.sender), TEXT)
    if kind == BLOB:
        text = await _read_blob(call, name)
        return ResourceText(call.fence.show_whole(text, "that sent it"), TEXT)
    raise NotFound(f"no resource {uri} of this caller")


async def _describe_mailbox(call: ToolCall) -> str:
    """Ids and senders of the mail that waits: bodies come with `inbox`."""
    waiting = [
        {"message_id": each.msg_id, "sender": each.from_} for each in await list_waiting(call)
    ]
    return msgspec.json.encode({"agent": call.agent, "waiting": waiting}).decode()


async def _read_blob(call: ToolCall, digest: str) -> str:
    read = bytearray()
    async for piece in await call.services.read_blob(call.caller, digest):
        read += piece
        if len(read) > MAX_BLOB_BYTES:
            raise PayloadTooLarge(
                f"this payload has more than {MAX_BLOB_BYTES} bytes: `gatepost fetch {digest}`"
            )
    return read.decode("utf-8", "replace")


def may_watch(call: ToolCall, uri: str) -> bool:
    kind, name = parse_uri(uri)
    return kind == TRACE or (kind == MAILBOX and name == call.caller.agent)


async def watch_resource(call: ToolCall, uri: str) -> AsyncGenerator[None, None]:
    """Yield once now that changes are seen, and whenever the resource has changed."""
    kind, name = parse_uri(uri)
    changes = _watch_mailbox(call) if kind == MAILBOX else _watch_message(call, name)
    async with contextlib.aclosing(changes):
        async for _ in changes:
            yield


async def _watch_mailbox(call: ToolCall) -> AsyncGenerator[None, None]:
    async with call.services.watching_mail(call.caller) as changed:
        yield
        while await _wait_for(call, changed):
            changed.clear()
            yield


async def _watch_message(call: ToolCall, event_id: str) -> AsyncGenerator[None, None]:
    """A message changes when it is accepted, and when it is processed."""
    yield
    for goal in ("accepted", "processed"):
        while True:
            op = Await(event_id=event_id, wait_secs=_TRACE_WAIT_SECS)
            op.until = "accepted" if goal == "accepted" else "processed"
            try:
                answer: Awaited = await call.perform(op)
            except UnknownMessage:
                return
            if answer.result.has_reached(op.until):
                yield
                break


async def _wait_for(call: ToolCall, changed: asyncio.Event) -> bool:
    """Wait for a change, for as long as it takes; False if the gateway stops."""
    waits = call.services.waits
    while not changed.is_set():
        waiting = asyncio.ensure_future(changed.wait())
        try:
            await waits.wait_for(waiting, _TRACE_WAIT_SECS)
        finally:
            waiting.cancel()
        if waits.is_stopping:
            return False
    return True
