"""Virtual time: the next action is the one that was planned for the earliest moment."""

import heapq
from collections.abc import Callable
from itertools import count
from random import Random

Action = Callable[[], object]

# A moment of the year 2027: ids and expiries look at the clock as if it were real.
START = 1_800_000_000_000


class VirtualTimer:
    """A planned action, which may still be cancelled."""

    __slots__ = ("action", "when")

    def __init__(self, when: int, action: Action | None) -> None:
        self.when = when
        self.action = action

    def cancel(self) -> None:
        self.action = None


class VirtualLoop:
    """Time in milliseconds. Actions planned for the same moment run in the order of planning."""

    def __init__(self) -> None:
        self.now = START
        self._planned: list[tuple[int, int, VirtualTimer]] = []
        self._order = count()

    def call_at(self, when: int, action: Action) -> VirtualTimer:
        timer = VirtualTimer(max(when, self.now), action)
        heapq.heappush(self._planned, (timer.when, next(self._order), timer))
        return timer

    def call_after(self, ms: int, action: Action) -> VirtualTimer:
        return self.call_at(self.now + ms, action)

    def run(self, until: int, enough: Callable[[], bool] = lambda: False) -> bool:
        """Let time pass up to `until`, or until `enough` is true; returns whether it was."""
        while self._planned and self._planned[0][0] <= until:
            when, _, timer = heapq.heappop(self._planned)
            if timer.action is None:
                continue
            self.now = when
            timer.action()
            if enough():
                return True
        self.now = max(self.now, until)
        return enough()


class SimulatedClock:
    """One machine's clock: virtual time, wrong by `offset`, and randomness of its own.

    `highest` is the latest time that anybody read on it.
    """

    def __init__(self, loop: VirtualLoop, seed: int | str) -> None:
        self._loop = loop
        self._random = Random(seed)
        self.offset = 0
        self.highest = 0

    def now(self) -> int:
        now = self._loop.now + self.offset
        self.highest = max(self.highest, now)
        return now

    def random(self, size: int) -> bytes:
        return self._random.randbytes(size)
