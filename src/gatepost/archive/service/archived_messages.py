"""The status and the steps of a message that only the archive still knows.

The archive of a gateway holds its own outbox: its sends, and the receipts of its own agents. The
receipts of other gateways are in their outboxes, so the outcome of a message for another gateway is
known from here only if it was given up.
"""

from typing import TYPE_CHECKING

from gatepost.core.own_archive import OwnArchiveReader
from gatepost.delivery.frames import TraceStep
from gatepost.errors import UnknownMessage
from gatepost.events import (
    TRACKED_KINDS,
    Envelope,
    EventKind,
    decode_event,
    format_event_id,
    parse_event_id,
)
from gatepost.wire.operations import ARCHIVED, Sent

if TYPE_CHECKING:
    from gatepost.archive.segment_reader import FoundEvent


def archived_status(event_id: str, found: "list[FoundEvent]") -> Sent:
    """The status of a message that was sent from here; UnknownMessage if none was."""
    sends = [each for each in found if each.kind in TRACKED_KINDS and _subject(each) == event_id]
    if not sends:
        raise UnknownMessage(f"no message {event_id} was sent from this gateway")
    first, last = sends[0], sends[-1]
    sent = Sent(event_id, first.corr_id or "", ARCHIVED, last.to_node)
    sent.sent_at = first.created_at
    sent.reason = f"its delivery has ended; {last.to_node or 'its owner'} knows the outcome"
    for event in found:
        _apply_event(sent, event)
    return sent


def _apply_event(sent: Sent, event: "FoundEvent") -> None:
    if event.kind == EventKind.DEAD_LETTER:
        sent.state = sent.outcome = "dead_letter"
        sent.reason, sent.processed_at = event.reason, event.created_at
    elif event.kind == EventKind.SIGNAL and event.signal == "amended":
        sent.state, sent.outcome = "processed", (event.reason or "").rpartition(" ")[2]
        sent.reason, sent.processed_at = None, event.created_at
    elif event.kind == EventKind.ACK and event.status == "accepted":
        sent.accepted_at = event.created_at
    elif event.kind == EventKind.ACK and event.status == "processed":
        sent.state, sent.outcome, sent.reason = "processed", event.outcome, event.reason
        sent.processed_at = event.created_at


async def read_archived_journey(archive: OwnArchiveReader, event_id: str) -> list[Envelope]:
    """A pruned event and those that refer to it, as far as the archive keeps their bodies."""
    found = await archive.find_events(parse_event_id(event_id))
    bodies = [event.body for event in found.events] if found else []
    return [decode_event(body) for body in bodies if body is not None]


def archived_steps(found: "list[FoundEvent]") -> list[TraceStep]:
    """The steps that these events stand for, as in a trace of the journal."""
    return [_step(event) for event in found]


def _step(event: "FoundEvent") -> TraceStep:
    what, detail = _describe_event(event)
    return TraceStep(
        event.created_at,
        what,
        _subject(event),
        event.kind,
        event.source_agent,
        event.to_agent or "",
        event.to_node or "",
        detail,
    )


def _subject(event: "FoundEvent") -> str:
    """The message an event is about: itself, or the one it refers to."""
    about = event.event_id if event.kind in TRACKED_KINDS else event.ref_id
    return format_event_id(about or event.event_id)


def _describe_event(event: "FoundEvent") -> tuple[str, str]:
    if event.kind == EventKind.ACK:
        return event.status or "unreadable", _join(event.outcome, event.reason)
    if event.kind == EventKind.SIGNAL:
        return event.signal or "unreadable", _join(event.reason)
    if event.kind == EventKind.DEAD_LETTER:
        return "given_up", _join(event.reason)
    again = f"attempt {event.attempt}" if event.attempt > 1 else None
    cause = f"replay of {format_event_id(event.causation_id)}" if event.causation_id else None
    return "sent_again" if again else "sent", _join(again, event.route_decision, cause)


def _join(*parts: str | None) -> str:
    return ", ".join(filter(None, parts))
