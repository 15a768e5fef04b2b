"""Event ids that sort by time, and checks that make every other id safe to store and print."""

import re
from functools import lru_cache
from threading import Lock
from typing import Annotated

from msgspec import Meta

from gatepost.clock import Clock
from gatepost.errors import InvalidId

# Not "$" but "\Z": "$" would let a trailing newline through.
_UUID7_PATTERN = r"\A[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}\Z"
NAME_PATTERN = r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
_NAME_PATTERN = rf"\A{NAME_PATTERN}\Z"
_MSG_ID_PATTERN = r"\A[A-Za-z0-9][A-Za-z0-9._:@+-]{0,255}\Z"
_DIGEST_PATTERN = r"\Asha256:[0-9a-f]{64}\Z"

EventId = Annotated[str, Meta(pattern=_UUID7_PATTERN, max_length=36)]
AgentId = Annotated[str, Meta(pattern=_NAME_PATTERN, max_length=128)]
NodeId = Annotated[str, Meta(pattern=_NAME_PATTERN, max_length=128)]
MsgId = Annotated[str, Meta(pattern=_MSG_ID_PATTERN, max_length=256)]
CapabilityId = AgentId
NodeIds = Annotated[tuple[NodeId, ...], Meta(max_length=16)]
CapabilityIds = Annotated[tuple[CapabilityId, ...], Meta(max_length=64)]
Digest = Annotated[str, Meta(pattern=_DIGEST_PATTERN, max_length=71)]

_NAME_RULE = "use 1 to 128 letters, digits, '.', '_' or '-', starting with a letter or digit"
_MSG_ID_RULE = "use 1 to 256 letters, digits or any of '._:@+-', starting with a letter or digit"
_UUID7_RULE = "it must be a UUIDv7 in lower case with dashes"
_DIGEST_RULE = "it must be 'sha256:' and 64 lower-case hex digits"

_is_uuid7 = re.compile(_UUID7_PATTERN).match
_is_name = re.compile(_NAME_PATTERN).match
_is_msg_id = re.compile(_MSG_ID_PATTERN).match
_is_digest = re.compile(_DIGEST_PATTERN).match


class EventIdGenerator:
    """Generates UUIDv7s that never repeat and never decrease, even if the clock goes back.

    The 122 free bits are one number: milliseconds in the high bits, a 74-bit counter in the low
    ones. A new millisecond starts the counter at a random value; otherwise the number grows by
    one, and a carry out of the counter borrows the next millisecond. The random start has only
    72 bits, so that the counter can grow.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = Lock()
        self._last = -1

    def next_id(self) -> str:
        with self._lock:
            now = self._clock.now()
            if now > self._last >> 74:
                self._last = now << 74 | int.from_bytes(self._clock.random(9), "big")
            else:
                self._last += 1
            return _uuid7_text(self._last)


def new_event_id(clock: Clock) -> str:
    """Return one id, ordered by its millisecond only; a series needs EventIdGenerator."""
    return EventIdGenerator(clock).next_id()


# The same id is parsed many times while its message is on its way.
@lru_cache(maxsize=16_384)
def parse_event_id(text: str) -> bytes:
    """Return the 16 bytes of an event id."""
    if not _is_uuid7(text):
        raise _invalid_id("event id", text, _UUID7_RULE)
    return bytes.fromhex(text.replace("-", ""))


def format_event_id(data: bytes) -> str:
    """Return the text of an event id stored as 16 bytes."""
    text = _insert_dashes(data.hex())
    if not _is_uuid7(text):
        raise _invalid_id("event id", data.hex(), _UUID7_RULE)
    return text


def check_agent_id(value: str) -> str:
    if not _is_name(value):
        raise _invalid_id("agent id", value, _NAME_RULE)
    return value


def check_node_id(value: str) -> str:
    if not _is_name(value):
        raise _invalid_id("node id", value, _NAME_RULE)
    return value


def check_msg_id(value: str) -> str:
    if not _is_msg_id(value):
        raise _invalid_id("message id", value, _MSG_ID_RULE)
    return value


def check_digest(value: str) -> str:
    if not _is_digest(value):
        raise _invalid_id("digest", value, _DIGEST_RULE)
    return value


def _uuid7_text(number: int) -> str:
    return "%08x-%04x-7%03x-%04x-%012x" % (  # noqa: UP031 - twice as fast as an f-string
        number >> 90,
        number >> 74 & 0xFFFF,
        number >> 62 & 0xFFF,
        number >> 48 & 0x3FFF | 0x8000,
        number & 0xFFFF_FFFF_FFFF,
    )


def _insert_dashes(digits: str) -> str:
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def _invalid_id(what: str, value: str, rule: str) -> InvalidId:
    shown = value if len(value) <= 40 else value[:40] + "…"
    return InvalidId(f"{what} {shown!r} is not valid: {rule}")
