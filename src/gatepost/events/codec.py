"""Encode envelopes as canonical JSON and decode them; only here are older field names accepted.

Decoding drops unknown fields. A digest is therefore always taken of the bytes that travelled,
never of an envelope that was encoded again.
"""

from typing import TypeVar

import msgspec
from msgspec import UNSET, Raw, Struct

from gatepost.errors import MalformedEvent
from gatepost.events.envelope import Envelope, Trace
from gatepost.events.kinds import LEGACY_KINDS

T = TypeVar("T")
_Fields = dict[str, Raw]

_encoder = msgspec.json.Encoder(order="deterministic")
_strict_decoder = msgspec.json.Decoder(Envelope)
_fields_decoder = msgspec.json.Decoder(_Fields)

# ValueError covers msgspec's own errors and invalid UTF-8; RecursionError comes from deep nesting.
_DECODE_ERRORS = (ValueError, RecursionError)


def _wire_names(struct: type[Struct]) -> dict[str, str]:
    return {field.name: field.encode_name for field in msgspec.structs.fields(struct)}


def _with_canonical_names(aliases: dict[str, str]) -> dict[str, str]:
    return aliases | {name: name for name in aliases.values()}


_TRACE_NAMES = _with_canonical_names(_wire_names(Trace))
_ENVELOPE_NAMES = _with_canonical_names(
    {
        "fromNodeId": "sourceNodeId",
        "from_node_id": "sourceNodeId",
        "fromAgentId": "sourceAgentId",
        "from_agent_id": "sourceAgentId",
    }
    | _wire_names(Envelope)
)


def encode_event(envelope: Envelope) -> bytes:
    """Encode as canonical JSON: equal envelopes give equal bytes."""
    return _encoder.encode(envelope)


def decode_event(data: bytes) -> Envelope:
    """Decode an event; any invalid input raises MalformedEvent and nothing else."""
    try:
        # msgspec skips raw payloads without validating their UTF-8; str() validates it.
        text = str(data, "utf-8")
        envelope = _decode_text(text)
    except _DECODE_ERRORS as error:
        raise MalformedEvent(f"not an event: {error}") from None
    return _normalize_event(envelope)


def encode_payload(value: object) -> Raw:
    """Encode a clear or encrypted payload for `Envelope.payload`."""
    return Raw(_encoder.encode(value))


def decode_payload(envelope: Envelope, type: type[T]) -> T:
    """Decode the payload as the type its kind implies, such as `Receipt` or `EncryptedPayload`."""
    if envelope.payload is UNSET:
        raise MalformedEvent(f"event {envelope.event_id} has no payload")
    try:
        return msgspec.json.decode(envelope.payload, type=type)
    except _DECODE_ERRORS as error:
        raise MalformedEvent(f"payload of event {envelope.event_id}: {error}") from None


def _decode_text(text: str) -> Envelope:
    try:
        return _strict_decoder.decode(text)
    except msgspec.ValidationError:
        return _strict_decoder.decode(_respell_fields(_fields_decoder.decode(text)))


def _respell_fields(fields: _Fields) -> bytes:
    renamed = _rename_fields(fields, _ENVELOPE_NAMES)
    if "trace" in renamed:
        trace = _rename_fields(_fields_decoder.decode(renamed["trace"]), _TRACE_NAMES)
        renamed["trace"] = Raw(_encoder.encode(trace))
    return _encoder.encode(renamed)


def _rename_fields(fields: _Fields, names: dict[str, str]) -> _Fields:
    return {names[name]: fields[name] for name in names if name in fields}


def _normalize_event(envelope: Envelope) -> Envelope:
    if envelope.is_draft:
        raise MalformedEvent(f"event {envelope.event_id} lacks its seq, source or time")
    if envelope.payload_ref is not None and envelope.payload is not UNSET:
        raise MalformedEvent(f"event {envelope.event_id} has both payload and payloadRef")
    if envelope.kind in LEGACY_KINDS:
        return msgspec.structs.replace(envelope, kind=LEGACY_KINDS[envelope.kind].value)
    return envelope
