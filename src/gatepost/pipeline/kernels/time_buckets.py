"""Rounds times up to three digits, into buckets: exact enough to read, and few to count."""

from typing import Final

import numpy as np

from gatepost.pipeline.kernels.columns import Numbers

# One bucket for every millisecond below a second, then 900 from each power of ten to the next.
_FINE_BUCKETS = 1000
_BUCKETS_PER_POWER = 900
_POWERS = 10 ** np.arange(3, 14)

BUCKET_COUNT: Final = _FINE_BUCKETS + _BUCKETS_PER_POWER * (len(_POWERS) - 1) + 1


def bucket_of(ms: Numbers) -> Numbers:
    """The bucket of each time; negative times count as 0, and the longest bucket has no limit."""
    ms = np.clip(ms, 0, _POWERS[-1])
    power = np.searchsorted(_POWERS, ms, side="right")
    lead = -(-ms // 10**power)
    return np.where(power == 0, ms, _FINE_BUCKETS + (power - 1) * _BUCKETS_PER_POWER + lead - 100)


def longest_time(steps: Numbers) -> Numbers:
    """The longest time in each bucket."""
    power, lead = np.divmod(np.maximum(steps - _FINE_BUCKETS, 0), _BUCKETS_PER_POWER)
    return np.where(steps < _FINE_BUCKETS, steps, (lead + 100) * 10 ** (power + 1))


def round_up_times(ms: Numbers) -> Numbers:
    return longest_time(bucket_of(ms))
