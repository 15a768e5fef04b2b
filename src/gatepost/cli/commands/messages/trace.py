"""`gatepost trace`: the steps of a message or a conversation at all gateways."""

from collections.abc import Mapping
from typing import Annotated

from cyclopts import Parameter

from gatepost.cli import output
from gatepost.cli.gateway_api import quote_segment
from gatepost.cli.options import DEFAULT_OPTIONS, Flag, GatewayOptions
from gatepost.durations import format_duration
from gatepost.wire.report_views import Journey, JourneyStep
from gatepost.wire.view_texts import describe_step

_FINAL_STEPS = ("processed", "heard_processed", "given_up", "refused")


def show_trace(
    ref: str,
    /,
    *,
    conversation: Annotated[
        Flag, Parameter(help="Show all messages with the same correlation id.")
    ] = False,
    options: GatewayOptions = DEFAULT_OPTIONS,
) -> None:
    """Show every step of a message, from send to the end of its turn, at every gateway.

    Name a message by its id, or a conversation by its correlation id. Gateways that
    cannot be reached are listed.

    For example:

      gatepost trace ID
      gatepost trace order-4711 --conversation

    Parameters
    ----------
    ref
        A message id, as `gatepost send` prints it, or the correlation id of a conversation.
    """
    whole = "true" if conversation else None
    with options.find_gateway() as gateway:
        journey = gateway.get(f"/v1/trace/{quote_segment(ref)}", Journey, conversation=whole)
    output.print_result(options, journey, lambda: _print_journey(journey))


def _print_journey(journey: Journey) -> None:
    sent = _sent_messages(journey.steps)
    if journey.ref not in sent:
        output.print_line(_ref_text(journey, list(sent)), "bold")
    for number, step in enumerate(sent.values(), 1):
        mark = f"#{number} " if len(sent) > 1 else ""
        output.print_line(f"{mark}{step.event_id} {step.agent} → {step.to_agent}", "bold")
        if "replay of " in step.detail:
            output.print_line(f"a {step.detail[step.detail.index('replay of ') :]}")
    _print_timeline(journey.steps, sent)
    for node, relay in journey.relays.items():
        output.print_line(f"the steps at {node} came through {relay}")
    for note in journey.notes:
        output.print_line(note)
    for node, why in journey.unreachable.items():
        output.print_line(f"the steps at {node} are missing: {why}", "yellow")
    for node, ahead in journey.clocks.items():
        output.print_line(_clock_text(node, ahead))
    for step in sent.values():
        _print_end(step, journey)
    if journey.more_in_conversation:
        output.print_hint(
            f"The conversation has more messages: gatepost trace --conversation {journey.corr_id}"
        )


def _clock_text(node: str, ahead: int) -> str:
    direction = "ahead" if ahead > 0 else "behind"
    amount = format_duration(abs(ahead) / 1000)
    return f"the clock of {node} is {amount} {direction}; its times are corrected"


def _sent_messages(steps: list[JourneyStep]) -> dict[str, JourneyStep]:
    """The first `sent` step of each message; of replies only if there is nothing else."""
    sent = {step.event_id: step for step in reversed(steps) if step.what == "sent"}
    first = {id: step for id, step in reversed(sent.items()) if step.kind != "reply"}
    return first or dict(reversed(sent.items()))


def _ref_text(journey: Journey, messages: list[str]) -> str:
    """The id that was asked for, if it is not the id of one of the messages."""
    for step in journey.steps:
        if step.event_id == journey.ref and step.what == "sent":
            return f"{step.event_id} {step.kind} {step.agent} → {step.to_agent}"
    if journey.ref in (journey.corr_id, *journey.event_ids):
        return f"{journey.ref} conversation of {output.format_count(len(messages), 'message')}"
    return f"{journey.ref} event about {messages[0] if messages else 'another event'}"


def _print_timeline(steps: list[JourneyStep], sent: Mapping[str, JourneyStep]) -> None:
    """Times count from the send of the step's message; those of replies from the first send."""
    replies = {step.event_id for step in steps if step.kind == "reply"}
    numbers = {id: number for number, id in enumerate(sent, 1)} if len(sent) > 1 else {}
    first = min((step.at for step in sent.values()), default=steps[0].at)
    rows = []
    for step in steps:
        number = f"#{numbers[step.event_id]} " if step.event_id in numbers else ""
        start = sent[step.event_id].at if step.event_id in sent else first
        said = number + describe_step(step, replies)
        rows.append((_time_text(step), step.node, said, _elapsed_text(start, step)))
    output.print_table(("Time", "Node", "Step", "Since send"), rows)


def _print_end(sent: JourneyStep, journey: Journey) -> None:
    about = [step for step in journey.steps if step.event_id == sent.event_id]
    if not any(step.what in _FINAL_STEPS for step in about):
        has_ended = sent.event_id in journey.ended
        output.print_line(
            f"its delivery has ended; {sent.peer or 'its owner'} knows the outcome"
            if has_ended
            else f"{sent.to_agent}'s turn has not ended yet"
        )
    elif any(step.what == "turn_failed" for step in about):
        output.print_line(f"see `gatepost dlq show {sent.to_agent} {sent.event_id}`")
    elif any(step.what == "given_up" for step in about):
        late = next((step for step in about if step.what == "heard_processed"), None)
        if late is not None:
            text = f"given up first; the end is what {late.peer} reported later: {late.detail}"
            output.print_line(text, "yellow")
            return
        for late in (step for step in about if step.what == "verdict"):
            text = f"given up here, but {late.peer} reported later: {late.detail}"
            output.print_line(text, "yellow")
        output.print_line(f"see `gatepost undelivered show {sent.event_id}`")


def _time_text(step: JourneyStep) -> str:
    return f"{output.format_time(step.at)}.{step.at % 1000:03d}"


def _elapsed_text(start: int, step: JourneyStep) -> str:
    if step.at <= start:
        return ""
    return f"+{format_duration((step.at - start) / 1000)}"
