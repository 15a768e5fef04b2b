"""The lib0 encoding of Yjs: numbers, strings and byte strings, decoded with strict bounds.

The bytes are untrusted input. Any decoding error raises RoomViolation and nothing else.
"""

import re

from gatepost.errors import RoomViolation

# The largest integer JavaScript represents exactly; Yjs writes none beyond it.
MAX_UINT = 2**53 - 1


def malformed_error(why: str) -> RoomViolation:
    return RoomViolation(f"malformed Yjs message: {why}", rule="malformed")


def too_large_error(what: str, size: int, limit: int) -> RoomViolation:
    return RoomViolation(f"{what} has {size} bytes, at most {limit} are allowed", rule="too_large")


# A number in its encoding: bytes with the high bit, and one without it.
_find_numbers = re.compile(rb"[\x80-\xff]*[\x00-\x7f]").findall
_MAX_NUMBER_BYTES = 8


def split_numbers(data: bytes) -> list[bytes]:
    """Split bytes that hold numbers only, without decoding these: that takes a quarter of the time.

    `Lib0Reader.read_uint` decodes one of them.
    """
    numbers: list[bytes] = _find_numbers(data)
    if sum(map(len, numbers)) != len(data):
        raise malformed_error("they end too early")
    if max(map(len, numbers), default=0) > _MAX_NUMBER_BYTES:
        raise malformed_error("a number is too long")
    return numbers


class Lib0Reader:
    """Decodes a byte string from front to back."""

    __slots__ = ("_data", "_position")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def read_byte(self) -> int:
        if self._position >= len(self._data):
            raise malformed_error("they end too early")
        self._position += 1
        return self._data[self._position - 1]

    def read_uint(self) -> int:
        result = shift = 0
        while (byte := self.read_byte()) >= 0x80:
            result |= (byte & 0x7F) << shift
            shift += 7
            if shift > 49:
                raise malformed_error("a number is too long")
        result |= byte << shift
        if shift and not byte:
            raise malformed_error("a number is longer than needed")
        if result > MAX_UINT:
            raise malformed_error("a number is too large")
        return result

    def read_count(self, limit: int) -> int:
        """Read the number of entries that follow; more than `limit` is a violation."""
        number = self.read_uint()
        if number > limit:
            raise malformed_error(f"{number} entries where at most {limit} are allowed")
        return number

    def read_bytes(self, limit: int) -> bytes:
        size = self.read_uint()
        if size > limit:
            raise too_large_error("a value", size, limit)
        return self.read_exactly(size)

    def read_exactly(self, size: int) -> bytes:
        end = self._position + size
        if end > len(self._data):
            raise malformed_error("they end too early")
        found = self._data[self._position : end]
        self._position = end
        return found

    def read_text(self, limit: int) -> str:
        try:
            return str(self.read_bytes(limit), "utf-8")
        except UnicodeDecodeError:
            raise malformed_error("a string is not UTF-8") from None

    def expect_end(self) -> None:
        if self._position != len(self._data):
            raise malformed_error(f"{len(self._data) - self._position} bytes too many")


def encode_uint(number: int) -> bytes:
    if number < 0x80:
        return bytes((number,))
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def encode_bytes(value: bytes) -> bytes:
    return encode_uint(len(value)) + value


def encode_text(value: str) -> bytes:
    return encode_bytes(value.encode())
