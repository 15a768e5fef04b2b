"""Time that passes only when told to."""

from random import Random


class ManualClock:
    """A clock for tests and simulations: it stands still, and its randomness repeats."""

    def __init__(self, now: int = 0, seed: int = 0) -> None:
        self._now = now
        self._random = Random(seed)

    def now(self) -> int:
        return self._now

    def advance(self, ms: int) -> None:
        self._now += ms

    def set(self, ms: int) -> None:
        """Jump to this moment, which may be in the past."""
        self._now = ms

    def random(self, size: int) -> bytes:
        return self._random.randbytes(size)
