"""`gatepost send`: sends a message to one agent, several, or all."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, BinaryIO

from cyclopts import Parameter
from msgspec import UNSET, Raw, UnsetType

from gatepost.cli import output
from gatepost.cli.gateway_api import CliGateway, quote_segment
from gatepost.cli.options import DEFAULT_OPTIONS, AgentName, Flag, GatewayOptions
from gatepost.cli.payload import MAX_INLINE_BYTES, PayloadText, encode_payload_argument
from gatepost.cli.problems import LOST_ANSWER_CODE, CommandProblem, ExitCode, usage_problem
from gatepost.cli.progress_bar import ProgressBar
from gatepost.clock import SystemClock
from gatepost.events import check_agent_id, new_event_id
from gatepost.wire import NewSend, Sent, StoredBlob, WaitGoal

_PIECE_BYTES = 256 * 1024
_POLL_SECS = 30.0


def send_message(
    to: AgentName | None = None,
    payload: PayloadText = None,
    /,
    *,
    more: Annotated[list[str] | None, Parameter(name="--to", negative=())] = None,
    broadcast: Flag = False,
    from_: str = "cli",
    wait: WaitGoal | None = None,
    timeout: float = 30.0,
    json_payload: Flag = False,
    idempotency_key: str | None = None,
    file: Annotated[Path | None, Parameter(allow_leading_hyphen=True)] = None,
    options: GatewayOptions = DEFAULT_OPTIONS,
) -> int:
    """Send a message to an agent.

    Prints the message's id and state, and the reply if there is one. With --wait
    it exits with 0 only if the message was accepted or processed in time.

    For example:

      gatepost send bob "hello"
      gatepost send bob '{"n": 1}' --json-payload --wait processed --timeout 60
      git diff | gatepost send reviewer -
      gatepost send bob --file photo.jpg
      gatepost send --to bob --to carol "both of you"
      gatepost send --broadcast "all of you" --wait accepted

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
        to, payload = _shift_arguments(to, payload, file)
    if (payload is None) == (file is None):
        raise usage_problem("give a payload, - for standard input, or --file PATH")
    message = NewSend(
        from_agent=check_agent_id(from_),
        event_id=new_event_id(SystemClock()),
        idempotency_key=UNSET if idempotency_key is None else idempotency_key,
        replies="caller" if wait == "processed" else "mailbox",
    )
    _set_receivers(message, [*([to] if to else []), *(more or [])], broadcast)
    with options.find_gateway() as gateway:
        if file is None:
            _attach_payload(
                gateway,
                message,
                encode_payload_argument(payload or "", is_json=json_payload),
                options,
            )
        else:
            message.payload_ref = _upload_file(gateway, file, options)
        sent = _post_message(gateway, message)
        if wait is not None:
            sent = _wait_until_reached(gateway, sent, wait, time.monotonic() + timeout)
    output.print_result(options, sent, lambda: _print_sent(sent))
    for copy in sent.copies or [sent]:
        _check_outcome(copy, wait, timeout)
    return ExitCode.OK


def _shift_arguments(
    first: str | None, second: str | None, file: Path | None
) -> tuple[str | None, str | None]:
    """If options name the agents, the only positional argument is the payload."""
    if second is None and file is None:
        return None, first
    return first, second


def _set_receivers(message: NewSend, to: list[str], broadcast: bool) -> None:
    if broadcast:
        if to:
            raise usage_problem("--broadcast sends to all agents: name no agent")
        message.to_agents = "*"
    elif len(to) > 1:
        message.to_agents = [check_agent_id(agent) for agent in to]
    elif to:
        message.to_agent = check_agent_id(to[0])
    else:
        raise usage_problem("name an agent, several with --to, or send to all with --broadcast")


def _attach_payload(
    gateway: CliGateway, message: NewSend, payload: bytes, options: GatewayOptions
) -> None:
    """Put a small payload inline; upload a large one as a blob."""
    if len(payload) <= MAX_INLINE_BYTES:
        message.payload = Raw(payload)
        return
    pieces = (payload[n : n + _PIECE_BYTES] for n in range(0, len(payload), _PIECE_BYTES))
    with ProgressBar("uploading", len(payload), options, unit="bytes") as progress:
        message.payload_ref = _upload_pieces(gateway, progress.count_pieces(pieces), len(payload))


def _upload_file(gateway: CliGateway, path: Path, options: GatewayOptions) -> str:
    try:
        with _open_file(path) as file:
            length = path.stat().st_size if path.is_file() else None
            with ProgressBar(f"uploading {path.name}", length, options, unit="bytes") as progress:
                return _upload_pieces(gateway, progress.count_pieces(_read_pieces(file)), length)
    except OSError as error:
        raise usage_problem(f"{path} cannot be read: {error.strerror or error}") from None


def _open_file(path: Path) -> BinaryIO:
    return sys.stdin.buffer if str(path) == "-" else path.open("rb")


def _read_pieces(file: BinaryIO) -> Iterator[bytes]:
    while piece := file.read(_PIECE_BYTES):
        yield piece


def _upload_pieces(gateway: CliGateway, pieces: Iterator[bytes], length: int | None) -> str:
    return gateway.upload("/v1/blobs", pieces, length, StoredBlob).digest


def _post_message(gateway: CliGateway, message: NewSend) -> Sent:
    """Post the message. Its id was chosen here, so it can be traced if the answer is lost."""
    try:
        return gateway.post("/v1/messages", message, Sent)
    except CommandProblem as problem:
        if problem.code != LOST_ANSWER_CODE:
            raise
        advice = f"check with `gatepost trace {message.event_id}`"
        raise CommandProblem(problem.code, f"{problem.message}: {advice}", problem.exit) from None


def _wait_until_reached(gateway: CliGateway, sent: Sent, goal: WaitGoal, deadline: float) -> Sent:
    """Wait for the goal until the deadline, also while the gateway restarts."""
    if sent.copies:
        sent.copies = [_wait_until_reached(gateway, copy, goal, deadline) for copy in sent.copies]
        return sent
    to_agent, path = sent.to_agent, f"/v1/messages/{quote_segment(sent.event_id)}"
    while not sent.has_reached(goal) and (left := deadline - time.monotonic()) > 0:
        wait = min(left, _POLL_SECS)
        try:
            sent = gateway.get(path, Sent, wait=wait, wait_secs=wait, until=goal)
        except CommandProblem as problem:
            if problem.exit is not ExitCode.UNREACHABLE:
                raise
            time.sleep(min(left, 0.5))
    sent.to_agent = to_agent
    return sent


def _print_sent(sent: Sent) -> None:
    for copy in sent.copies:
        _print_sent(copy)
    if sent.copies:
        return
    receiver = f" {sent.to_agent}" if sent.to_agent else ""
    state = f"not sent: {sent.error.message}" if sent.error else describe_sent(sent)
    output.print_line(f"{sent.event_id}{receiver} {state}")
    if not isinstance(sent.reply, UnsetType):
        output.print_line(output.payload_text(sent.reply))


def describe_sent(sent: Sent) -> str:
    """The state of a message and its outcome; the time counts from the send."""
    if sent.processed_at is None:
        return f"{sent.state} ({sent.reason})" if sent.reason else sent.state
    took = "" if sent.sent_at is None else _duration_text(sent.sent_at, sent.processed_at)
    reason = f": {sent.reason}" if sent.reason else ""
    return f"{sent.state} {sent.outcome}{took}{reason}"


def _duration_text(start: int, end: int) -> str:
    return f" after {output.format_duration(max(0, end - start) / 1000)}"


def _check_outcome(sent: Sent, wait: WaitGoal | None, timeout: float) -> None:
    if sent.error is not None:
        raise CommandProblem(sent.error.code, f"not sent to {sent.to_agent}: {sent.error.message}")
    given_up = sent.processed_at is not None and sent.accepted_at is None
    accepted = wait == "accepted" and sent.accepted_at is not None
    if sent.outcome == "ok" or accepted or (wait is None and not given_up):
        return
    if sent.processed_at is None:
        raise CommandProblem(
            "deadline_exceeded",
            f"not {wait} within {output.format_duration(timeout)}; the gateway keeps trying, see"
            f" `gatepost trace {sent.event_id}`",
        )
    raise CommandProblem(
        f"outcome_{sent.outcome}",
        f"the turn ended with {sent.outcome}: {sent.reason or 'no reason given'}",
    )
