"""Decoding of JSON that a client sent; bad input is an InvalidRequest."""

from typing import TypeVar

import msgspec

from gatepost.errors import InvalidRequest
from gatepost.gateway.api.field_names import rename_fields

T = TypeVar("T")


def decode_json(decoder: msgspec.json.Decoder[T], text: bytes | str, prefix: str = "") -> T:
    """Decode `text`, in either spelling; raise InvalidRequest with the reason after `prefix`."""
    try:
        return decoder.decode(text)
    except msgspec.ValidationError:
        return _decode_other_spelling(decoder, text, prefix)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise InvalidRequest(f"{prefix}{error}") from None


def _decode_other_spelling(decoder: msgspec.json.Decoder[T], text: bytes | str, prefix: str) -> T:
    try:
        renamed = rename_fields(decoder.type, text)
        return decoder.decode(text if renamed is None else renamed)
    except InvalidRequest as error:
        raise InvalidRequest(f"{prefix}{error.message}") from None
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise InvalidRequest(f"{prefix}{error}") from None
