"""`gatepost send`: sends a message to one agent, several, or all."""

import time
from pathlib import Path
from typing import Annotated, TypeVar

from cyclopts import Parameter
from cyclopts.validators import Number
from msgspec import UNSET, Raw, UnsetType

from gatepost.cli import output
from gatepost.cli.gateway_api import CliGateway
from gatepost.cli.message_outcome import (
    DEFAULT_WAIT_SECS,
    check_outcome,
    load_replies,
    print_sent,
    wait_until_reached,
)
from gatepost.cli.moments import parse_moment
from gatepost.cli.options import DEFAULT_OPTIONS, AgentName, Flag, GatewayOptions
from gatepost.cli.payload import MAX_INLINE_BYTES, PayloadText, encode_payload_argument
from gatepost.cli.payload_upload import upload_file, upload_payload
from gatepost.cli.problems import LOST_ANSWER_CODE, CommandProblem, ExitCode, usage_problem
from gatepost.clock import SystemClock
from gatepost.events import Order, check_agent_id, new_event_id
from gatepost.wire.operations import NewSend, Send, SendResults, Sent, WaitGoal

T = TypeVar("T")

DEFAULT_SENDER = "cli"


def send_message(
    to: AgentName | None = None,
    payload: PayloadText = None,
    /,
    *,
    more: Annotated[list[str] | None, Parameter(name="--to", negative=())] = None,
    broadcast: Flag = False,
    from_: str | None = None,
    wait: WaitGoal | None = None,
    timeout: float = DEFAULT_WAIT_SECS,
    json_payload: Flag = False,
    idempotency_key: str | None = None,
    not_before: str | None = None,
    order: Order | None = None,
    max_retries: Annotated[int | None, Parameter(validator=Number(gte=0, lte=1000))] = None,
    ttl: Annotated[float | None, Parameter(validator=Number(gt=0))] = None,
    subject: str | None = None,
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
      gatepost send worker "job 17" --order none --not-before +15m
      gatepost send bob "see attached" --subject "review of change 17"

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
        The sending agent. Default: the agent of the session, else cli.
    wait
        Wait until the agent's gateway has accepted the message, or until its turn has ended.
        Default: return once this gateway has the message on disk.
    timeout
        Maximum seconds to wait.
    json_payload
        The payload is JSON, not text.
    idempotency_key
        A message that is repeated with the same key is sent only once.
    not_before
        The turn begins no earlier: a time like 2030-01-31T08:00, or +90s, +15m, +2h, +1d from
        now. Later ordered messages to the same agent wait for it.
    order
        none: the message waits for no other, and several workers share such messages. Default:
        as the agent's mailbox, which is fifo unless it was set otherwise.
    max_retries
        How often a failed turn is retried. Default: as the agent's mailbox.
    ttl
        Seconds after which the message expires. Default: a day, from the time it is due.
    subject
        What the message is about, for people who see it in a list. It is not encrypted.
    file
        Send this file's bytes (up to 64 MiB) instead of a payload; - is standard input.
    """
    if more or broadcast:
        to, payload = _shift_arguments(to, payload, file)
    if (payload is None) == (file is None):
        raise usage_problem("give a payload, - for standard input, or --file PATH")
    message = NewSend(
        from_agent=check_agent_id(from_ or DEFAULT_SENDER),
        event_id=new_event_id(SystemClock()),
        idempotency_key=_unless_none(idempotency_key),
        not_before=UNSET if not_before is None else parse_moment(not_before, time.time()),
        order=_unless_none(order),
        max_retries=_unless_none(max_retries),
        ttl_secs=_unless_none(ttl),
        subject=_unless_none(subject),
        replies="caller" if wait == "processed" else "mailbox",
    )
    _set_receivers(message, [*([to] if to else []), *(more or [])], broadcast)
    with options.find_gateway() as gateway:
        message.from_agent = from_ or gateway.agent or DEFAULT_SENDER
        if file is None:
            encoded = encode_payload_argument(payload or "", is_json=json_payload)
            _attach_payload(gateway, message, encoded, options)
        else:
            message.payload_ref = upload_file(gateway, file, options)
        sent = _send_and_wait(gateway, message, wait, timeout)
    output.print_result(options, sent, lambda: print_sent(sent))
    for copy in sent.copies or [sent]:
        check_outcome(copy, wait, timeout)
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
    else:
        message.payload_ref = upload_payload(gateway, payload, options)


def _unless_none(value: T | None) -> T | UnsetType:
    """An option that was not given is left out of the request."""
    return UNSET if value is None else value


def _send_and_wait(
    gateway: CliGateway, message: NewSend, wait: WaitGoal | None, timeout: float
) -> Sent:
    sent = _post_message(gateway, message)
    if wait is not None:
        sent = wait_until_reached(gateway, sent, wait, time.monotonic() + timeout)
    load_replies(gateway, sent)
    return sent


def _post_message(gateway: CliGateway, message: NewSend) -> Sent:
    """Post the message. Its id was chosen here, so it can be traced if the answer is lost."""
    advice = f"check with `gatepost trace {message.event_id}`"
    try:
        with output.explain_interrupt(f"the message may be sent: {advice}"):
            (sent,) = gateway.perform(Send(messages=[message]), SendResults).results
    except CommandProblem as problem:
        if problem.code != LOST_ANSWER_CODE:
            raise
        raise CommandProblem(problem.code, f"{problem.message}: {advice}", problem.exit) from None
    if sent.error is not None:
        raise CommandProblem(sent.error.code, sent.error.message)
    return sent
