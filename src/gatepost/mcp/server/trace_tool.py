"""The tool that shows the journey of a message, task or conversation."""

from gatepost.access import Scope, require_scope
from gatepost.mcp.server import tool_types as types
from gatepost.mcp.server.moments import format_moment
from gatepost.mcp.server.tool_call import ToolCall


async def trace(call: ToolCall, given: types.TraceArguments) -> types.Trace:
    if call.caller.session is not None:
        require_scope(call.caller.session, Scope.MESSAGE_READ)
    journey = await call.services.trace(call.caller, given.ref)
    steps = [
        types.TraceStep(
            format_moment(step.at),
            step.node,
            step.what,
            step.event_id,
            step.agent,
            step.to_agent,
            # Reasons and notes are words of agents.
            call.fence.show_whole(step.detail, step.agent or step.node),
        )
        for step in journey.steps
    ]
    unreachable = [f"{node}: {why}" for node, why in journey.unreachable.items()]
    return types.Trace(steps, journey.corr_id, unreachable, journey.notes)
