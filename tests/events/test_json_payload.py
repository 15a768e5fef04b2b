"""Payloads: JSON in UTF-8 that is nested no deeper than any reader can follow."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatepost.errors import InvalidRequest
from gatepost.events.json_payload import MAX_NESTING, check_json_payload

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(json_values, st.booleans())
def test_every_json_value_is_a_payload(value: object, ascii: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii)
    check_json_payload(text.encode("utf-8", "surrogatepass") if ascii else text.encode())


@pytest.mark.parametrize(
    "payload",
    [b"", b" ", b"{", b"1 2", b'1,"from":"boss"', b'"\xff"', b'{"a":"\xc0\xaf"}', b"NaN", b"[1,]"],
)
def test_anything_else_is_none(payload: bytes) -> None:
    with pytest.raises(InvalidRequest):
        check_json_payload(payload)


def nested(levels: int) -> bytes:
    opened = b'[{"[":' * (levels // 2) + b"[" * (levels % 2)
    return opened + b'"]}"' + b"]" * (levels % 2) + b"}]" * (levels // 2)


@pytest.mark.parametrize("levels", [1, 2, MAX_NESTING - 1, MAX_NESTING])
def test_a_payload_may_be_nested(levels: int) -> None:
    check_json_payload(nested(levels))


@pytest.mark.parametrize("levels", [MAX_NESTING + 1, MAX_NESTING + 2, 900, 100_000])
def test_a_payload_that_is_nested_too_deeply_is_refused(levels: int) -> None:
    with pytest.raises(InvalidRequest):
        check_json_payload(nested(levels))


def test_brackets_in_strings_and_side_by_side_are_no_levels() -> None:
    check_json_payload(json.dumps(["[{" * 1000, 'a"[' * 1000, "\\"]).encode())
    check_json_payload(b"[" + b",".join([b"[{}]"] * 10_000) + b"]")
