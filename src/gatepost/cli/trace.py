"""`gatepost trace`: the journey of one message."""

from datetime import datetime

from gatepost.cli import output
from gatepost.cli.connect import segment
from gatepost.cli.options import OPTIONS, Options
from gatepost.events import TRACKED, Envelope, Kind, Receipt, decode_payload


def trace(event_id: str, /, *, options: Options = OPTIONS) -> None:
    """Show a message's journey, from being sent to the end of its turn.

    Parameters
    ----------
    event_id
        What `gatepost send` printed.
    """
    with options.gateway() as gateway:
        events = gateway.get(f"/v1/messages/{segment(event_id)}/trace", list[Envelope])
    output.show(options, events, lambda: _print(events))


def _print(events: list[Envelope]) -> None:
    first = events[0]
    output.say(f"{first.event_id} {first.source_agent_id} → {first.to_agent_id or ''}", "bold")
    if first.causation_id:
        output.say(f"a replay of {first.causation_id}")
    before = [first, *events[:-1]]
    output.table(
        ("At", "After", "What"),
        [
            (_at(event), _after(previous, event), _what(event))
            for previous, event in zip(before, events, strict=True)
        ],
    )
    if first.kind in TRACKED:
        _print_end(first, _outcome(events))


def _print_end(first: Envelope, outcome: str | None) -> None:
    if outcome is None:
        output.say(f"{first.to_agent_id}'s turn has not ended yet")
    elif outcome == "dead_letter":
        output.say(f"see `gatepost dlq show {first.to_agent_id} {first.event_id}`")


def _outcome(events: list[Envelope]) -> str | None:
    receipts = (decode_payload(e, Receipt) for e in events[1:] if e.kind == Kind.ACK)
    return next((receipt.outcome for receipt in receipts if receipt.outcome), None)


def _at(event: Envelope) -> str:
    moment = datetime.fromtimestamp(event.created_at / 1000)
    return moment.strftime("%Y-%m-%d %H:%M:%S.") + f"{event.created_at % 1000:03d}"


def _after(previous: Envelope, event: Envelope) -> str:
    if previous is event:
        return ""
    return f"+{output.duration((event.created_at - previous.created_at) / 1000)}"


def _what(event: Envelope) -> str:
    if event.kind == Kind.ACK:
        return _receipt(event)
    kind = "sent" if event.kind == Kind.MESSAGE else event.kind
    return f"{kind} by {event.source_agent_id} to {event.to_agent_id}"


def _receipt(event: Envelope) -> str:
    receipt = decode_payload(event, Receipt)
    outcome = f": {receipt.outcome}" if receipt.outcome else ""
    reason = f" ({receipt.reason})" if receipt.reason else ""
    return f"{receipt.status} by {event.source_agent_id}{outcome}{reason}"
