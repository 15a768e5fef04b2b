"""Numbers and times as text for people: always with a unit, and with few digits."""

from datetime import UTC, datetime

NO_VALUE = "–"

_DURATION_UNITS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s"), (1, "ms"))
_MINUTE_MS = 60_000
_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def format_count(value: int) -> str:
    return f"{value:,}".replace(",", "\u202f")


def format_millis(value: float | None) -> str:
    """A duration with two or three digits: `340 ms`, `1.2 s`, `12 min`."""
    if value is None:
        return NO_VALUE
    unit, name = next(((u, n) for u, n in _DURATION_UNITS if abs(value) >= u), _DURATION_UNITS[-1])
    amount = value / unit
    digits = 0 if amount >= 10 or amount == int(amount) else 1
    return f"{amount:.{digits}f}\u202f{name}"


def format_seconds(value: float | None) -> str:
    return NO_VALUE if value is None else format_millis(value * 1000)


def format_share(part: float, whole: float) -> str:
    """A part of a whole in percent; a part above zero never reads as 0."""
    return NO_VALUE if not whole else format_percent(part / whole)


def format_percent(rate: float | None) -> str:
    if rate is None:
        return NO_VALUE
    value = rate * 100
    if 0 < value < 0.01:
        return "<\u202f0.01\u202f%"
    if 99.99 < value < 100:
        return ">\u202f99.99\u202f%"
    digits = 0 if value == round(value) else 1 if 1 <= value <= 99 else 2
    return f"{value:.{digits}f}\u202f%"


def format_bytes(value: float) -> str:
    for unit in _BYTE_UNITS:
        if value < 1024 or unit == _BYTE_UNITS[-1]:
            break
        value /= 1024
    return f"{value:.0f}\u202fB" if unit == "B" else f"{value:.1f}\u202f{unit}"


def format_rate(per_second: float) -> str:
    """Deliveries per second, or per minute or hour where the rate is below one."""
    units = ((1, "s"), (60, "min"), (3600, "h"))
    factor, unit = next((u for u in units if per_second * u[0] >= 1), units[-1])
    value = per_second * factor
    return f"{value:.0f}/{unit}" if value >= 10 or value == int(value) else f"{value:.1f}/{unit}"


def format_timestamp(at: int) -> str:
    """An epoch time in UTC, as `2026-03-02 22:30`."""
    return f"{_utc_datetime(at):%Y-%m-%d %H:%M}"


def format_step_start(at: int, step: int) -> str:
    """The start of a step in UTC, with seconds if the step is shorter than a minute."""
    return f"{_utc_datetime(at):%Y-%m-%d %H:%M:%S}" if step < _MINUTE_MS else format_timestamp(at)


def format_time_of_day(at: int, step: int = 60_000) -> str:
    """The time of day in UTC, with seconds for steps that are shorter than a minute."""
    return f"{_utc_datetime(at):%H:%M:%S}" if step < _MINUTE_MS else f"{_utc_datetime(at):%H:%M}"


def format_day(at: int) -> str:
    return f"{_utc_datetime(at).day} {_utc_datetime(at):%b}"


def format_plural(value: int, noun: str, plural: str = "") -> str:
    many = plural or f"{noun}s"
    return f"{format_count(value)} {noun if value == 1 else many}"


def spell_out(code: str) -> str:
    """`dead_letter_burst` as `dead letter burst`."""
    return code.replace("_", " ")


def _utc_datetime(at: int) -> datetime:
    return datetime.fromtimestamp(at / 1000, UTC)
