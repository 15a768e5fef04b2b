"""The ledger of this gateway, counted once for all who ask at about the same time."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from msgspec import Struct

from gatepost.clock import Clock
from gatepost.delivery.delivery_reads import read_ledger
from gatepost.ledger import Ledger

log = logging.getLogger(__name__)

# Counting takes at most this share of the time, however many ask and however many messages there
# are, and a count is shown for this long at least.
_PAUSE_SHARE = 20
_PAUSE_SECS = 0.2


class DatedLedger(Struct, frozen=True):
    """A ledger, and when it was counted."""

    ledger: Ledger
    at: int


class ReadJournal(Protocol):
    def __call__(self, query: Callable[[Any], Ledger], /) -> Awaitable[Ledger]: ...


class LedgerCounter:
    def __init__(self, read: ReadJournal, clock: Clock) -> None:
        self._read = read
        self._clock = clock
        self._counting: asyncio.Task[DatedLedger] | None = None
        self._last: DatedLedger | None = None
        self._fresh_until = 0.0

    async def count(self) -> DatedLedger:
        """The ledger as it is now, or was a moment ago."""
        loop = asyncio.get_running_loop()
        if self._last is not None and loop.time() < self._fresh_until:
            return self._last
        if self._counting is None or self._counting.done():
            self._counting = loop.create_task(self._count())
        return await asyncio.shield(self._counting)

    async def count_at(self, at: int) -> DatedLedger:
        """The ledger as it was at a moment."""
        return DatedLedger(await self._read(lambda tx: read_ledger(tx, at)), at)

    async def _count(self) -> DatedLedger:
        loop = asyncio.get_running_loop()
        started, at = loop.time(), self._clock.now()
        self._last = DatedLedger(await self._read(read_ledger), at)
        took = loop.time() - started
        self._fresh_until = loop.time() + max(_PAUSE_SECS, _PAUSE_SHARE * took)
        return self._last

    def read_ledger(self, at: int | None, done: Callable[[Ledger | None], None]) -> None:
        """Count, and call back on the event loop; with None if that failed."""
        count = self.count() if at is None else self.count_at(at)
        task = asyncio.get_running_loop().create_task(count)
        task.add_done_callback(lambda counted: done(_counted_ledger(counted)))


def _counted_ledger(counted: "asyncio.Task[DatedLedger]") -> Ledger | None:
    if counted.cancelled():
        return None
    error = counted.exception()
    if error is not None:
        log.warning("the ledger could not be counted: %s", error)
        return None
    return counted.result().ledger
