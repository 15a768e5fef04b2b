from base64 import b64encode

import pytest

from gatepost.mesh.heard_addresses import HeardAddress, HeardAddresses, decode_point, encode_point
from gatepost.mesh.messages import IntroPoint, IntroPoints

KEY = b"k" * 32
NOW = 100_000


def said(*points: IntroPoint, secs: int = 100) -> IntroPoints:
    return IntroPoints(points, secs)


def test_the_first_point_that_can_be_dialled_counts() -> None:
    heard = HeardAddresses()
    heard.note_points("a", KEY, said(IntroPoint("?"), encode_point("wss://host:1")), NOW)
    assert heard.find_address("a", KEY) == HeardAddress("wss://host:1", NOW)
    assert heard.find_address("a", b"other") is None
    assert heard.find_address("b", KEY) is None


def test_a_node_may_say_that_it_has_no_address() -> None:
    heard = HeardAddresses()
    heard.note_points("a", KEY, said(), NOW)
    assert heard.find_address("a", KEY) == HeardAddress(None, NOW)


def test_datagrams_out_of_order_do_not_bring_back_an_old_address() -> None:
    heard = HeardAddresses()
    heard.note_points("a", KEY, said(encode_point("wss://new:1"), secs=90), NOW)
    heard.note_points("a", KEY, said(encode_point("wss://old:1"), secs=80), NOW)
    assert heard.find_address("a", KEY) == HeardAddress("wss://new:1", 90_000)


def test_a_time_in_the_future_does_not_outlast_a_later_word() -> None:
    heard = HeardAddresses()
    heard.note_points("a", KEY, said(encode_point("wss://lie:1"), secs=2**53 - 1), NOW)
    heard.note_points("a", KEY, said(encode_point("wss://later:1"), secs=101), NOW + 1000)
    assert heard.find_address("a", KEY) == HeardAddress("wss://later:1", 101_000)


@pytest.mark.parametrize(
    "text", [b"", b"\xff", b"http://host", b"wss://host/\n", b"wss://" + b"h" * 360, b"wss://a b"]
)
def test_anything_but_an_address_says_nothing(text: bytes) -> None:
    point = IntroPoint(b64encode(text).decode())
    assert decode_point(point) is None
    heard = HeardAddresses()
    heard.note_points("a", KEY, said(encode_point("wss://host:1")), NOW)
    heard.note_points("a", KEY, said(point), NOW)
    assert heard.find_address("a", KEY) == HeardAddress("wss://host:1", NOW)
