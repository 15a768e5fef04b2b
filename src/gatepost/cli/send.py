"""`gatepost send`: sends a message to one agent, several, or all."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, BinaryIO, Literal

from cyclopts import Parameter
from msgspec import UNSET, Raw, UnsetType

from gatepost.cli import output
from gatepost.cli.connect import Gateway, segment
from gatepost.cli.options import OPTIONS, AgentName, Flag, Options
from gatepost.cli.payload import LARGE, PayloadText, json_payload_of
from gatepost.cli.problems import LOST_ANSWER, Exit, Problem, usage
from gatepost.cli.progress import Progress
from gatepost.clock import SystemClock
from gatepost.events import check_agent_id, new_event_id
from gatepost.wire import NewSend, Sent, StoredBlob

Goal = Literal["accepted", "processed"]

_PIECE = 256 * 1024
_POLL_SECS = 30.0


def send(
    to: AgentName | None = None,
    payload: PayloadText = None,
    /,
    *,
    more: Annotated[list[str] | None, Parameter(name="--to", negative=())] = None,
    broadcast: Flag = False,
    from_: str = "cli",
    wait: Goal | None = None,
    timeout: float = 30.0,
    json_payload: Flag = False,
    idempotency_key: str | None = None,
    file: Annotated[Path | None, Parameter(allow_leading_hyphen=True)] = None,
    options: Options = OPTIONS,
) -> int:
    """Send a message to an agent.

    Parameters
    ----------
    to
        The receiving agent; omit it with --to or --broadcast.
    payload
        The text to send; - reads it from standard input.
    more
        A receiving agent. Repeat the option to send a copy to several agents.
    broadcast
        Send a copy to every other agent.
    from_
        The sending agent.
    wait
        Wait until the agent's gateway has accepted the message, or until its turn has ended.
        Default: return once this gateway has the message on disk.
    timeout
        Maximum seconds to wait.
    json_payload
        The payload is JSON, not text.
    idempotency_key
        A message that is repeated with the same key is sent only once.
    file
        Send this file's bytes (up to 64 MiB) instead of a payload; - is standard input.
    """
    if more or broadcast:
        to, payload = _shifted(to, payload, file)
    if (payload is None) == (file is None):
        raise usage("give a payload, - for standard input, or --file PATH")
    message = NewSend(
        from_agent=check_agent_id(from_),
        event_id=new_event_id(SystemClock()),
        idempotency_key=UNSET if idempotency_key is None else idempotency_key,
        replies="caller" if wait == "processed" else "mailbox",
    )
    _address(message, [*([to] if to else []), *(more or [])], broadcast)
    with options.gateway() as gateway:
        if file is None:
            _fill(gateway, message, json_payload_of(payload or "", is_json=json_payload), options)
        else:
            message.payload_ref = _upload_file(gateway, file, options)
        sent = _post(gateway, message)
        if wait is not None:
            sent = _reached(gateway, sent, wait, time.monotonic() + timeout)
    output.show(options, sent, lambda: _print(sent))
    for copy in sent.copies or [sent]:
        _check(copy, wait, timeout)
    return Exit.OK


def _shifted(
    first: str | None, second: str | None, file: Path | None
) -> tuple[str | None, str | None]:
    """If options name the agents, the only positional argument is the payload."""
    if second is None and file is None:
        return None, first
    return first, second


def _address(message: NewSend, to: list[str], broadcast: bool) -> None:
    if broadcast:
        if to:
            raise usage("--broadcast sends to all agents: name no agent")
        message.to_agents = "*"
    elif len(to) > 1:
        message.to_agents = [check_agent_id(agent) for agent in to]
    elif to:
        message.to_agent = check_agent_id(to[0])
    else:
        raise usage("name an agent, several with --to, or send to all with --broadcast")


def _fill(gateway: Gateway, message: NewSend, payload: bytes, options: Options) -> None:
    """Put a small payload inline; upload a large one as a blob."""
    if len(payload) <= LARGE:
        message.payload = Raw(payload)
        return
    pieces = (payload[n : n + _PIECE] for n in range(0, len(payload), _PIECE))
    with Progress("uploading", len(payload), options, unit="bytes") as progress:
        message.payload_ref = _upload(gateway, progress.over(pieces), len(payload))


def _upload_file(gateway: Gateway, path: Path, options: Options) -> str:
    try:
        with _opened(path) as file:
            length = path.stat().st_size if path.is_file() else None
            with Progress(f"uploading {path.name}", length, options, unit="bytes") as progress:
                return _upload(gateway, progress.over(_pieces(file)), length)
    except OSError as error:
        raise usage(f"{path} cannot be read: {error.strerror or error}") from None


def _opened(path: Path) -> BinaryIO:
    return sys.stdin.buffer if str(path) == "-" else path.open("rb")


def _pieces(file: BinaryIO) -> Iterator[bytes]:
    while piece := file.read(_PIECE):
        yield piece


def _upload(gateway: Gateway, pieces: Iterator[bytes], length: int | None) -> str:
    return gateway.upload("/v1/blobs", pieces, length, StoredBlob).digest


def _post(gateway: Gateway, message: NewSend) -> Sent:
    """Post the message. Its id was chosen here, so it can be traced if the answer is lost."""
    try:
        return gateway.post("/v1/messages", message, Sent)
    except Problem as problem:
        if problem.code != LOST_ANSWER:
            raise
        advice = f"check with `gatepost trace {message.event_id}`"
        raise Problem(problem.code, f"{problem.message}: {advice}", problem.exit) from None


def _reached(gateway: Gateway, sent: Sent, goal: Goal, deadline: float) -> Sent:
    """Wait for the goal until the deadline, also while the gateway restarts."""
    if sent.copies:
        sent.copies = [_reached(gateway, copy, goal, deadline) for copy in sent.copies]
        return sent
    to_agent, path = sent.to_agent, f"/v1/messages/{segment(sent.event_id)}"
    while not _is_there(sent, goal) and (left := deadline - time.monotonic()) > 0:
        wait = min(left, _POLL_SECS)
        try:
            sent = gateway.get(path, Sent, wait=wait, wait_secs=wait, until=goal)
        except Problem as problem:
            if problem.exit is not Exit.UNREACHABLE:
                raise
            time.sleep(min(left, 0.5))
    sent.to_agent = to_agent
    return sent


def _is_there(sent: Sent, goal: Goal) -> bool:
    """Whether the message has reached the goal or will make no further progress."""
    accepted = goal == "accepted" and sent.accepted_at is not None
    return accepted or sent.processed_at is not None or sent.error is not None


def _print(sent: Sent) -> None:
    for copy in sent.copies:
        _print(copy)
    if sent.copies:
        return
    receiver = f" {sent.to_agent}" if sent.to_agent else ""
    state = f"not sent: {sent.error.message}" if sent.error else f"{sent.state}{_detail(sent)}"
    output.say(f"{sent.event_id}{receiver} {state}")
    if not isinstance(sent.reply, UnsetType):
        output.say(output.payload_text(sent.reply))


def _detail(sent: Sent) -> str:
    if sent.processed_at is None:
        return ""
    took = output.duration((sent.processed_at - (sent.accepted_at or sent.processed_at)) / 1000)
    return f" {sent.outcome} after {took}" + (f": {sent.reason}" if sent.reason else "")


def _check(sent: Sent, wait: Goal | None, timeout: float) -> None:
    if sent.error is not None:
        raise Problem(sent.error.code, f"not sent to {sent.to_agent}: {sent.error.message}")
    given_up = sent.processed_at is not None and sent.accepted_at is None
    accepted = wait == "accepted" and sent.accepted_at is not None
    if sent.outcome == "ok" or accepted or (wait is None and not given_up):
        return
    if sent.processed_at is None:
        raise Problem(
            "deadline_exceeded",
            f"not {wait} within {output.duration(timeout)}; the gateway keeps trying, see"
            f" `gatepost trace {sent.event_id}`",
        )
    raise Problem(
        f"outcome_{sent.outcome}",
        f"the turn ended with {sent.outcome}: {sent.reason or 'no reason given'}",
    )
