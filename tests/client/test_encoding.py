"""Payloads as JSON: carried faithfully, or refused."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from msgspec import Raw, Struct

from gatepost.client._encoding import encode_payload
from gatepost.errors import InvalidRequest


class Note(Struct):
    content: Any


@dataclass
class Record:
    content: Any


@pytest.mark.parametrize(
    ("payload", "named"),
    [
        (b"data", "bytes"),
        (bytearray(b"data"), "bytearray"),
        (memoryview(b"data"), "memoryview"),
        ({1, 2}, "set"),
        (frozenset({1}), "frozenset"),
        ({"deep": [1, {"deeper": (b"data",)}]}, "bytes"),
        ({b"key": 1}, "bytes"),
        (Note({1}), "set"),
        (Record(b"data"), "bytes"),
        (float("nan"), "nan"),
        ([float("-inf")], "-inf"),
        (object(), "object"),
    ],
)
def test_values_that_json_does_not_have_are_refused_by_name(payload: Any, named: str) -> None:
    with pytest.raises(InvalidRequest, match=named):
        encode_payload(payload)


@pytest.mark.parametrize(
    "payload", ["text", 1, 1.5, True, None, [1, [2]], {"a": {"b": [None]}}, "", {}, []]
)
def test_json_values_are_carried_faithfully(payload: Any) -> None:
    assert msgspec.json.decode(encode_payload(payload)) == payload


def test_records_and_times_are_carried_as_their_json() -> None:
    moment = datetime(2026, 1, 2, tzinfo=UTC)
    assert bytes(encode_payload(Note([1]))) == b'{"content":[1]}'
    assert bytes(encode_payload(Record((1, 2)))) == b'{"content":[1,2]}'
    assert bytes(encode_payload({"at": moment})) == b'{"at":"2026-01-02T00:00:00Z"}'
    assert bytes(encode_payload(Raw(b'{"a": 1}'))) == b'{"a": 1}'


def test_a_payload_that_contains_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(InvalidRequest):
        encode_payload(endless)
