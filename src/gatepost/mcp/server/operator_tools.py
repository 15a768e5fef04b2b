"""The operator's tools: dead letters and incidents of this gateway."""

from gatepost.mcp.server import tool_types as types
from gatepost.mcp.server.moments import format_moment
from gatepost.mcp.server.tool_call import ToolCall


async def dlq_list(call: ToolCall, given: types.DeadLetterListArguments) -> types.DeadLetterPage:
    """The dead letters of an agent; without one, how many each agent has."""
    if not given.agent:
        boxes = await call.services.list_mailboxes(call.caller)
        counts = [types.DeadLetterCount(b.name, b.dead_letters) for b in boxes if b.dead_letters]
        return types.DeadLetterPage(mailboxes=counts)
    found = await call.services.list_dead_letters(
        call.caller, given.agent, given.limit, given.after or ""
    )
    return types.DeadLetterPage(
        [
            types.DeadLetterInfo(
                each.msg_id,
                each.from_,
                each.to,
                format_moment(each.failed_at * 1000),
                each.attempts,
                call.fence.show_whole(each.reason, each.to),
            )
            for each in found
        ]
    )


async def dlq_replay(
    call: ToolCall, given: types.DeadLetterReplayArguments
) -> types.ReplayedLetters:
    done = await call.services.replay_dead_letters(
        call.caller, given.agent, given.message_ids, given.limit
    )
    problems = [f"{each.msg_id}: {each.error.message}" for each in done if each.error is not None]
    return types.ReplayedLetters(len(done) - len(problems), problems)


async def incidents(call: ToolCall, given: types.IncidentsArguments) -> types.Incidents:
    since = call.services.clock.now() - int(given.since_minutes * 60_000)
    page = await call.services.list_incidents(call.caller, since, given.limit)
    return types.Incidents(
        [
            types.IncidentInfo(
                each.id,
                each.class_,
                each.status,
                format_moment(each.raised_at),
                each.source,
                call.fence.show_whole(f"{each.subject}: {each.detail}", each.source),
            )
            for each in page.incidents
        ],
        page.counts,
    )
