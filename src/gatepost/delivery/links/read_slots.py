"""A limit on reads from disk for all links together."""

from collections import deque
from collections.abc import Callable


class ReadSlots:
    """Lets `count` reads run at a time; the others wait for their turn."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_starting = False

    def run(self, read: Callable[[], None]) -> None:
        """Call `read` now or later. It calls `release` once it has ended."""
        self._waiting.append(read)
        self._start_reads()

    def release(self) -> None:
        self._free += 1
        self._start_reads()

    def _start_reads(self) -> None:
        if self._is_starting:
            return
        self._is_starting = True
        try:
            while self._free and self._waiting:
                self._free -= 1
                self._waiting.popleft()()
        finally:
            self._is_starting = False
