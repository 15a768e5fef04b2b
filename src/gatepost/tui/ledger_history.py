"""Ledgers as they were read in the last two minutes, for sparklines."""

from collections import deque
from itertools import pairwise

from gatepost.ledger import Ledger

BUCKET_MS = 2000
_BUCKETS = 60
_BARS = "▁▂▃▄▅▆▇█"


class LedgerHistory:
    def __init__(self) -> None:
        self._last: deque[tuple[int, Ledger]] = deque(maxlen=_BUCKETS + 1)

    def note(self, ledger: Ledger, at_ms: int) -> None:
        bucket = at_ms // BUCKET_MS
        if self._last and self._last[-1][0] == bucket:
            self._last.pop()
        self._last.append((bucket, ledger))

    def levels(self, name: str, now_ms: int, width: int) -> list[int]:
        """A term at the end of each of the last buckets."""
        if not self._last:
            return [0] * width
        now = now_ms // BUCKET_MS
        known = {bucket: getattr(ledger, name) for bucket, ledger in self._last}
        level = getattr(self._last[0][1], name)
        for bucket in sorted(known):
            if bucket <= now - width:
                level = known[bucket]
        found = []
        for bucket in range(now - width + 1, now + 1):
            level = known.get(bucket, level)
            found.append(level)
        return found

    def growth(self, name: str, now_ms: int, width: int) -> list[int]:
        """How much a term grew in each of the last buckets."""
        levels = self.levels(name, now_ms, width + 1)
        return [max(0, new - old) for old, new in pairwise(levels)]


def draw_sparkline(values: list[int]) -> str:
    most = max(values, default=0)
    if not most:
        return _BARS[0] * len(values)
    return "".join(_BARS[(value * (len(_BARS) - 1) + most - 1) // most] for value in values)
