"""Waits of client operations, bounded in time and ended together when the gateway stops."""

import asyncio
from typing import Any


class WaitRegistry:
    """Knows every future an operation waits for. No wait lasts longer than `max_secs`."""

    def __init__(self, max_secs: float) -> None:
        self._max_secs = max_secs
        self._futures: set[asyncio.Future[Any]] = set()
        self.is_stopping = False

    @property
    def open_waits(self) -> int:
        return len(self._futures)

    async def wait_for(self, future: "asyncio.Future[Any]", secs: float) -> bool:
        """Return whether `future` was resolved in time; stopping the gateway ends the wait."""
        if self.is_stopping:
            return False
        self._futures.add(future)
        try:
            await asyncio.wait([future], timeout=min(secs, self._max_secs))
        finally:
            self._futures.discard(future)
        return is_resolved(future)

    def end_waits(self) -> None:
        """End all waits because the gateway stops; each client gets the reply for a timeout."""
        self.is_stopping = True
        for future in self._futures:
            future.cancel()


def is_resolved(future: "asyncio.Future[Any]") -> bool:
    return future.done() and not future.cancelled()
