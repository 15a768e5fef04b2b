"""Normalises values of a legacy document to JSON types, one form per value.

JavaScript does not distinguish integers from floats. A Yjs document returns 5 as 5.0, its JSON
export as 5. Both must give the same message, so whole floats become integers.
"""

import base64
import json
import math
from typing import Any

from msgspec import Struct

_DEEPEST = 64
_LARGEST_EXACT = 2.0**53


class NotPlain(ValueError):
    """A value has no JSON form. The message gives the reason."""


class Unreadable(Struct, frozen=True):
    """Placeholder for a value that could not be read."""

    reason: str


def plain(value: Any, depth: int = 0) -> Any:
    """Convert a value to JSON types, or raise NotJsonValue."""
    if depth > _DEEPEST:
        raise NotPlain(f"it is nested more than {_DEEPEST} levels deep")
    if isinstance(value, dict):
        return {_text(key): plain(each, depth + 1) for key, each in value.items()}
    if isinstance(value, list):
        return [plain(each, depth + 1) for each in value]
    return _scalar(value)


def kept(value: Any) -> str:
    """Render any value as JSON text for a person; other types are written out as text."""
    return json.dumps(value, default=_spelled)


def _scalar(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, int | float):
        return _number(value)
    if isinstance(value, Unreadable):
        raise NotPlain(value.reason)
    raise NotPlain(f"it holds {_name(value)}, which JSON cannot")


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise NotPlain("a key is not text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise NotPlain("a text holds half a character") from None
    return value


def _number(value: float) -> float:
    if isinstance(value, int):
        if not -(2**63) <= value < 2**64:
            raise NotPlain("a number is too large")
        return value
    if not math.isfinite(value):
        raise NotPlain("a number is not finite")
    return int(value) if value.is_integer() and abs(value) <= _LARGEST_EXACT else value


def _name(value: Any) -> str:
    return "bytes" if isinstance(value, bytes | bytearray) else type(value).__name__


def _spelled(value: Any) -> object:
    if isinstance(value, bytes | bytearray):
        return {"base64": base64.b64encode(value).decode()}
    return value.reason if isinstance(value, Unreadable) else repr(value)
