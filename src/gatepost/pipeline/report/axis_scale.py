"""Scales of axes: from values to positions, and the ticks to label."""

import math
from collections.abc import Sequence

from msgspec import Struct

from gatepost.pipeline.report.formatting import (
    format_day,
    format_millis,
    format_time_of_day,
)

_MINUTE = 60_000
_HOUR = 60 * _MINUTE
_DAY = 24 * _HOUR
_TIME_STEPS = (
    *(1000 * step for step in (1, 2, 5, 10, 15, 30)),
    *(_MINUTE * step for step in (1, 2, 5, 10, 15, 30)),
    *(_HOUR * step for step in (1, 2, 3, 6, 12)),
    *(_DAY * step for step in (1, 2, 7, 14, 28, 56, 112, 364)),
)
# Durations in ms that people read easily.
_ROUND_DURATIONS = (
    *(1, 2, 5, 10, 20, 50, 100, 200, 500),
    *(1000, 2000, 5000, 10_000, 30_000),
    *(_MINUTE, 5 * _MINUTE, 15 * _MINUTE),
    *(_HOUR, 3 * _HOUR, 12 * _HOUR, _DAY, 7 * _DAY, 30 * _DAY),
)


class LinearScale(Struct, frozen=True):
    """Map values to positions, linearly."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        share = (value - self.low) / ((self.high - self.low) or 1)
        return round(self.start + share * (self.end - self.start), 1)


class LogScale(Struct, frozen=True):
    """Map values to positions, logarithmically; values below `low` count as `low`."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        share = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        return round(self.start + share * (self.end - self.start), 1)


class AxisTick(Struct, frozen=True):
    """A labelled position on an axis; a `major` tick begins a day."""

    at: float
    label: str
    major: bool = False


def duration_axis(values: Sequence[float]) -> tuple[float, float, list[AxisTick]]:
    """The round durations (low, high) that enclose all values, and at most seven ticks."""
    least, most = max(1, min(values, default=1)), max(2, *values, 2)
    low = max(length for length in _ROUND_DURATIONS if length <= least)
    high = next((length for length in _ROUND_DURATIONS if length >= most), most)
    inside = [length for length in _ROUND_DURATIONS if low <= length <= high]
    every = math.ceil(len(inside) / 7)
    ticks = [AxisTick(length, format_millis(length)) for length in reversed(inside[::-1][::every])]
    return low, high, ticks


def time_ticks(first: int, last: int, most: int) -> list[AxisTick]:
    """Ticks at round UTC times, normally at most `most`; a tick at midnight names its day."""
    step = next((s for s in _TIME_STEPS if (last - first) / s < most), _TIME_STEPS[-1])
    begin = -(-first // step) * step
    return [_time_tick(at, step) for at in range(begin, last + 1, step)]


def _time_tick(at: int, step: int) -> AxisTick:
    midnight = at % _DAY == 0
    return AxisTick(at, format_day(at) if midnight else format_time_of_day(at, step), midnight)
