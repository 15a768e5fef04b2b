"""Where things stand on an axis, and where to put its ticks."""

import math
from collections.abc import Sequence

from msgspec import Struct

from gatepost.pipeline.report import figures

_MINUTE = 60_000
_HOUR = 60 * _MINUTE
_DAY = 24 * _HOUR
_TIMES = (
    *(_MINUTE * step for step in (5, 10, 15, 30)),
    *(_HOUR * step for step in (1, 2, 3, 6, 12)),
    *(_DAY * step for step in (1, 2, 7, 14, 28, 56, 112, 364)),
)
# Round lengths of time, in ms, which people know how long they are.
_LENGTHS = (
    *(1, 2, 5, 10, 20, 50, 100, 200, 500),
    *(1000, 2000, 5000, 10_000, 30_000),
    *(_MINUTE, 5 * _MINUTE, 15 * _MINUTE),
    *(_HOUR, 3 * _HOUR, 12 * _HOUR, _DAY, 7 * _DAY, 30 * _DAY),
)


class Linear(Struct, frozen=True):
    """From values to places, evenly."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        share = (value - self.low) / ((self.high - self.low) or 1)
        return round(self.start + share * (self.end - self.start), 1)


class Log(Struct, frozen=True):
    """Equal ratios are equally far apart; nothing is below `low`."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        share = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        return round(self.start + share * (self.end - self.start), 1)


class Tick(Struct, frozen=True):
    """`major` begins a day."""

    at: float
    label: str
    major: bool = False


def durations(values: Sequence[float]) -> tuple[float, float, list[Tick]]:
    """A range of round lengths of time that holds all values, and at most seven ticks."""
    least, most = max(1, min(values, default=1)), max(2, *values, 2)
    low = max(length for length in _LENGTHS if length <= least)
    high = next((length for length in _LENGTHS if length >= most), most)
    inside = [length for length in _LENGTHS if low <= length <= high]
    every = math.ceil(len(inside) / 7)
    ticks = [Tick(length, figures.millis(length)) for length in reversed(inside[::-1][::every])]
    return low, high, ticks


def top(most: float) -> float:
    """The next round number: 1, 2 or 5 with zeros."""
    if most <= 0:
        return 1
    unit = 10.0 ** math.floor(math.log10(most))
    return next(unit * step for step in (1, 2, 5, 10) if most <= unit * step * 1.000001)


def times(first: int, last: int, most: int) -> list[Tick]:
    """Round UTC times; a day's first tick says which day it is."""
    step = next((s for s in _TIMES if (last - first) / s < most), _TIMES[-1])
    begin = -(-first // step) * step
    return [_time(at) for at in range(begin, last + 1, step)]


def _time(at: int) -> Tick:
    midnight = at % _DAY == 0
    return Tick(at, figures.day(at) if midnight else figures.clock(at), midnight)
