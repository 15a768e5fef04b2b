"""Updates as this room writes them are what Yjs makes of them, and nothing else can be read."""

import contextlib
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pycrdt import Array, Doc, Map, Text

from gatepost.errors import RoomViolation
from gatepost.room import lib0
from gatepost.room.yjs_update import (
    MAX_UPDATE_BYTES,
    RecordSlot,
    YjsItem,
    decode_state_vector,
    decode_update,
    encode_state_vector,
    select_clocks,
)
from tests.room.sample_records import encode_update

CLIENT = 2**53 - 7
VALUE = {"record": "{}", "signature": "s"}


def slot(version: int, client: int = CLIENT, key: str = "a", record: str = "") -> RecordSlot:
    return RecordSlot(client, version, "nodes", key, record or f"v{version}", "s")


def doc(*updates: bytes) -> "Doc[Any]":
    made: Doc[Any] = Doc()
    made.get("nodes", type=Map)
    for update in updates:
        made.apply_update(update)
    return made


def values(of: "Doc[Any]") -> dict[str, Any]:
    return of.get("nodes", type=Map).to_py() or {}


def test_yjs_itself_would_have_written_the_same() -> None:
    theirs: Doc[Any] = Doc(client_id=CLIENT)
    map = theirs.get("nodes", type=Map)
    for version in range(1, 6):
        map["a"] = {"record": f"v{version}", "signature": "s"}
    ours = doc(encode_update([slot(5)]))
    assert ours.get_state() == theirs.get_state()
    assert decode_update(ours.get_update()) == decode_update(theirs.get_update())
    assert len(ours.get_update()) == len(theirs.get_update())


@given(st.permutations([1, 2, 3, 7, 40]))
def test_a_yjs_document_ends_at_the_highest_version_in_any_order(versions: list[int]) -> None:
    made = doc(*(encode_update([slot(version)]) for version in versions))
    assert values(made) == {"a": {"record": "v40", "signature": "s"}}
    assert decode_state_vector(made.get_state()) == {CLIENT: 40}
    assert decode_update(made.get_update()) == decode_update(
        doc(encode_update([slot(40)])).get_update()
    )


@given(st.permutations([(1, 3), (2, 3), (1, 4), (2, 1)]))
def test_two_slots_of_one_key_show_the_higher_client_in_any_order(
    writes: list[tuple[int, int]],
) -> None:
    made = doc(*(encode_update([slot(v, c, record=f"{c}.{v}")]) for c, v in writes))
    assert values(made)["a"]["record"] == "2.3"


def test_what_is_written_is_read_back() -> None:
    read = decode_update(encode_update([slot(1), slot(3, 5, "b")]))
    assert read.items == [
        YjsItem(CLIENT, 0, 0, ("nodes", "a"), "v1", "s"),
        YjsItem(5, 0, 2, ("nodes", "b"), "v3", "s"),
    ]
    assert read.deletes == []


def test_state_vectors_are_yjs_state_vectors() -> None:
    made = doc(encode_update([slot(9), slot(4, 5, "b")]))
    assert decode_state_vector(made.get_state()) == {CLIENT: 9, 5: 4}
    assert decode_state_vector(encode_state_vector([(CLIENT, 9), (5, 4)])) == {CLIENT: 9, 5: 4}


def test_the_delete_set_of_a_yjs_document_is_read() -> None:
    assert decode_update(doc(encode_update([slot(9)])).get_update()).deletes == [(CLIENT, 0, 8)]


def made_by(write: Callable[["Doc[Any]"], object]) -> bytes:
    made: Doc[Any] = Doc()
    write(made)
    return made.get_update()


def _map(made: "Doc[Any]", name: str = "nodes") -> "Map[Any]":
    found: Map[Any] = made.get(name, type=Map)
    return found


@pytest.mark.parametrize(
    ("rule", "write"),
    [
        ("unknown_map", lambda d: _map(d, "payloads").update({"a": VALUE})),
        ("content", lambda d: _map(d).update({"a": Map({"record": "x"})})),
        ("content", lambda d: _map(d).update({"a": Text("payload")})),
        ("content", lambda d: _map(d).update({"a": Array([1])})),
        ("content", lambda d: d.get("nodes", type=Array).append(VALUE)),
        ("content", lambda d: d.get("nodes", type=Text).insert(0, "payload")),
        ("unsigned", lambda d: _map(d).update({"a": "payload"})),
        ("unsigned", lambda d: _map(d).update({"a": 5})),
        ("unsigned", lambda d: _map(d).update({"a": [VALUE]})),
        ("unsigned", lambda d: _map(d).update({"a": {"record": "x"}})),
        ("unsigned", lambda d: _map(d).update({"a": VALUE | {"payload": "x"}})),
        ("unsigned", lambda d: _map(d).update({"a": {"record": {"x": 1}, "signature": "s"}})),
        (
            "too_large",
            lambda d: _map(d).update({"a": {"record": "x" * 1_000_000, "signature": ""}}),
        ),
    ],
)
def test_nothing_but_signed_values_in_known_maps_is_read(
    rule: str, write: Callable[["Doc[Any]"], object]
) -> None:
    with pytest.raises(RoomViolation) as caught:
        decode_update(made_by(write))
    assert caught.value.rule == rule


def test_a_value_inside_a_nested_type_is_refused() -> None:
    made: Doc[Any] = Doc()
    nested = Map[Any]()
    _map(made)["a"] = nested
    before = made.get_state()
    nested["b"] = VALUE
    with pytest.raises(RoomViolation) as caught:
        decode_update(made.get_update(before))
    assert caught.value.rule == "form"


@pytest.mark.parametrize("gone", [b"\x00\x05", b"\x0a\x07"])
def test_structs_that_are_gone_are_refused(gone: bytes) -> None:
    with pytest.raises(RoomViolation):
        decode_update(b"\x01\x01" + lib0.encode_uint(9) + b"\x00" + gone + b"\x00")


def test_an_update_over_the_limit_is_not_even_looked_at() -> None:
    with pytest.raises(RoomViolation) as caught:
        decode_update(bytes(MAX_UPDATE_BYTES + 1))
    assert caught.value.rule == "too_large"


@pytest.mark.parametrize(
    "claimed", [b"\xff\xff\xff\x7f", b"\x00\xff\xff\xff\x7f", b"\x00\x01\x05\xff\xff\xff\x7f"]
)
def test_a_count_nobody_honest_would_write_is_malformed(claimed: bytes) -> None:
    with pytest.raises(RoomViolation, match="at most"):
        decode_update(claimed)


@given(st.binary(max_size=200))
def test_random_bytes_raise_nothing_but_violations(data: bytes) -> None:
    for read in (decode_update, decode_state_vector, lambda data: select_clocks(data, [5])):
        with contextlib.suppress(RoomViolation):
            read(data)


GOOD = encode_update([slot(1), slot(3, 5, "b"), slot(9, 6, "c")])


@given(st.integers(0, len(GOOD) - 1), st.integers(0, 255), st.integers(0, len(GOOD)))
def test_damaged_updates_raise_nothing_but_violations(at: int, byte: int, end: int) -> None:
    damaged = bytearray(GOOD)
    damaged[at] = byte
    for data in (bytes(damaged), bytes(damaged[:end]), GOOD[:at] + GOOD[at + 1 :]):
        with contextlib.suppress(RoomViolation):
            decode_update(data)


def test_the_clocks_of_some_clients_are_selected() -> None:
    vector = encode_state_vector([(CLIENT, 900), (5, 4), (7, 1)])
    assert select_clocks(vector, [CLIENT, 5, 6]) == {CLIENT: 900, 5: 4}
    assert select_clocks(b"\x00", [5]) == {}


@pytest.mark.parametrize(
    "vector",
    [
        b"",
        b"\x01\x05",
        b"\x01\x05\x04\x00",
        b"\x02\x05\x04",
        b"\x01\x05\x84",
        b"\x01\x05" + b"\xff" * 9,
    ],
)
def test_a_state_vector_that_is_none_is_malformed(vector: bytes) -> None:
    with pytest.raises(RoomViolation):
        select_clocks(vector, [5])


def test_a_long_state_vector_is_not_decoded() -> None:
    """Decoding takes about four times as long as this, on the event loop."""
    vector = encode_state_vector([(n << 20, n) for n in range(1, 100_000)])
    began = time.process_time()
    decode_state_vector(vector)
    decoding = time.process_time() - began
    began = time.process_time()
    assert select_clocks(vector, [7 << 20]) == {7 << 20: 7}
    assert time.process_time() - began < decoding
