"""Moments as models read them."""

from datetime import UTC, datetime


def format_moment(millis: int | None) -> str:
    """ISO 8601 in UTC, to the second; empty for no moment."""
    if millis is None:
        return ""
    return datetime.fromtimestamp(millis / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def format_time_of_day(millis: int) -> str:
    """The local time of day, to the minute."""
    return datetime.fromtimestamp(millis / 1000).strftime("%H:%M")
