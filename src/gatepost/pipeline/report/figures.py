"""Numbers and times as a person reads them: a unit on every one, no more digits than it has."""

from datetime import UTC, datetime

NONE = "–"

_UNITS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s"), (1, "ms"))
_SIZES = ("B", "KiB", "MiB", "GiB", "TiB")


def count(value: int) -> str:
    return f"{value:,}".replace(",", "\u202f")


def millis(value: float | None) -> str:
    """`340 ms`, `1.2 s`, `12 min`: two or three digits are enough."""
    if value is None:
        return NONE
    unit, name = next(((u, n) for u, n in _UNITS if abs(value) >= u), _UNITS[-1])
    amount = value / unit
    digits = 0 if amount >= 10 or amount == int(amount) else 1
    return f"{amount:.{digits}f}\u202f{name}"


def seconds(value: float | None) -> str:
    return NONE if value is None else millis(value * 1000)


def share(part: float, whole: float) -> str:
    """A part of a whole in percent; what is not nothing never reads as 0."""
    return NONE if not whole else percent(part / whole)


def percent(rate: float | None) -> str:
    if rate is None:
        return NONE
    value = rate * 100
    if 0 < value < 0.01:
        return "<\u202f0.01\u202f%"
    if 99.99 < value < 100:
        return ">\u202f99.99\u202f%"
    digits = 0 if value == round(value) else 1 if 1 <= value <= 99 else 2
    return f"{value:.{digits}f}\u202f%"


def size(value: float) -> str:
    for unit in _SIZES:
        if value < 1024 or unit == _SIZES[-1]:
            break
        value /= 1024
    return f"{value:.0f}\u202fB" if unit == "B" else f"{value:.1f}\u202f{unit}"


def rate(per_second: float) -> str:
    """Deliveries a second; by the minute or hour where that is less than one."""
    units = ((1, "s"), (60, "min"), (3600, "h"))
    factor, unit = next((u for u in units if per_second * u[0] >= 1), units[-1])
    value = per_second * factor
    return f"{value:.0f}/{unit}" if value >= 10 or value == int(value) else f"{value:.1f}/{unit}"


def moment(at: int) -> str:
    """`2026-03-02 22:30`, in UTC."""
    return f"{_utc(at):%Y-%m-%d %H:%M}"


def clock(at: int) -> str:
    return f"{_utc(at):%H:%M}"


def day(at: int) -> str:
    return f"{_utc(at).day} {_utc(at):%b}"


def plural(value: int, noun: str) -> str:
    return f"{count(value)} {noun}" if value == 1 else f"{count(value)} {noun}s"


def words(code: str) -> str:
    """`dead_letter_burst` as text."""
    return code.replace("_", " ")


def _utc(at: int) -> datetime:
    return datetime.fromtimestamp(at / 1000, UTC)
