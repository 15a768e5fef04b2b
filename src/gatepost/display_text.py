"""Text for people: counts, sizes, times, payloads. What others wrote cannot control a terminal."""

import re
from datetime import datetime

import msgspec

from gatepost.durations import format_duration

_CONTROL_CHARS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def escape_control_chars(text: str) -> str:
    """`text` with control characters escaped, so that it cannot control the terminal."""
    return _CONTROL_CHARS.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def one_line(text: str) -> str:
    """`text` on one line, without control characters."""
    return escape_control_chars(text).replace("\t", " ").replace("\n", " ")


def payload_text(raw: msgspec.Raw | msgspec.UnsetType) -> str:
    """A payload for display: text as text, anything else as JSON."""
    value = None if isinstance(raw, msgspec.UnsetType) else msgspec.json.decode(raw)
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def format_count(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def format_size(count: int) -> str:
    amount, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB"):
        if amount < 1024:
            break
        amount, unit = amount / 1024, larger
    return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"


def format_age(at_ms: int, now_ms: int) -> str:
    """The time from one epoch millisecond to another: `5 min`."""
    seconds = (now_ms - at_ms) // 1000
    return format_duration(seconds) if seconds > 0 else "0 s"


def format_time(at_ms: int) -> str:
    """An epoch millisecond as local time: `2026-03-01 17:05:59`."""
    return datetime.fromtimestamp(at_ms / 1000).strftime("%Y-%m-%d %H:%M:%S")
