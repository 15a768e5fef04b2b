"""Normalises values of a legacy document to JSON types, one form per value.

JavaScript does not distinguish integers from floats. A Yjs document returns 5 as 5.0, its JSON
export as 5. Both must give the same message, so whole floats become integers.
"""

import base64
import json
import math
from typing import Any

from msgspec import Struct

_MAX_DEPTH = 64
_MAX_EXACT_FLOAT = 2.0**53


class NotJsonValue(ValueError):
    """A value has no JSON form. The message gives the reason."""


class UnreadableValue(Struct, frozen=True):
    """Placeholder for a value that could not be read."""

    reason: str


def to_json_value(value: Any, depth: int = 0) -> Any:
    """Convert a value to JSON types, or raise NotJsonValue."""
    if depth > _MAX_DEPTH:
        raise NotJsonValue(f"it is nested more than {_MAX_DEPTH} levels deep")
    if isinstance(value, dict):
        return {_json_text(key): to_json_value(each, depth + 1) for key, each in value.items()}
    if isinstance(value, list):
        return [to_json_value(each, depth + 1) for each in value]
    return _json_scalar(value)


def render_json(value: Any) -> str:
    """Render any value as JSON text for a person; other types are written out as text."""
    return json.dumps(value, default=_render_unknown)


def _json_scalar(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _json_text(value)
    if isinstance(value, int | float):
        return _json_number(value)
    if isinstance(value, UnreadableValue):
        raise NotJsonValue(value.reason)
    raise NotJsonValue(f"it holds {_type_name(value)}, which JSON cannot")


def _json_text(value: Any) -> str:
    if not isinstance(value, str):
        raise NotJsonValue("a key is not text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise NotJsonValue("a text holds half a character") from None
    return value


def _json_number(value: float) -> float:
    if isinstance(value, int):
        if not -(2**63) <= value < 2**64:
            raise NotJsonValue("a number is too large")
        return value
    if not math.isfinite(value):
        raise NotJsonValue("a number is not finite")
    return int(value) if value.is_integer() and abs(value) <= _MAX_EXACT_FLOAT else value


def _type_name(value: Any) -> str:
    return "bytes" if isinstance(value, bytes | bytearray) else type(value).__name__


def _render_unknown(value: Any) -> object:
    if isinstance(value, bytes | bytearray):
        return {"base64": base64.b64encode(value).decode()}
    return value.reason if isinstance(value, UnreadableValue) else repr(value)
