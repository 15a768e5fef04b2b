"""Order within pairs: consecutive pair numbers, and strictly increasing times."""

import numpy as np
from msgspec import Struct

from gatepost.pipeline.synth.mesh import IntArray

# An offset larger than any time, which keeps the times of different pairs apart.
_PAIR_OFFSET = 1 << 41


class PairOrder:
    """The rows of one chunk, sorted by pair.

    `rank` is the position of a row within its pair, `group` the position of its pair in the chunk.
    """

    def __init__(self, pair: IntArray) -> None:
        self.pair = pair
        new = np.ones(len(pair), dtype=bool)
        new[1:] = pair[1:] != pair[:-1]
        self.first_rows = np.flatnonzero(new)
        self.last_rows = np.append(self.first_rows[1:], len(pair)) - 1
        self.group = np.cumsum(new) - 1
        self.rank = np.arange(len(pair)) - self.first_rows[self.group]

    def assign_pair_numbers(self, counters: IntArray) -> IntArray:
        """Assign the next pair number to each row; `counters` holds the last one of each pair."""
        numbers: IntArray = counters[self.pair] + self.rank + 1
        counters[self.pair[self.last_rows]] = numbers[self.last_rows]
        return numbers

    def order_times(self, times: IntArray, latest: IntArray) -> IntArray:
        """Delay times where needed, so that each is later than the one before it in its pair.

        `latest` holds the last time of each pair, from chunk to chunk.
        """
        if not len(times):
            return times
        free = times - self.rank
        free[self.first_rows] = np.maximum(
            free[self.first_rows], latest[self.pair[self.first_rows]] + 1
        )
        free += self.group * _PAIR_OFFSET
        ordered = np.maximum.accumulate(free) - self.group * _PAIR_OFFSET + self.rank
        latest[self.pair[self.last_rows]] = ordered[self.last_rows]
        return np.asarray(ordered, dtype=np.int64)


class PairProgress(Struct):
    """The last pair number, acceptance time and processing time of each pair."""

    last_number: IntArray
    last_accepted: IntArray
    last_processed: IntArray

    @classmethod
    def for_pairs(cls, pairs: int) -> "PairProgress":
        return cls(*(np.zeros(pairs, dtype=np.int64) for _ in range(3)))
