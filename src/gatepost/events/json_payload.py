"""The rules for payloads and replies, which agents get inside a JSON document.

They hold for local clients and for other gateways alike.
"""

import re

import msgspec

from gatepost.errors import InvalidRequest

# Every JSON reader can take a document that is nested so deeply.
MAX_NESTING = 256

_skip_value = msgspec.json.Decoder(msgspec.Raw).decode
_STRINGS = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_AS_ONE_KIND = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def check_json_payload(payload: bytes) -> None:
    """Raise InvalidRequest unless this is one JSON value that every agent can read."""
    try:
        _skip_value(payload)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"the payload is no JSON: {error}") from None
    check_json_text(payload)


def check_json_text(payload: bytes) -> None:
    """Raise InvalidRequest if a JSON value is not UTF-8, or is nested too deeply.

    The decoder does not look at these: it skips payloads.
    """
    if not payload.isascii():
        try:
            payload.decode()
        except UnicodeDecodeError:
            raise InvalidRequest("the payload is not valid UTF-8") from None
    if len(payload) > 2 * MAX_NESTING and _may_be_too_deep(payload) and _is_too_deep(payload):
        raise InvalidRequest(f"the payload is nested more than {MAX_NESTING} levels deep")


def _may_be_too_deep(payload: bytes) -> bool:
    return payload.count(b"[") + payload.count(b"{") > MAX_NESTING


def _is_too_deep(payload: bytes) -> bool:
    """Remove the innermost brackets, once for each level that is allowed."""
    brackets = _STRINGS.sub(b"", payload).translate(_AS_ONE_KIND, _NO_BRACKETS)
    for _ in range(MAX_NESTING):
        if not brackets:
            return False
        brackets = brackets.replace(b"[]", b"")
    return bool(brackets)
