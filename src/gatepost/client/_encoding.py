"""Payloads to JSON, and the checks a frame needs before it leaves.

The gateway refuses a frame that does not decode as a whole, with everything that was coalesced
into it; so nothing enters a frame that would not decode.
"""

from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, Raw, UnsetType

from gatepost.errors import InvalidRequest, PayloadTooLarge
from gatepost.wire import NewMessage, NewSend

T = TypeVar("T")

# Of the 1 MiB a gateway takes at most by default, some is for what surrounds the payload.
MAX_FRAME_BYTES = 1_000_000

_encoder = msgspec.json.Encoder()
_raw_decoder = msgspec.json.Decoder(Raw)
_checkers: dict[type, msgspec.json.Decoder[Any]] = {
    NewMessage: msgspec.json.Decoder(NewMessage),
    NewSend: msgspec.json.Decoder(NewSend),
}


def encode_payload(payload: Any) -> Raw:
    """Any JSON-encodable value; a Raw is JSON already."""
    try:
        if isinstance(payload, Raw):
            return _raw_decoder.decode(payload)
        return Raw(_encoder.encode(payload))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"the payload is not JSON-encodable: {error}") from None


def encode_reply(reply: Any) -> Raw:
    """A reply travels in the frame of its ack, or not at all."""
    raw = encode_payload(reply)
    if len(memoryview(raw)) > MAX_FRAME_BYTES:
        raise PayloadTooLarge("a reply must fit into a frame; send a message instead")
    return raw


def check_receipt(receipt: str) -> None:
    if len(receipt) > 64:
        raise InvalidRequest("that is no receipt")


def checked(new: NewMessage | NewSend) -> None:
    try:
        _checkers[type(new)].decode(_encoder.encode(new))
    except msgspec.ValidationError as error:
        raise InvalidRequest(str(error)) from None


def given(value: T | None) -> T | UnsetType:
    return UNSET if value is None else value
