"""`gatepost task`: creates, lists, shows, follows, cancels and awaits tasks."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter
from cyclopts.validators import Number
from msgspec import Raw, Struct, UnsetType

from gatepost.cli import output
from gatepost.cli.gateway_api import CliGateway, quote_segment
from gatepost.cli.options import DEFAULT_OPTIONS, AgentName, Flag, GatewayOptions
from gatepost.cli.payload import MAX_INLINE_BYTES, encode_payload_argument
from gatepost.cli.payload_upload import upload_file, upload_payload
from gatepost.cli.problems import CommandProblem, ExitCode, usage_problem
from gatepost.cli.task_progress import TaskProgress
from gatepost.clock import SystemClock
from gatepost.events import new_event_id
from gatepost.task_wire import TaskView

TASKS_PATH = "/api/hub/tasks"
_COLUMNS = ("Task", "Agent", "Status", "Progress", "Created", "Description")
_POLL_SECS = 30.0

StatusOption = Literal["pending", "accepted", "running", "completed", "failed", "cancelled"]


class CliTaskList(Struct):
    tasks: list[TaskView]


class CliTaskLog(Struct):
    offset: int
    end: int
    text: str
    is_complete: bool


def create_task(
    agent: AgentName | None = None,
    description: str | None = None,
    /,
    *,
    capability: Annotated[list[str] | None, Parameter(negative=())] = None,
    input: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    input_file: Annotated[Path | None, Parameter(allow_leading_hyphen=True)] = None,
    from_: str = "cli",
    wait: Flag = False,
    timeout: float = 3600.0,
    task_type: str = "",
    ttl: Annotated[float | None, Parameter(validator=Number(gt=0))] = None,
    idempotency_key: str | None = None,
    options: GatewayOptions = DEFAULT_OPTIONS,
) -> int:
    """Create a task for an agent, or for one that has a capability.

    Prints the id of the task. With --wait it shows the task's progress, prints its
    result, and exits with 0 only if the task completed in time.

    For example:

      gatepost task create code-reviewer "review this change" --input-file change.json
      gatepost task create code-reviewer "review 17" --input '{"change": 17}' --wait
      gatepost task create --capability review "review this change" --wait

    Parameters
    ----------
    agent
        The agent that is to do it; omit it with --capability.
    description
        The work, in words.
    capability
        Choose an agent that has this capability. Repeat the option to ask for several.
    input
        The input, as JSON; - reads it from standard input.
    input_file
        A file with the input, as JSON, of up to 64 MiB; - is standard input.
    from_
        The agent that asks for it.
    wait
        Wait for the end of the task.
    timeout
        Maximum seconds to wait.
    task_type
        A name for this kind of task, which every gateway can see.
    ttl
        Seconds after which a task that nobody accepted has failed. Default: a day.
    idempotency_key
        A task that is repeated with the same key is created only once.
    """
    if capability and description is None:
        agent, description = None, agent
    if description is None or (agent is None) == (not capability):
        raise usage_problem("give an agent and a description, or --capability and a description")
    body: dict[str, Any] = {"description": description, "from_agent": from_, "task_type": task_type}
    body |= {"agent_name": agent} if agent else {"required_capabilities": capability}
    body |= _given_fields(ttl_secs=ttl, idempotency_key=idempotency_key)
    with options.find_gateway() as gateway:
        body |= _encode_input(gateway, input, input_file, options)
        task = _post_task(gateway, body)
        if wait:
            return _finish(gateway, task, timeout, options)
    output.print_result(options, task, lambda: output.print_line(f"{task.id} {task.status}"))
    return ExitCode.OK


def _given_fields(**options: object) -> dict[str, Any]:
    """An option that was not given is left out of the request."""
    return {name: value for name, value in options.items() if value is not None}


def _post_task(gateway: CliGateway, body: dict[str, Any]) -> TaskView:
    """The id is chosen here, so that a repeated request creates no second task."""
    request = body | {"task_id": new_event_id(SystemClock())}
    (task,) = gateway.post(TASKS_PATH, request, CliTaskList).tasks
    return task


def _encode_input(
    gateway: CliGateway, text: str | None, file: Path | None, options: GatewayOptions
) -> dict[str, Any]:
    if text is not None and file is not None:
        raise usage_problem("give --input or --input-file, not both")
    if file is not None:
        return {"input_ref": upload_file(gateway, file, options)}
    if text is None:
        return {}
    encoded = encode_payload_argument(text, is_json=True)
    if len(encoded) > MAX_INLINE_BYTES:
        return {"input_ref": upload_payload(gateway, encoded, options)}
    return {"input": Raw(encoded)}


def list_tasks(
    *,
    status: StatusOption | None = None,
    agent: AgentName | None = None,
    limit: Annotated[int, Parameter(validator=Number(gte=1, lte=1000))] = 50,
    after: str | None = None,
    options: GatewayOptions = DEFAULT_OPTIONS,
) -> None:
    """List tasks that were requested or are executed here, newest first.

    For example:

      gatepost task list
      gatepost task list --status running --agent code-reviewer

    Parameters
    ----------
    status
        Only tasks in this state.
    agent
        Only tasks of this agent.
    limit
        Maximum number of tasks.
    after
        Start after this task.
    """
    with options.find_gateway() as gateway:
        found = gateway.get(
            TASKS_PATH, CliTaskList, status=status, agent=agent, limit=limit, after=after
        )
    output.print_result(options, found, lambda: _print_list(found.tasks))


def _print_list(found: Sequence[TaskView]) -> None:
    if not found:
        output.print_line("no matching tasks")
        return
    rows = [
        (
            task.id,
            task.agent_name,
            _status_text(task),
            "" if task.progress is None else f"{task.progress:.0%}",
            output.format_ago(task.created_at),
            task.description[:60],
        )
        for task in found
    ]
    output.print_table(_COLUMNS, rows)


def show_task(task_id: str, /, *, options: GatewayOptions = DEFAULT_OPTIONS) -> None:
    """Show one task with its input and result.

    For example:

      gatepost task show ID

    Parameters
    ----------
    task_id
        The id of the task; `gatepost task list` shows all.
    """
    with options.find_gateway() as gateway:
        task = _load_task(gateway, task_id)
        load_result(gateway, task)
    output.print_result(options, task, lambda: _print_task(task))


def show_log(
    task_id: str,
    /,
    *,
    follow: Annotated[Flag, Parameter(name=("--follow", "-f"))] = False,
    tail: Annotated[int | None, Parameter(validator=Number(gte=0))] = None,
    options: GatewayOptions = DEFAULT_OPTIONS,
) -> None:
    """Print the output of a task's session.

    For example:

      gatepost task logs ID
      gatepost task logs ID -f

    Parameters
    ----------
    task_id
        The id of the task.
    follow
        Go on until the session ends.
    tail
        Begin this many bytes before the end.
    """
    path = f"{TASKS_PATH}/{quote_segment(task_id)}/log"
    offset = 0 if tail is None else -max(1, tail)
    with options.find_gateway() as gateway:
        while True:
            wait = _POLL_SECS if follow else 0.0
            piece = gateway.get(path, CliTaskLog, wait=wait, offset=offset, wait_secs=wait)
            sys.stdout.write(output.escape_control_chars(piece.text))
            sys.stdout.flush()
            offset = piece.end
            if piece.is_complete or (not follow and not piece.text):
                return


def cancel_task(
    task_id: str, /, *, reason: str = "", options: GatewayOptions = DEFAULT_OPTIONS
) -> None:
    """Cancel a task; its session is ended.

    If another gateway executes the task, that one decides.

    For example:

      gatepost task cancel ID --reason "no longer needed"

    Parameters
    ----------
    task_id
        The id of the task.
    reason
        Why, for the other side.
    """
    path = f"{TASKS_PATH}/{quote_segment(task_id)}/cancel"
    with options.find_gateway() as gateway:
        task = gateway.post(path, {"reason": reason}, TaskView)
    text = f"{task.id} {task.status}"
    if task.status not in ("cancelled", "completed", "failed"):
        text = f"{task.id} {task.executor_node} was asked to cancel it"
    output.print_result(options, task, lambda: output.print_line(text))


def await_task(
    task_id: str, /, *, timeout: float = 3600.0, options: GatewayOptions = DEFAULT_OPTIONS
) -> int:
    """Wait for the end of a task, and print its result.

    For example:

      gatepost task await ID --timeout 60

    Parameters
    ----------
    task_id
        The id of the task.
    timeout
        Maximum seconds to wait.
    """
    with options.find_gateway() as gateway:
        return _finish(gateway, _load_task(gateway, task_id), timeout, options)


# -- waiting


def _finish(gateway: CliGateway, task: TaskView, timeout: float, options: GatewayOptions) -> int:
    task = wait_for_end(gateway, task, time.monotonic() + timeout, options)
    load_result(gateway, task)
    output.print_result(options, task, lambda: _print_end(task))
    if not task.has_ended:
        raise CommandProblem(
            "deadline_exceeded",
            f"the task has not ended after {timeout:g} s: `gatepost task await {task.id}`",
        )
    return ExitCode.OK if task.state == "completed" else ExitCode.FAILED


def wait_for_end(
    gateway: CliGateway, task: TaskView, deadline: float, options: GatewayOptions
) -> TaskView:
    """Wait for the end of a task and show its progress, also while the gateway restarts."""
    path = f"{TASKS_PATH}/{task.id}"
    with TaskProgress(task, options) as progress:
        while not task.has_ended and (left := deadline - time.monotonic()) > 0:
            wait = min(left, _POLL_SECS)
            try:
                known = task.updated_at
                task = gateway.get(path, TaskView, wait=wait, wait_secs=wait, known=known)
            except CommandProblem as problem:
                if problem.exit is not ExitCode.UNREACHABLE:
                    raise
                time.sleep(min(left, 0.5))
            progress.show(task)
    return task


def load_result(gateway: CliGateway, task: TaskView) -> None:
    """Fetch a result that is stored as a blob."""
    if task.result_ref is not None:
        with gateway.download(f"/v1/blobs/{task.result_ref}") as pieces:
            task.result = Raw(b"".join(pieces))


def _load_task(gateway: CliGateway, task_id: str) -> TaskView:
    return gateway.get(f"{TASKS_PATH}/{quote_segment(task_id)}", TaskView)


# -- printing


def _status_text(task: TaskView) -> str:
    return f"{task.status} ({task.error_code})" if task.error_code else task.status


def _print_end(task: TaskView) -> None:
    if task.state == "completed":
        output.print_line(output.payload_text(task.result))
        return
    why = f": {task.error}" if task.error else ""
    output.print_line(f"{task.id} {_status_text(task)}{why}")


def _print_task(task: TaskView) -> None:
    output.print_line(f"{task.id} for {task.agent_name}, {_status_text(task)}", "bold")
    facts = {
        "description": task.description,
        "requested by": task.requester,
        "executed at": task.executor_node,
        "requested at": task.requester_node,
        "capability": task.capability_id,
        "created": output.format_ago(task.created_at),
        "ETA": None if task.eta_at is None else output.format_time(task.eta_at),
        "attempt": task.attempt if task.attempt > 1 else None,
        "progress": None if task.progress is None else f"{task.progress:.0%}",
        "note": task.note,
        "session": task.session_name and f"{task.session_name}, {task.session_state}",
        "error": task.error,
        "input": None if isinstance(task.input, UnsetType) else output.payload_text(task.input),
    }
    for name, value in facts.items():
        if value:
            output.print_line(f"  {name}: {value}")
    if task.state == "completed":
        output.print_line(output.payload_text(task.result))
