"""`gatepost task`: creates, lists, shows, follows, cancels and awaits tasks."""

import math
import sys
import time
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number
from msgspec import UNSET, Raw, UnsetType

from gatepost.cli import output
from gatepost.cli.gateway_api import CliGateway, quote_segment
from gatepost.cli.options import DEFAULT_OPTIONS, AgentName, Flag, GatewayOptions
from gatepost.cli.payload import MAX_INLINE_BYTES, encode_payload_argument
from gatepost.cli.payload_upload import upload_file, upload_payload
from gatepost.cli.problems import CommandProblem, ExitCode, usage_problem
from gatepost.cli.task_progress import TaskProgress
from gatepost.cli.watched_view import WatchOption, show_watched
from gatepost.clock import SystemClock
from gatepost.events import check_agent_id, new_event_id
from gatepost.wire.hub_views import HubSessions, LogView, SessionView, TaskList
from gatepost.wire.tasks import (
    NewTask,
    TaskAwait,
    TaskAwaited,
    TaskCancel,
    TaskCreate,
    TasksCreated,
    TaskView,
)
from gatepost.wire.view_texts import describe_task_status

TASKS_PATH = "/api/hub/tasks"
DEFAULT_SENDER = "cli"
_COLUMNS = ("Task", "Agent", "Status", "Progress", "Created", "Description")
_POLL_SECS = 30.0
# How often followers read the state of a session, which can change without output.
_SESSION_SECS = 2.0

# A task that an external agent executes has no log, and logs go through no relay.
_NO_LOG = ("not_found", "unavailable")

SESSIONS_PATH = "/api/hub/sessions"
_SESSION_COLUMNS = ("Session", "Task", "Agent", "Backend", "State", "Exit", "Created")
SessionStateOption = Literal[
    "provisioning", "configuring", "starting", "running", "monitoring", "recycling", "recycled"
]
StatusOption = Literal["pending", "accepted", "running", "completed", "failed", "cancelled"]


def create_task(
    agent: AgentName | None = None,
    description: str | None = None,
    /,
    *,
    capability: Annotated[list[str] | None, Parameter(negative=())] = None,
    input: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    input_file: Annotated[Path | None, Parameter(allow_leading_hyphen=True)] = None,
    from_: str | None = None,
    wait: Flag = False,
    timeout: float = 3600.0,
    task_type: str = "",
    ttl: Annotated[float | None, Parameter(validator=Number(gt=0))] = None,
    idempotency_key: str | None = None,
    may_wait: Flag = False,
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
        The agent that asks for it. Default: the agent of the session, else cli.
    wait
        Wait for the end of the task.
    timeout
        Maximum seconds to wait.
    task_type
        A name for this kind of task, which every gateway can see.
    ttl
        Seconds after which a task fails if no agent has accepted it. Default: a day.
    idempotency_key
        A task that is repeated with the same key is created only once.
    may_wait
        With --capability: take the task although the executor's gateway is offline.
    """
    if capability and description is None:
        agent, description = None, agent
    if description is None or (agent is None) == (not capability):
        raise usage_problem("give an agent and a description, or --capability and a description")
    new = NewTask(
        from_ or DEFAULT_SENDER,
        description,
        [check_agent_id(agent)] if agent else UNSET,
        capability or UNSET,
        # The id is chosen here, so that a repeated request creates no second task.
        task_id=new_event_id(SystemClock()),
        idempotency_key=UNSET if idempotency_key is None else idempotency_key,
        task_type=task_type,
        ttl_secs=UNSET if ttl is None else ttl,
        may_wait=may_wait,
    )
    with options.find_gateway() as gateway:
        new.from_agent = from_ or gateway.agent or DEFAULT_SENDER
        _attach_input(gateway, new, input, input_file, options)
        task = _create_task(gateway, new)
        if wait:
            return _finish(gateway, task, timeout, options)
    output.print_result(options, task, lambda: output.print_line(f"{task.id} {task.status}"))
    return ExitCode.OK


def _create_task(gateway: CliGateway, new: NewTask) -> TaskView:
    advice = f"the task may exist already: `gatepost task show {new.task_id}`"
    with output.explain_interrupt(advice):
        if gateway.agent is None:
            # The policy asks whether the operator may do this, not the agent that is named.
            (task,) = gateway.post(TASKS_PATH, new, TaskList).tasks
            return task
        (made,) = gateway.perform(TaskCreate(tasks=[new]), TasksCreated).results
    if made.code:
        raise CommandProblem(made.code, made.error)
    return made.tasks[0]


def _attach_input(
    gateway: CliGateway, new: NewTask, text: str | None, file: Path | None, options: GatewayOptions
) -> None:
    if text is not None and file is not None:
        raise usage_problem("give --input or --input-file, not both")
    if file is not None:
        new.input_ref = upload_file(gateway, file, options)
    elif text is not None:
        encoded = encode_payload_argument(text, is_json=True)
        if len(encoded) > MAX_INLINE_BYTES:
            new.input_ref = upload_payload(gateway, encoded, options)
        else:
            new.input = Raw(encoded)


def list_tasks(
    *,
    status: StatusOption | None = None,
    agent: AgentName | None = None,
    limit: Annotated[int, Parameter(validator=Number(gte=1, lte=1000))] = 50,
    after: str | None = None,
    watch: WatchOption = False,
    options: GatewayOptions = DEFAULT_OPTIONS,
) -> None:
    """List tasks that were requested or are executed here, newest first.

    For example:

      gatepost task list
      gatepost task list --status running --agent code-reviewer
      gatepost task list --watch

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

    def show(gateway: CliGateway) -> None:
        found = gateway.get(
            TASKS_PATH, TaskList, status=status, agent=agent, limit=limit, after=after
        )
        output.print_result(options, found, lambda: _print_list(found.tasks))

    if watch:
        show_watched(options, {"tasks"}, show)
    with options.find_gateway() as gateway:
        show(gateway)


def _print_list(found: Sequence[TaskView]) -> None:
    if not found:
        output.print_line("no matching tasks")
        return
    rows = [
        (
            task.id,
            task.agent_name,
            describe_task_status(task),
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

    With --follow, changes of the session's state are told on standard error, so the end
    of a cancelled task can be watched too.

    For example:

      gatepost task logs ID
      gatepost task logs ID -f

    Parameters
    ----------
    task_id
        The id of the task.
    follow
        Continue until the session ends.
    tail
        Begin this many bytes before the end.
    """
    offset = 0 if tail is None else -max(1, tail)
    with options.find_gateway() as gateway:
        for piece in _read_log(gateway, task_id, offset, _SESSION_SECS if follow else 0.0):
            sys.stdout.write(output.escape_control_chars(piece.text))
            sys.stdout.flush()
            if not follow and not piece.text:
                return


def _read_log(
    gateway: CliGateway, task_id: str, offset: int, longest: float, deadline: float = math.inf
) -> Generator[LogView, None, None]:
    """The pieces of a log up to its end; changes of the session's state are told meanwhile.

    Each request waits for output at most `longest` seconds, and none beyond the deadline.
    """
    path = f"{TASKS_PATH}/{quote_segment(task_id)}/log"
    state: str | None = None
    while True:
        wait = max(0.0, min(longest, deadline - time.monotonic()))
        piece = gateway.get(path, LogView, wait=wait, offset=offset, wait_secs=wait)
        if piece.session_state != state:
            if state is not None:
                output.print_warning(f"the session is {piece.session_state}")
            state = piece.session_state
        yield piece
        if piece.is_complete:
            return
        offset = piece.end


def list_sessions(
    *,
    state: SessionStateOption | None = None,
    limit: Annotated[int, Parameter(validator=Number(gte=1, lte=1000))] = 50,
    options: GatewayOptions = DEFAULT_OPTIONS,
) -> None:
    """List the sessions of tasks that this gateway executes, newest first.

    For example:

      gatepost task sessions
      gatepost task sessions --state running

    Parameters
    ----------
    state
        Only sessions in this state.
    limit
        Maximum number of sessions.
    """
    with options.find_gateway() as gateway:
        found = gateway.get(SESSIONS_PATH, HubSessions, state=state, limit=limit)
    output.print_result(options, found, lambda: _print_sessions(found.sessions))


def _print_sessions(found: Sequence[SessionView]) -> None:
    if not found:
        output.print_line("no matching sessions")
        return
    rows = [
        (
            each.session_name,
            each.task_id,
            each.agent_name,
            each.backend,
            each.state,
            "" if each.exit_code is None else each.exit_code,
            output.format_ago(each.created_at),
        )
        for each in found
    ]
    output.print_table(_SESSION_COLUMNS, rows)


def cancel_task(
    task_id: str,
    /,
    *,
    reason: str = "",
    wait: Flag = False,
    timeout: float = 60.0,
    options: GatewayOptions = DEFAULT_OPTIONS,
) -> int:
    """Cancel a task; its session is ended.

    If another gateway executes the task, that gateway decides. With --wait, the states of the
    session are told on standard error until it has ended, and the exit status is 0 only if the task
    is cancelled then.

    For example:

      gatepost task cancel ID --reason "no longer needed"
      gatepost task cancel ID --wait

    Parameters
    ----------
    task_id
        The id of the task.
    reason
        The reason, for the other side.
    wait
        Wait until the task and its session have ended.
    timeout
        Maximum seconds to wait.
    """
    with options.find_gateway() as gateway:
        task = _cancel_task(gateway, task_id, reason)
        if wait:
            return _finish_cancellation(gateway, task, timeout, options)
    text = f"{task.id} {task.status}"
    if task.status not in ("cancelled", "completed", "failed"):
        text = f"{task.id} {task.executor_node} was asked to cancel it"
    output.print_result(options, task, lambda: output.print_line(text))
    return ExitCode.OK


def _cancel_task(gateway: CliGateway, task_id: str, reason: str) -> TaskView:
    if gateway.agent is None:
        path = f"{TASKS_PATH}/{quote_segment(task_id)}/cancel"
        return gateway.post(path, {"reason": reason}, TaskView)
    return gateway.perform(TaskCancel(task_id=task_id, reason=reason), TaskAwaited).task


def _finish_cancellation(
    gateway: CliGateway, task: TaskView, timeout: float, options: GatewayOptions
) -> int:
    deadline = time.monotonic() + timeout
    advice = f"the cancellation goes on: `gatepost task show {task.id}` says how far it is"
    with output.explain_interrupt(advice):
        is_over = gateway.agent is not None or _wait_for_session(gateway, task.id, deadline)
        task = wait_for_end(gateway, task, deadline, options)
    if not (is_over and task.has_ended):
        problem = f"it has not ended after {timeout:g} s: `gatepost task show {task.id}`"
        raise CommandProblem("deadline_exceeded", problem)
    if task.state != "cancelled":
        output.print_result(options, task, lambda: _print_end(task))
        return ExitCode.FAILED
    output.print_result(options, task, lambda: output.print_line(f"{task.id} cancelled"))
    return ExitCode.OK


def _wait_for_session(gateway: CliGateway, task_id: str, deadline: float) -> bool:
    """Wait for the end of a task's session, if it has one whose log can be read here."""
    try:
        for piece in _read_log(gateway, task_id, -1, _SESSION_SECS, deadline):
            if not piece.is_complete and time.monotonic() >= deadline:
                return False
    except CommandProblem as problem:
        if problem.code not in _NO_LOG:
            raise
    return True


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
    advice = f"the task goes on: `gatepost task await {task.id}` waits for its end"
    with output.explain_interrupt(advice):
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
    with TaskProgress(task, options) as progress:
        while not task.has_ended and (left := deadline - time.monotonic()) > 0:
            wait = min(left, _POLL_SECS)
            try:
                known = task.updated_at
                task = _load_task(gateway, task.id, wait, known)
            except CommandProblem as problem:
                if problem.exit is not ExitCode.UNREACHABLE:
                    raise
                time.sleep(min(left, 0.5))
            progress.show(task)
    return task


def load_result(gateway: CliGateway, task: TaskView) -> None:
    """Fetch a result that is stored as a blob."""
    if task.result_ref is not None:
        with gateway.download(task.result_ref) as pieces:
            task.result = Raw(b"".join(pieces))


def _load_task(gateway: CliGateway, task_id: str, wait: float = 0.0, known: int = 0) -> TaskView:
    """A task, once it has ended or changed after `known`, or when the wait ends."""
    if gateway.agent is None:
        path = f"{TASKS_PATH}/{quote_segment(task_id)}"
        return gateway.get(path, TaskView, wait=wait, wait_secs=wait, known=known)
    op = TaskAwait(task_id=task_id, wait_secs=wait, known=known)
    return gateway.perform(op, TaskAwaited, wait).task


# -- printing


def _print_end(task: TaskView) -> None:
    if task.state == "completed":
        output.print_line(output.payload_text(task.result))
        return
    why = f": {task.error}" if task.error else ""
    output.print_line(f"{task.id} {describe_task_status(task)}{why}")


def _print_task(task: TaskView) -> None:
    output.print_line(f"{task.id} for {task.agent_name}, {describe_task_status(task)}", "bold")
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
        "amended": None if task.amended_at is None else output.format_time(task.amended_at),
        "presumed": task.is_presumed and f"{task.executor_node} has not said how it ended",
        "input": None if isinstance(task.input, UnsetType) else output.payload_text(task.input),
    }
    for name, value in facts.items():
        if value:
            output.print_line(f"  {name}: {value}")
    if task.state == "completed":
        output.print_line(output.payload_text(task.result))
