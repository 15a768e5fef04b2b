"""Counts changes, and lets callers wait for them."""

import asyncio
import contextlib
from collections.abc import Callable


class ChangeCounter:
    """Counts changes, and wakes callers that wait for the next change or for a given count."""

    def __init__(self) -> None:
        self.count = 0
        self._changed = asyncio.Event()

    def note_change(self) -> None:
        self.advance_to(self.count + 1)

    def advance_to(self, count: int) -> None:
        self.count = count
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait_for_change(self, seen: int, secs: float) -> None:
        """Return once `count` differs from `seen`, or time is up."""
        await self._wait_while(lambda: self.count == seen, secs)

    async def wait_until_reached(self, count: int, secs: float) -> None:
        """Return once this many changes were counted, or time is up."""
        await self._wait_while(lambda: self.count < count, secs)

    async def _wait_while(self, must_wait: Callable[[], bool], secs: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(secs):
                while must_wait():
                    await self._changed.wait()
