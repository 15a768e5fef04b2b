"""Rounds times up to three digits, into buckets: exact enough to read, and few to count."""

from typing import Final

import numpy as np

from gatepost.pipeline.tables.facts import Column

# One bucket for every millisecond below a second, then 900 from each power of ten to the next.
_FINE = 1000
_STEPS = 900
_POWERS = 10 ** np.arange(3, 14)

MANY: Final = _FINE + _STEPS * (len(_POWERS) - 1) + 1


def steps_of(ms: Column) -> Column:
    """The bucket of each time; negative times count as 0, and the longest bucket has no limit."""
    ms = np.clip(ms, 0, _POWERS[-1])
    power = np.searchsorted(_POWERS, ms, side="right")
    lead = -(-ms // 10**power)
    return np.where(power == 0, ms, _FINE + (power - 1) * _STEPS + lead - 100)


def times_of(steps: Column) -> Column:
    """The longest time in each bucket."""
    power, lead = np.divmod(np.maximum(steps - _FINE, 0), _STEPS)
    return np.where(steps < _FINE, steps, (lead + 100) * 10 ** (power + 1))


def rounded(ms: Column) -> Column:
    return times_of(steps_of(ms))
