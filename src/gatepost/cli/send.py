"""`gatepost send`: one message to one agent."""

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
from gatepost.wire import NewSend, Sent, Stored

Goal = Literal["accepted", "processed"]

_PIECE = 256 * 1024
_POLL_SECS = 30.0


def send(
    to: AgentName,
    payload: PayloadText = None,
    /,
    *,
    from_: str = "cli",
    wait: Goal = "accepted",
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
        The agent it is for.
    payload
        The text to send; - reads it from standard input.
    from_
        The agent it is from.
    wait
        What to wait for: that the gateway has it safely, or that the agent's turn has ended.
    timeout
        Seconds to wait for `processed`.
    json_payload
        The payload is JSON, not text.
    idempotency_key
        Sending the same message again with the same key sends it only once.
    file
        Send this file's bytes (up to 64 MiB) instead of a payload; - is standard input.
    """
    if (payload is None) == (file is None):
        raise usage("name what to send: either a payload, - for standard input, or --file PATH")
    message = NewSend(
        from_agent=check_agent_id(from_),
        to_agent=check_agent_id(to),
        event_id=new_event_id(SystemClock()),
        idempotency_key=UNSET if idempotency_key is None else idempotency_key,
        replies="caller" if wait == "processed" else "mailbox",
    )
    with options.gateway() as gateway:
        if file is None:
            _fill(gateway, message, json_payload_of(payload or "", is_json=json_payload), options)
        else:
            message.payload_ref = _upload_file(gateway, file, options)
        sent = _post(gateway, message)
        if wait == "processed":
            sent = _settled(gateway, sent, time.monotonic() + timeout)
    output.show(options, sent, lambda: _print(sent))
    _check(sent, wait, timeout)
    return Exit.OK


def _fill(gateway: Gateway, message: NewSend, payload: bytes, options: Options) -> None:
    """Inline if it is small, else as a blob, so that no request grows too large."""
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
    return gateway.upload("/v1/blobs", pieces, length, Stored).digest


def _post(gateway: Gateway, message: NewSend) -> Sent:
    """The id was chosen here, so that even a lost answer leaves something to ask about."""
    try:
        return gateway.post("/v1/messages", message, Sent)
    except Problem as problem:
        if problem.code != LOST_ANSWER:
            raise
        advice = f"ask with `gatepost trace {message.event_id}`"
        raise Problem(problem.code, f"{problem.message}: {advice}", problem.exit) from None


def _settled(gateway: Gateway, sent: Sent, deadline: float) -> Sent:
    """What became of it by the deadline. A gateway that is restarted meanwhile is waited for."""
    path = f"/v1/messages/{segment(sent.event_id)}"
    while sent.processed_at is None and (left := deadline - time.monotonic()) > 0:
        wait = min(left, _POLL_SECS)
        try:
            sent = gateway.get(path, Sent, wait=wait, wait_secs=wait)
        except Problem as problem:
            if problem.exit is not Exit.UNREACHABLE:
                raise
            time.sleep(min(left, 0.5))
    return sent


def _print(sent: Sent) -> None:
    output.say(f"{sent.event_id} {sent.state}{_detail(sent)}")
    if not isinstance(sent.reply, UnsetType):
        output.say(output.payload_text(sent.reply))


def _detail(sent: Sent) -> str:
    if sent.processed_at is None:
        return ""
    took = output.duration((sent.processed_at - (sent.accepted_at or sent.processed_at)) / 1000)
    return f" {sent.outcome} after {took}" + (f": {sent.reason}" if sent.reason else "")


def _check(sent: Sent, wait: Goal, timeout: float) -> None:
    if wait == "accepted" or sent.outcome == "ok":
        return
    if sent.processed_at is None:
        raise Problem(
            "deadline_exceeded",
            f"not processed within {output.duration(timeout)}; the gateway keeps it, see"
            f" `gatepost trace {sent.event_id}`",
        )
    raise Problem(
        f"outcome_{sent.outcome}",
        f"the turn ended with {sent.outcome}: {sent.reason or 'no reason given'}",
    )
