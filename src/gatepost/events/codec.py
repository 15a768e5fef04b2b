"""Envelopes to canonical JSON and back, forgiving older spellings at this edge only.

Decoding drops what it does not know, so a digest is always taken of the bytes that travelled,
never of an envelope encoded again.
"""

from typing import TypeVar

import msgspec
from msgspec import UNSET, Raw, Struct

from gatepost.errors import MalformedEvent
from gatepost.events.envelope import Envelope, Trace
from gatepost.events.kinds import LEGACY

T = TypeVar("T")
_Fields = dict[str, Raw]

_encoder = msgspec.json.Encoder(order="deterministic")
_strict = msgspec.json.Decoder(Envelope)
_loose = msgspec.json.Decoder(_Fields)

# ValueError covers msgspec's own errors and invalid UTF-8; RecursionError is deep nesting.
_UNREADABLE = (ValueError, RecursionError)


def _spellings(struct: type[Struct]) -> dict[str, str]:
    return {field.name: field.encode_name for field in msgspec.structs.fields(struct)}


def _canonical_last(aliases: dict[str, str]) -> dict[str, str]:
    return aliases | {name: name for name in aliases.values()}


_TRACE_NAMES = _canonical_last(_spellings(Trace))
_ENVELOPE_NAMES = _canonical_last(
    {
        "fromNodeId": "sourceNodeId",
        "from_node_id": "sourceNodeId",
        "fromAgentId": "sourceAgentId",
        "from_agent_id": "sourceAgentId",
    }
    | _spellings(Envelope)
)


def encode(envelope: Envelope) -> bytes:
    """Canonical JSON: equal envelopes give equal bytes."""
    return _encoder.encode(envelope)


def decode(data: bytes) -> Envelope:
    """Read an event; anything that is not one raises MalformedEvent and nothing else."""
    try:
        # msgspec skips over raw payloads without looking at their UTF-8; str() does look.
        text = str(data, "utf-8")
        envelope = _decode_text(text)
    except _UNREADABLE as error:
        raise MalformedEvent(f"not an event: {error}") from None
    return _settle(envelope)


def encode_payload(value: object) -> Raw:
    """A clear or sealed payload, ready for `Envelope.payload`."""
    return Raw(_encoder.encode(value))


def decode_payload(envelope: Envelope, type: type[T]) -> T:
    """The payload as a `Receipt`, `DeadLetter`, `Sealed` or whatever the kind promises."""
    if envelope.payload is UNSET:
        raise MalformedEvent(f"event {envelope.event_id} has no payload")
    try:
        return msgspec.json.decode(envelope.payload, type=type)
    except _UNREADABLE as error:
        raise MalformedEvent(f"payload of event {envelope.event_id}: {error}") from None


def _decode_text(text: str) -> Envelope:
    try:
        return _strict.decode(text)
    except msgspec.ValidationError:
        return _strict.decode(_respell(_loose.decode(text)))


def _respell(fields: _Fields) -> bytes:
    known = _rename(fields, _ENVELOPE_NAMES)
    if "trace" in known:
        known["trace"] = Raw(_encoder.encode(_rename(_loose.decode(known["trace"]), _TRACE_NAMES)))
    return _encoder.encode(known)


def _rename(fields: _Fields, names: dict[str, str]) -> _Fields:
    return {names[name]: fields[name] for name in names if name in fields}


def _settle(envelope: Envelope) -> Envelope:
    if envelope.payload_ref is not None and envelope.payload is not UNSET:
        raise MalformedEvent(f"event {envelope.event_id} has both payload and payloadRef")
    if envelope.kind in LEGACY:
        return msgspec.structs.replace(envelope, kind=LEGACY[envelope.kind].value)
    return envelope
