"""Encodes payloads as JSON and checks values before they enter a frame.

The gateway refuses a frame that does not decode, with every operation in it. So each value is
checked before it is coalesced with those of other callers.
"""

from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, Raw, UnsetType

from gatepost.errors import InvalidRequest, PayloadTooLarge
from gatepost.wire import NewMessage, NewSend

T = TypeVar("T")

# The gateway's default limit is 1 MiB; the rest is for the fields around the payload.
MAX_FRAME_BYTES = 1_000_000

_encoder = msgspec.json.Encoder()
_raw_decoder = msgspec.json.Decoder(Raw)
_checkers: dict[type, msgspec.json.Decoder[Any]] = {
    NewMessage: msgspec.json.Decoder(NewMessage),
    NewSend: msgspec.json.Decoder(NewSend),
}


def encode_payload(payload: Any) -> Raw:
    """Encode a value as JSON; a `Raw` is JSON already and is only checked."""
    try:
        if isinstance(payload, Raw):
            return _raw_decoder.decode(payload)
        return Raw(_encoder.encode(payload))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"the payload is not JSON-encodable: {error}") from None


def encode_reply(reply: Any) -> Raw:
    """Encode a reply, which travels in the frame of its ack and must fit there."""
    raw = encode_payload(reply)
    if len(memoryview(raw)) > MAX_FRAME_BYTES:
        raise PayloadTooLarge("a reply must fit into a frame; send a message instead")
    return raw


def check_lease_handle(lease_handle: str) -> None:
    if len(lease_handle) > 64:
        raise InvalidRequest("not a lease handle: it is longer than 64 characters")


def check_encodable(new: NewMessage | NewSend) -> None:
    try:
        _checkers[type(new)].decode(_encoder.encode(new))
    except msgspec.ValidationError as error:
        raise InvalidRequest(str(error)) from None


def unset_if_none(value: T | None) -> T | UnsetType:
    return UNSET if value is None else value
