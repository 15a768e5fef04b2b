"""Moments as people type them: a time of day, Unix seconds, or a time from now."""

import re
from datetime import datetime

from gatepost.cli.problems import usage_problem

_UNIT_SECS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_match_delay = re.compile(r"\+(\d+(?:\.\d+)?)([smhd]?)").fullmatch
_match_seconds = re.compile(r"\d+(?:\.\d+)?").fullmatch


def parse_moment(text: str, now: float) -> float:
    """Return Unix seconds; a time without a time zone is local time."""
    if delay := _match_delay(text):
        return now + float(delay[1]) * _UNIT_SECS[delay[2] or "s"]
    if _match_seconds(text):
        return float(text)
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        raise usage_problem(
            f"{text!r} is no time: give one like 2030-01-31T08:00, or +90s, +15m, +2h, +1d"
        ) from None
