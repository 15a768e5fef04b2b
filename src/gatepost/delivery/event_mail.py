"""Mail made from an event, and the new event made from mail that is sent on.

The envelope and the description that mail carries share the names of their fields. Fields that both
have are copied by name, so a new field of a message needs no line here.
"""

from operator import attrgetter
from typing import Any

import msgspec

from gatepost.events import Envelope, Trace
from gatepost.mailbox import NewMail
from gatepost.mailbox.policy import MAX_DELAY_MS
from gatepost.wire.operations import EventInfo

_SHARED = [name for name in EventInfo.__struct_fields__ if name in Envelope.__struct_fields__]
# These fields describe the route of an event; the new event takes its own route.
_OF_ITS_WAY = {"event_id", "origin_event_id", "not_before", "payload_ref", "priority"}
_KEPT_AGAIN = [name for name in _SHARED if name not in _OF_ITS_WAY]
_DESCRIBED = [name for name in _SHARED if name not in ("origin_event_id", "payload_ref")]

_read_described = attrgetter(*_DESCRIBED)
_read_kept = attrgetter(*_KEPT_AGAIN)

decode_info = msgspec.json.Decoder(EventInfo).decode


def build_mail(
    envelope: Envelope,
    payload: bytes,
    now: int,
    *,
    ordered: bool,
    blob: tuple[str, int] | None = None,
    source: str | None = None,
    source_now: int | None = None,
) -> NewMail:
    """The mail of an event. `blob` is the digest and size of its payload, if that is a blob.

    `source` is the gateway that sent the event, and `source_now` is that gateway's clock. Both are
    None for an event that this gateway delivers to its own agent.
    """
    ttl = None
    if envelope.expires_at is not None:
        left = envelope.expires_at - (now if source_now is None else source_now)
        ttl = min(max(1, left), MAX_DELAY_MS)
    return NewMail(
        envelope.event_id,
        payload,
        created_at=None if envelope.is_draft else envelope.created_at,
        ttl=ttl,
        meta=msgspec.json.encode(describe_event(envelope, blob, source)),
        priority=envelope.priority,
        ordered=ordered,
        not_before=min(envelope.not_before or 0, now + MAX_DELAY_MS),
        max_retries=envelope.max_retries,
    )


def describe_event(
    envelope: Envelope, blob: tuple[str, int] | None, source: str | None
) -> EventInfo:
    said: dict[str, Any] = dict(zip(_DESCRIBED, _read_described(envelope), strict=True))
    if envelope.corr_id is None:
        said["corr_id"] = envelope.event_id
    if envelope.trace is not None:
        said["traceparent"] = envelope.trace.traceparent
    if envelope.task is not None:
        said["task_id"] = envelope.task.root_id
    if blob is not None:
        said["payload_ref"], said["size"] = blob
    if source is not None:
        said["source_node"] = source
        said["origin_event_id"] = envelope.origin_event_id
        said["origin_node"] = origin_of(envelope) or None
    return EventInfo(**said)


def draft_again(info: EventInfo, event_id: str, sender: str, to: str) -> Envelope:
    """A new event for `to` with the message of a mail, caused by the old event.

    It is due at once, and has no expiry and no origin yet.
    """
    said: dict[str, Any] = dict(zip(_KEPT_AGAIN, _read_kept(info), strict=True))
    return Envelope(
        event_id=event_id,
        source_agent_id=sender,
        to_agent_id=to,
        causation_id=info.event_id,
        trace=trace_of(info.traceparent),
        **said,
    )


def trace_of(traceparent: str | None) -> Trace | None:
    """The trace of an event that has no route yet."""
    return None if traceparent is None else Trace(traceparent=traceparent)


def origin_of(envelope: Envelope) -> str:
    """The node for which an event was forwarded; empty if it is the event's own source."""
    origin = envelope.origin_node_id
    return "" if origin is None or origin == envelope.source_node_id else origin
