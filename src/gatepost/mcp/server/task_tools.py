"""The tools for tasks: those an agent asks others to do, and those it does for others."""

from msgspec import UNSET, UnsetType

from gatepost.errors import InvalidRequest, error_from_code
from gatepost.mcp.server import tool_types as types
from gatepost.mcp.server.agent_desk import FollowedSend
from gatepost.mcp.server.agent_tools import check_limits, encode_body, name_author
from gatepost.mcp.server.fenced_text import payload_text
from gatepost.mcp.server.moments import format_moment
from gatepost.mcp.server.resource_names import blob_uri
from gatepost.mcp.server.tool_call import ToolCall
from gatepost.wire.tasks import (
    NewTask,
    TaskAwait,
    TaskAwaited,
    TaskCancel,
    TaskCreate,
    TaskReport,
    TaskReports,
    TasksCreated,
    TasksReported,
    TaskView,
)

_NOT_ENDED = "It has not ended. `task_status` with `wait_seconds` waits for it."
_ACCEPTED = "Accepted, and its mail is settled. End it with `task_complete`."


async def task_create(call: ToolCall, given: types.TaskCreateArguments) -> types.CreatedTasks:
    if (given.to is None) == (given.capabilities is None):
        raise InvalidRequest("give `to` or `capabilities`, one of the two")
    new = NewTask(
        call.agent,
        given.description,
        UNSET if given.to is None else given.to,
        UNSET if given.capabilities is None else given.capabilities,
        UNSET if given.input is None else encode_body(given.input),
        idempotency_key=given.idempotency_key or UNSET,
        ttl_secs=given.ttl_seconds or UNSET,
    )
    reply: TasksCreated = await call.perform(TaskCreate(tasks=[check_limits(new)]))
    (made,) = reply.results
    if made.code:
        raise error_from_code(made.code, made.error)
    for task in made.tasks:
        call.desk.follow(FollowedSend(task.id, task.agent_name, is_task=True))
    return types.CreatedTasks([show_task(call, task) for task in made.tasks])


async def task_status(call: ToolCall, given: types.TaskStatusArguments) -> types.TaskState:
    wait = given.wait_seconds
    async with call.reporting(wait, "waiting for the task"):
        op = check_limits(TaskAwait(task_id=given.task_id, wait_secs=wait))
        answer: TaskAwaited = await call.perform(op)
    if answer.task.has_ended:
        call.desk.note_told(answer.task.id, answer.task.state)
    return show_task(call, answer.task)


async def task_update(call: ToolCall, given: types.TaskUpdateArguments) -> types.TaskState:
    report = TaskReport(given.task_id, call.agent, "update" if given.handle is None else "accept")
    report.receipt = given.handle or ""
    report.eta_secs = UNSET if given.eta_seconds is None else given.eta_seconds
    if given.handle is not None:
        await _report(call, report)
        call.desk.in_hand.pop(given.handle, None)
        report = TaskReport(given.task_id, call.agent, "update")
    report.progress = UNSET if given.progress is None else given.progress
    report.note = UNSET if given.note is None else given.note
    if given.handle is None or given.progress is not None or given.note is not None:
        await _report(call, report)
    return types.TaskState(given.task_id, call.agent, "running", next=_ACCEPTED)


async def task_complete(call: ToolCall, given: types.TaskCompleteArguments) -> types.TaskState:
    if given.error is not None and given.result is not None:
        raise InvalidRequest("give a `result` or an `error`, not both")
    has_failed = given.error is not None
    report = TaskReport(given.task_id, call.agent, "fail" if has_failed else "complete")
    if given.error is not None:
        report.error, report.error_code = given.error, given.error_code
    else:
        report.result = encode_body("" if given.result is None else given.result)
    await _report(call, report)
    return types.TaskState(given.task_id, call.agent, "failed" if has_failed else "completed")


async def _report(call: ToolCall, report: TaskReport) -> None:
    op = TaskReports(reports=[check_limits(report)])
    answer: TasksReported = await call.perform(op)
    for refused in answer.refused:
        raise error_from_code(refused.code, refused.error)


async def task_cancel(call: ToolCall, given: types.TaskCancelArguments) -> types.TaskState:
    op = check_limits(TaskCancel(task_id=given.task_id, reason=given.reason))
    answer: TaskAwaited = await call.perform(op)
    return show_task(call, answer.task)


def show_task(call: ToolCall, task: TaskView) -> types.TaskState:
    author = name_author(task.agent_name, task.executor_node, call)
    shown = types.TaskState(task.id, task.agent_name, task.state, task.requester, task.progress)
    shown.eta_at = format_moment(task.eta_at)
    shown.note = call.fence.show_whole(task.note or "", author)
    shown.error_code = task.error_code or ""
    shown.error = call.fence.show_whole(task.error or "", author)
    if task.result_ref is not None:
        shown.resource = blob_uri(task.result_ref)
    elif not isinstance(task.result, UnsetType):
        shown.result = call.fence.show_whole(payload_text(task.result), author)
    shown.next = "" if task.has_ended else _NOT_ENDED
    return shown
