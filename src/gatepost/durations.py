"""Durations in words."""

_TIME_UNITS = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def format_duration(seconds: float) -> str:
    """A duration with two figures: `340 ms`, `12 s`, `3.5 min`, `5 h`."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    secs, unit = next((s, unit) for s, unit in _TIME_UNITS if seconds >= s)
    amount = seconds / secs
    exact = seconds % secs == 0 or amount >= 9.95
    return f"{amount:.0f} {unit}" if exact else f"{amount:.1f} {unit}"
