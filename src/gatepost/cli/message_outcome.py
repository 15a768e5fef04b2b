"""The outcome of a message that was sent: waits for it, fetches its reply, and prints both."""

import time
from contextlib import suppress

import msgspec
from msgspec import Raw, UnsetType

from gatepost.cli import output
from gatepost.cli.gateway_api import CliGateway
from gatepost.cli.problems import CommandProblem, ExitCode
from gatepost.durations import format_duration
from gatepost.wire.operations import Await, Awaited, Sent, WaitGoal

# Long enough for the retries of a turn that fails: they begin 5, 15 and 35 s after the first.
DEFAULT_WAIT_SECS = 60.0
_POLL_SECS = 30.0


def wait_until_reached(gateway: CliGateway, sent: Sent, goal: WaitGoal, deadline: float) -> Sent:
    """Wait for the goal until the deadline, also while the gateway restarts."""
    if sent.copies:
        sent.copies = [wait_until_reached(gateway, copy, goal, deadline) for copy in sent.copies]
        return sent
    advice = f"the message goes on: `gatepost await {sent.event_id}` waits for its outcome"
    with output.explain_interrupt(advice):
        return _wait_for_copy(gateway, sent, goal, deadline)


def _wait_for_copy(gateway: CliGateway, sent: Sent, goal: WaitGoal, deadline: float) -> Sent:
    to_agent, id = sent.to_agent, sent.event_id
    while not sent.has_reached(goal) and (left := deadline - time.monotonic()) > 0:
        wait = min(left, _POLL_SECS)
        try:
            op = Await(event_id=id, wait_secs=wait, until=goal)
            sent = gateway.perform(op, Awaited, wait).result
        except CommandProblem as problem:
            if problem.exit is not ExitCode.UNREACHABLE:
                raise
            time.sleep(min(left, 0.5))
    sent.to_agent = to_agent
    return sent


def load_replies(gateway: CliGateway, sent: Sent) -> None:
    """Fetch replies that are stored as blobs. One that is not JSON stays where it is."""
    for copy in sent.copies or [sent]:
        if copy.reply_ref is None:
            continue
        with gateway.download(copy.reply_ref) as pieces:
            content = b"".join(pieces)
        with suppress(msgspec.DecodeError):
            copy.reply = msgspec.json.decode(content, type=Raw)


def print_sent(sent: Sent) -> None:
    for copy in sent.copies:
        print_sent(copy)
    if sent.copies:
        return
    receiver = f" {sent.to_agent}" if sent.to_agent else ""
    state = f"not sent: {sent.error.message}" if sent.error else describe_sent(sent)
    output.print_line(f"{sent.event_id}{receiver} {state}")
    if not isinstance(sent.reply, UnsetType):
        output.print_line(output.payload_text(sent.reply))
    elif sent.reply_ref is not None:
        size = output.format_size(sent.reply_size or 0)
        output.print_line(f"the reply is a file of {size}: `gatepost fetch {sent.reply_ref}`")


def describe_sent(sent: Sent) -> str:
    """The state of a message and its outcome; the time counts from the send."""
    if sent.processed_at is None:
        return f"{sent.state} ({sent.reason})" if sent.reason else sent.state
    took = "" if sent.sent_at is None else _duration_text(sent.sent_at, sent.processed_at)
    reason = f": {sent.reason}" if sent.reason else ""
    return f"{sent.state} {sent.outcome}{took}{reason}"


def _duration_text(start: int, end: int) -> str:
    return f" after {format_duration(max(0, end - start) / 1000)}"


def check_outcome(sent: Sent, wait: WaitGoal | None, timeout: float) -> None:
    if sent.error is not None:
        raise CommandProblem(sent.error.code, f"not sent to {sent.to_agent}: {sent.error.message}")
    given_up = sent.processed_at is not None and sent.accepted_at is None
    accepted = wait == "accepted" and sent.accepted_at is not None
    if sent.outcome == "ok" or accepted or (wait is None and not given_up):
        return
    if not sent.has_reached(wait or "processed"):
        raise CommandProblem(
            "deadline_exceeded",
            f"not {wait} within {format_duration(timeout)}; the gateway keeps trying, see"
            f" `gatepost trace {sent.event_id}`",
        )
    raise CommandProblem(
        f"outcome_{sent.outcome}",
        f"the turn ended with {sent.outcome}: {sent.reason or 'no reason given'}",
    )
