"""Decoding of JSON that a client sent; bad input is an InvalidRequest."""

from typing import TypeVar

import msgspec

from gatepost.errors import InvalidRequest

T = TypeVar("T")


def decode_json(decoder: msgspec.json.Decoder[T], text: bytes | str, prefix: str = "") -> T:
    """Decode `text`, or raise InvalidRequest with the reason after `prefix`."""
    try:
        return decoder.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"{prefix}{error}") from None
