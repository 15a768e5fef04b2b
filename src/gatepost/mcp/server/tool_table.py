"""The tools: names, functions, effects and audience."""

import re
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any, Literal

import msgspec
from msgspec import Struct

from gatepost.errors import InvalidRequest
from gatepost.gateway.doors import DoorCaller
from gatepost.mcp.server import tool_types as types
from gatepost.mcp.server.agent_tools import ack, find, inbox, nack, reply, request, send, whoami
from gatepost.mcp.server.operator_tools import dlq_list, dlq_replay, incidents
from gatepost.mcp.server.task_tools import (
    task_cancel,
    task_complete,
    task_create,
    task_status,
    task_update,
)
from gatepost.mcp.server.tool_call import ToolCall
from gatepost.mcp.server.trace_tool import trace

RunTool = Callable[[ToolCall, Any], Awaitable[types.Result]]
JsonSchema = dict[str, Any]


class ToolEntry(Struct, frozen=True):
    """`effect`: `reads` changes nothing, `repeats` may be called twice, `destroys` ends something.

    An `audience` of agents sees the tool if it connects as an agent, an operator if it has the
    local token.
    """

    run: RunTool
    arguments: type[types.Arguments]
    result: type[types.Result]
    description: str
    effect: Literal["reads", "adds", "repeats", "destroys"]
    audience: Literal["all", "agents", "operators"] = "agents"

    @property
    def name(self) -> str:
        return str(getattr(self.run, "__name__", ""))

    def is_for(self, caller: DoorCaller) -> bool:
        if self.audience == "operators":
            return caller.is_operator
        return self.audience == "all" or caller.session is not None


_ENTRIES = (
    ToolEntry(
        whoami,
        types.NoArguments,
        types.WhoAmI,
        "Your agent's name and gateway, what waits for you, and what you wait for.",
        "reads",
        "all",
    ),
    ToolEntry(
        find,
        types.FindArguments,
        types.Found,
        "Find agents to write to, and capabilities to ask for.",
        "reads",
        "all",
    ),
    ToolEntry(
        send,
        types.SendArguments,
        types.SentMessage,
        "Send a message to another agent. Returns once it is on disk; an answer comes to your"
        " inbox.",
        "adds",
    ),
    ToolEntry(
        request,
        types.RequestArguments,
        types.SentMessage,
        "Ask another agent and wait for its answer. If that takes longer, call it again with the"
        " `event_id` alone.",
        "adds",
    ),
    ToolEntry(
        inbox,
        types.InboxArguments,
        types.Inbox,
        "Take your waiting mail, or wait for it. End each turn with `reply`, `ack` or `nack`; mail"
        " of kind task_create with `task_update` and then `task_complete`.",
        "adds",
    ),
    ToolEntry(
        reply,
        types.ReplyArguments,
        types.Settled,
        "Answer mail from your inbox. That ends its turn.",
        "adds",
    ),
    ToolEntry(
        ack,
        types.AckArguments,
        types.Settled,
        "End the turns of mail that needs no answer.",
        "adds",
    ),
    ToolEntry(
        nack,
        types.NackArguments,
        types.Settled,
        "Give mail back: it is delivered again later, or becomes a dead letter.",
        "destroys",
    ),
    ToolEntry(
        task_create,
        types.TaskCreateArguments,
        types.CreatedTasks,
        "Ask agents to do a task, and follow it with `task_status`.",
        "adds",
    ),
    ToolEntry(
        task_status,
        types.TaskStatusArguments,
        types.TaskState,
        "How far a task is, and its result. Can wait for its end.",
        "reads",
    ),
    ToolEntry(
        task_update,
        types.TaskUpdateArguments,
        types.TaskState,
        "Accept a task that came to your inbox, with its `handle`; later report its progress.",
        "repeats",
    ),
    ToolEntry(
        task_complete,
        types.TaskCompleteArguments,
        types.TaskState,
        "End a task of yours: with its result, or with the error that it failed with.",
        "adds",
    ),
    ToolEntry(
        task_cancel,
        types.TaskCancelArguments,
        types.TaskState,
        "Cancel a task that you created.",
        "destroys",
    ),
    ToolEntry(
        trace,
        types.TraceArguments,
        types.Trace,
        "The journey of a message, task or conversation through all gateways.",
        "reads",
        "all",
    ),
    ToolEntry(
        dlq_list,
        types.DeadLetterListArguments,
        types.DeadLetterPage,
        "Dead letters of an agent of this gateway; without an agent, how many each has.",
        "reads",
        "operators",
    ),
    ToolEntry(
        dlq_replay,
        types.DeadLetterReplayArguments,
        types.ReplayedLetters,
        "Deliver dead letters of an agent again: those named, or the oldest.",
        "adds",
        "operators",
    ),
    ToolEntry(
        incidents,
        types.IncidentsArguments,
        types.Incidents,
        "What this gateway wants a person to know, newest first.",
        "reads",
        "operators",
    ),
)
TOOLS = {entry.name: entry for entry in _ENTRIES}


def list_tools(caller: DoorCaller) -> list[ToolEntry]:
    return [entry for entry in _ENTRIES if entry.is_for(caller)]


async def run_tool(entry: ToolEntry, call: ToolCall, arguments: dict[str, Any]) -> types.Result:
    try:
        given = msgspec.convert(arguments, entry.arguments)
    except msgspec.ValidationError as error:
        raise InvalidRequest(str(error)) from None
    await call.register()
    return await entry.run(call, given)


@cache
def json_schema(kind: type) -> JsonSchema:
    """One object schema that stands alone, as MCP wants it: msgspec puts the root behind a $ref."""
    schema = msgspec.json.schema(kind)
    definitions = schema.pop("$defs", {})
    root = definitions.pop(schema["$ref"].rpartition("/")[2]) if "$ref" in schema else schema
    whole = {**root, "$defs": definitions} if definitions else root
    return dict(_use_ecma_patterns(whole))


def _use_ecma_patterns(schema: Any) -> Any:
    """Clients check patterns by the rules of JavaScript, which has no \\A and \\Z."""
    if isinstance(schema, list):
        return [_use_ecma_patterns(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    changed = {name: _use_ecma_patterns(value) for name, value in schema.items()}
    if isinstance(pattern := changed.get("pattern"), str):
        changed["pattern"] = re.sub(r"\\Z$", "$", re.sub(r"^\\A", "^", pattern))
    return changed
