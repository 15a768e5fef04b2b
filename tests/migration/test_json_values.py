"""Values from a legacy document, made plain."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatepost.migration.json_values import NotJsonValue, UnreadableValue, render_json, to_json_value

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)
values = st.recursive(scalars, lambda v: st.lists(v) | st.dictionaries(st.text(), v), max_leaves=20)


def as_javascript(value: Any) -> Any:
    """How a Yjs document gives numbers back: all of them as floats."""
    if isinstance(value, dict):
        return {key: as_javascript(each) for key, each in value.items()}
    if isinstance(value, list):
        return [as_javascript(each) for each in value]
    return float(value) if type(value) is int else value


@given(values)
def test_a_document_and_its_json_export_give_the_same_value(value: Any) -> None:
    assert json.dumps(to_json_value(as_javascript(value))) == json.dumps(to_json_value(value))


@given(values)
def test_plain_values_stay_what_they_are(value: Any) -> None:
    assert to_json_value(value) == value
    assert to_json_value(to_json_value(value)) == to_json_value(value)


def test_a_whole_float_is_an_integer() -> None:
    assert repr(to_json_value([5.0, -0.0, 1e21, 1.5, True])) == "[5, 0, 1e+21, 1.5, True]"


@pytest.mark.parametrize(
    "value",
    [
        math.nan,
        -math.inf,
        2**64,
        b"bytes",
        {1: "a"},
        "\ud800",
        {"\ud800": 1},
        [object()],
        UnreadableValue("no"),
    ],
)
def test_what_json_cannot_hold_is_not_plain(value: Any) -> None:
    with pytest.raises(NotJsonValue):
        to_json_value({"at": [value]})


def test_endless_nesting_is_not_plain() -> None:
    value: Any = 1
    for _ in range(100):
        value = [value]
    with pytest.raises(NotJsonValue, match="nested"):
        to_json_value(value)


def test_a_reject_is_kept_readable_whatever_is_in_it() -> None:
    odd = {"a": bytearray(b"\x01"), "b": math.nan, "c": "\ud800", "d": UnreadableValue("why")}
    text = render_json(odd)
    text.encode("ascii")
    assert json.loads(text)["a"] == {"base64": "AQ=="}
    assert json.loads(text)["d"] == "why"
