"""Numbers and strings as Yjs writes them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatepost.errors import RoomViolation
from gatepost.room import lib0
from gatepost.room.lib0 import MAX_UINT, Lib0Reader


@given(st.integers(0, MAX_UINT))
def test_a_number_is_read_as_it_was_written(number: int) -> None:
    reader = Lib0Reader(lib0.encode_uint(number))
    assert reader.read_uint() == number
    reader.expect_end()


@pytest.mark.parametrize(
    ("number", "written"), [(0, "00"), (127, "7f"), (128, "8001"), (MAX_UINT, "ffffffffffffff0f")]
)
def test_numbers_are_written_like_lib0_writes_them(number: int, written: str) -> None:
    assert lib0.encode_uint(number).hex() == written


@given(st.text(max_size=50))
def test_a_string_is_read_as_it_was_written(text: str) -> None:
    assert Lib0Reader(lib0.encode_text(text)).read_text(1000) == text


@pytest.mark.parametrize(
    "data", ["", "80", "ffffffffffffff10", "ffffffffffffffff7f", "80" * 9 + "00"]
)
def test_a_number_beyond_what_yjs_writes_is_malformed(data: str) -> None:
    with pytest.raises(RoomViolation, match="malformed Yjs message") as caught:
        Lib0Reader(bytes.fromhex(data)).read_uint()
    assert caught.value.rule == "malformed"


@pytest.mark.parametrize(
    ("data", "rule"), [("0561", "malformed"), ("02c328", "malformed"), ("0461626364", "too_large")]
)
def test_a_string_that_is_cut_short_not_utf8_or_too_long_is_refused(data: str, rule: str) -> None:
    with pytest.raises(RoomViolation) as caught:
        Lib0Reader(bytes.fromhex(data)).read_text(3 if rule == "too_large" else 100)
    assert caught.value.rule == rule


def test_bytes_left_over_are_malformed() -> None:
    with pytest.raises(RoomViolation, match="2 bytes too many"):
        Lib0Reader(b"ab").expect_end()
