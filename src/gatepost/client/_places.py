"""How much a client may have under way: beyond it, callers wait in line."""

import asyncio
from collections import deque

from gatepost.errors import DeadlineExceeded


class Places:
    """A place that becomes free goes to the first in line, so nobody is overtaken."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._line: deque[asyncio.Future[None]] = deque()

    @property
    def full(self) -> bool:
        return self._free <= 0

    def take(self) -> None:
        """Only when not full."""
        self._free -= 1

    async def wait(self, deadline: float) -> None:
        """Take a place once there is one."""
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.append(ready)
        try:
            async with asyncio.timeout_at(deadline):
                await ready
        except TimeoutError:
            self._leave(ready)
            raise DeadlineExceeded(
                "too many operations are under way; this one was not sent"
            ) from None
        except asyncio.CancelledError:
            self._leave(ready)
            raise

    def release(self, count: int) -> None:
        while count and self._line:
            ready = self._line.popleft()
            if not ready.done():
                ready.set_result(None)
                count -= 1
        self._free += count

    def _leave(self, ready: "asyncio.Future[None]") -> None:
        """Whoever leaves the line just as its turn comes hands the place to the next."""
        if ready.done() and not ready.cancelled():
            self.release(1)
        ready.cancel()
