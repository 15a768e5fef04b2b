"""Decoding of JSON that a client sent; bad input is an InvalidRequest."""

from functools import lru_cache
from typing import Any, TypeVar

import msgspec
from litestar import Request

from gatepost.errors import InvalidRequest
from gatepost.listening.field_names import rename_fields

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


class TypedRequest(Request[Any, Any, Any]):
    """Decodes a body into the type of the handler's `data`, so that payloads stay raw bytes."""

    async def json(self) -> Any:
        body = await self.body()
        wanted = self.route_handler.parsed_fn_signature.parameters["data"].annotation
        return decode_json(_json_decoder(wanted), body)


@lru_cache(64)
def _json_decoder(type: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(type)
