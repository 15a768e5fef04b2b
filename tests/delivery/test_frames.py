"""Frames: what one side packs the other unpacks, and nothing else gets in."""

import contextlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatepost.delivery.frames import (
    BlobAsk,
    BlobPiece,
    Events,
    Follow,
    Frame,
    Group,
    Hello,
    Lives,
    Reading,
    Relay,
    Skip,
    Subscribe,
    Taken,
    pack,
    unpack,
    weight,
)
from gatepost.errors import LinkError

DIGEST = "sha256:" + "ab" * 32
HASH, SIGNATURE = b"h" * 32, b"s" * 64
GROUP = Group(4, 5, HASH, HASH, SIGNATURE, HASH * 2)
FRAMES: list[Frame] = [
    Hello("a", [("one", 1), ("two", 9)], 12, 1_800_000_000_000),
    Subscribe("b-1", [("a", "one", 3)], 1 << 20),
    Follow([("a", "one", 3)], 0),
    Relay([("c", "one", 3)], ["c", "d"], 1),
    Lives("c", [("one", 1)], SIGNATURE),
    Reading("b", "b-1", "a", "one", 3, SIGNATURE),
    Events("a", "one", 1, 5, 7, [b"x", b"yz"], [GROUP], "relay", [4]),
    Taken("a", "one", 5, 3, "follow"),
    Skip("a", "one", 1, 5, "cut off"),
    BlobAsk("a", DIGEST, 0, 10, "c"),
    BlobPiece("a", DIGEST, 0, 3, b"abc"),
]


@pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: type(frame).__name__)
def test_a_frame_comes_out_as_it_went_in(frame: Frame) -> None:
    assert unpack(pack(frame)) == frame


@given(st.binary(max_size=200))
def test_garbage_is_a_link_error_and_nothing_else(data: bytes) -> None:
    with pytest.raises(LinkError):
        unpack(data)


@given(st.sampled_from(FRAMES), st.data())
def test_a_damaged_frame_is_a_frame_or_a_link_error(frame: Frame, data: st.DataObject) -> None:
    packed = bytearray(pack(frame))
    place = data.draw(st.integers(0, len(packed) - 1))
    packed[place] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(LinkError):
        assert isinstance(unpack(bytes(packed)), Frame)


@pytest.mark.parametrize(
    "frame",
    [
        ["hello", "", [["one", 1]], 0, 0, 1],
        ["hello", "a", [], 0, 0, 1],
        ["hello", "a", [["one", -1]], 0, 0, 1],
        ["taken", "a", "one", 2**53, 0, "own"],
        ["lives", "a", [["one", 1]], b"short"],
        ["events", "a", "one", 1, 1, 1, [], [[1, 1, b"short", HASH, SIGNATURE, b""]], "own"],
        ["blob_ask", "a", "../../etc/passwd", 0, 1],
        ["relay", [], ["n"] * 10_001, 1],
        ["group", 1, 1, HASH, HASH, SIGNATURE, b""],
        ["unheard of"],
    ],
)
def test_what_is_out_of_bounds_does_not_get_in(frame: list[object]) -> None:
    with pytest.raises(LinkError):
        unpack(msgspec.msgpack.encode(frame))


def test_proof_weighs_too() -> None:
    bare = Events("a", "one", 1, 5, 7, [b"x", b"yz"])
    proven = Events("a", "one", 1, 5, 7, [b"x", b"yz"], [GROUP], "relay")
    assert weight(bare) == 3
    assert weight(proven) > 3 + len(GROUP.digests)
