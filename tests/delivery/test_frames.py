"""Frames: what one side packs the other unpacks, and nothing else gets in."""

import contextlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gatepost.delivery.frames import (
    BlobPiece,
    BlobRequest,
    CommitGroup,
    EventsFrame,
    FollowFrame,
    HelloFrame,
    IncarnationsFrame,
    LinkFrame,
    ReadingFrame,
    RelayFrame,
    SkipFrame,
    SubscribeFrame,
    TakenFrame,
    decode_frame,
    encode_frame,
    frame_weight,
    frame_work,
)
from gatepost.errors import LinkError

DIGEST = "sha256:" + "ab" * 32
HASH, SIGNATURE = b"h" * 32, b"s" * 64
GROUP = CommitGroup(4, 5, HASH, HASH, SIGNATURE, HASH * 2)
FRAMES: list[LinkFrame] = [
    HelloFrame("a", [("one", 1), ("two", 9)], 12, 1_800_000_000_000),
    SubscribeFrame("b-1", [("a", "one", 3)], 1 << 20),
    FollowFrame([("a", "one", 3)], 0),
    RelayFrame([("c", "one", 3)], ["c", "d"], 1),
    IncarnationsFrame("c", [("one", 1)], SIGNATURE),
    ReadingFrame("b", "b-1", "a", "one", 3, SIGNATURE),
    EventsFrame("a", "one", 1, 5, 7, [b"x", b"yz"], [GROUP], "relay", [4]),
    EventsFrame("a", "one", 1, 5, 7, [b"x"], confirmed=[b"i" * 16]),
    TakenFrame("a", "one", 5, 3, "follow"),
    SkipFrame("a", "one", 1, 5, "cut off"),
    BlobRequest("a", DIGEST, 0, 10, "c"),
    BlobPiece("a", DIGEST, 0, 3, b"abc"),
]


@pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: type(frame).__name__)
def test_a_frame_comes_out_as_it_went_in(frame: LinkFrame) -> None:
    assert decode_frame(encode_frame(frame)) == frame


@given(st.binary(max_size=200))
def test_garbage_is_a_link_error_and_nothing_else(data: bytes) -> None:
    with pytest.raises(LinkError):
        decode_frame(data)


@given(st.sampled_from(FRAMES), st.data())
def test_a_damaged_frame_is_a_frame_or_a_link_error(frame: LinkFrame, data: st.DataObject) -> None:
    packed = bytearray(encode_frame(frame))
    place = data.draw(st.integers(0, len(packed) - 1))
    packed[place] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(LinkError):
        assert isinstance(decode_frame(bytes(packed)), LinkFrame)


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
        decode_frame(msgspec.msgpack.encode(frame))


def test_proof_weighs_too() -> None:
    bare = EventsFrame("a", "one", 1, 5, 7, [b"x", b"yz"])
    proven = EventsFrame("a", "one", 1, 5, 7, [b"x", b"yz"], [GROUP], "relay")
    assert frame_weight(bare) == 3
    assert frame_weight(proven) > 3 + len(GROUP.digests)


class OlderEventsFrame(LinkFrame, frozen=True, tag="events"):
    """The frame before it named confirmed offers."""

    source: str
    incarnation: str
    first_seq: int
    upto: int
    now: int
    events: list[bytes]
    groups: list[CommitGroup]
    stream: str
    everyone: list[int]


def test_gateways_before_and_after_confirmed_offers_read_each_other() -> None:
    newer = EventsFrame("a", "one", 1, 5, 7, [b"x"], confirmed=[b"i" * 16])
    older = OlderEventsFrame("a", "one", 1, 5, 7, [b"x"], [], "own", [])
    assert msgspec.msgpack.decode(encode_frame(newer), type=OlderEventsFrame) == older
    assert decode_frame(encode_frame(older)) == replace(newer, confirmed=[])
    assert frame_weight(newer) == 1, "an older reader gives back no more credit"


def test_the_work_of_a_frame_grows_with_events_and_confirmed_offers() -> None:
    none = EventsFrame("a", "one", 1, 5, 7, [])
    some = replace(none, events=[b"x"] * 10, confirmed=[b"i" * 16] * 5)
    assert frame_work(some) - frame_work(none) >= 15
