"""A clock that stands still until told otherwise, with repeatable randomness."""

from random import Random


class StillClock:
    def __init__(self, now: int = 0, seed: int = 0) -> None:
        self.time = now
        self._random = Random(seed)

    def now(self) -> int:
        return self.time

    def random(self, size: int) -> bytes:
        return self._random.randbytes(size)
