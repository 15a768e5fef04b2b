"""Limits the unanswered calls of a client; further callers wait in order."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gatepost.errors import DeadlineExceeded


class OperationSlots:
    """A counting semaphore with a deadline; a free slot goes to the first waiter."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiters: deque[asyncio.Future[None]] = deque()

    @property
    def is_full(self) -> bool:
        return self._free <= 0

    def take_free(self) -> None:
        """Take a slot; only call this when `is_full` is false."""
        self._free -= 1

    async def take(self, deadline: float) -> None:
        """Take a slot, waiting for it if need be."""
        if self.is_full:
            await self.wait_for_free(deadline)
        else:
            self.take_free()

    async def wait_for_free(self, deadline: float) -> None:
        """Wait for a slot and take it."""
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(ready)
        try:
            async with asyncio.timeout_at(deadline):
                await ready
        except TimeoutError:
            self._leave_queue(ready)
            raise DeadlineExceeded(
                "too many operations are unanswered; this one was not sent"
            ) from None
        except asyncio.CancelledError:
            self._leave_queue(ready)
            raise

    def release_slots(self, count: int) -> None:
        while count and self._waiters:
            ready = self._waiters.popleft()
            if not ready.done():
                ready.set_result(None)
                count -= 1
        self._free += count

    def _leave_queue(self, ready: "asyncio.Future[None]") -> None:
        """Leave the queue; a waiter that just got a slot passes it on."""
        if ready.done() and not ready.cancelled():
            self.release_slots(1)
        ready.cancel()


class LongWaitSlots:
    """Limits the calls that wait at the gateway.

    The gateway stops reading from a client with about a thousand unanswered operations, so only
    some of these may be long waits.
    """

    def __init__(self, count: int = 256) -> None:
        self._free = asyncio.Semaphore(count)

    @asynccontextmanager
    async def hold(self, deadline: float) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout_at(deadline):
                await self._free.acquire()
        except TimeoutError:
            raise DeadlineExceeded("too many calls wait already; this one was not sent") from None
        try:
            yield
        finally:
            self._free.release()
