"""Backlogs that grow and do not stop: noticed once an episode, and said so.

`Growth` knows no clock and no journal: it is shown levels and says what changed. `Alerts` shows it
what waits for each other gateway, and what waits in each mailbox.
"""

import logging
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Literal

from msgspec import Struct

from gatepost.config import Alerts as Settings
from gatepost.gateway.core import Core
from gatepost.journal import Tx

log = logging.getLogger(__name__)

Backlog = tuple[str, str]  # "node" or "mailbox", and its name

# What is on its way to another gateway, and not settled.
_TO_NODES = """
SELECT node, count(*) FROM delivery WHERE processed_at IS NULL AND node IS NOT NULL AND node <> ?
GROUP BY node
"""
_IN_MAILBOXES = "SELECT name, waiting + in_flight FROM mailbox WHERE waiting + in_flight > 0"
_SAMPLES = 40
_LEAST_SECS, _MOST_SECS = 0.05, 15.0


class Change(Struct, frozen=True):
    """A backlog began to be an alarm, or ceased to; `grew` is (from, to)."""

    backlog: Backlog
    what: Literal["raised", "cleared"]
    grew: tuple[int, int]


class Growth:
    """A backlog grows if for a whole `window` (ms) it was never below its level at the start of
    the window, and is now larger than that by `least`. It is an alarm from then on, until it has
    shrunk from its height by as much, or is gone; then the next episode may begin.
    """

    def __init__(self, window: int, least: int) -> None:
        self._window = window
        self._least = least
        self._series: dict[Backlog, deque[tuple[int, int]]] = {}
        self._peaks: dict[Backlog, int] = {}
        self._seen_at: int | None = None

    @property
    def alarms(self) -> list[Backlog]:
        return sorted(self._peaks)

    def sample(self, now: int, levels: Mapping[Backlog, int]) -> list[Change]:
        """What is new, given these levels. What is not named has none."""
        changes = [
            change
            for backlog in sorted({*self._series, *levels})
            if (change := self._look(now, backlog, levels.get(backlog, 0))) is not None
        ]
        self._seen_at = now
        self._series = {key: each for key, each in self._series.items() if any(map(_level, each))}
        return changes

    def _look(self, now: int, backlog: Backlog, level: int) -> Change | None:
        series = self._series.get(backlog)
        if series is None:
            series = self._series[backlog] = deque()
            if self._seen_at is not None:
                # It was not there the last time we looked.
                series.append((self._seen_at, 0))
        series.append((now, level))
        while len(series) > 1 and series[1][0] <= now - self._window:
            series.popleft()
        if backlog in self._peaks:
            return self._calm(now, backlog, level)
        start = series[0][1]
        if series[0][0] > now - self._window or min(map(_level, series)) < start:
            return None
        if level < start + self._least:
            return None
        self._peaks[backlog] = level
        return Change(backlog, "raised", (start, level))

    def _calm(self, now: int, backlog: Backlog, level: int) -> Change | None:
        peak = self._peaks[backlog] = max(self._peaks[backlog], level)
        if level and level > peak - self._least:
            return None
        del self._peaks[backlog]
        # What it did before is told; only what it does from here on counts.
        self._series[backlog] = deque([(now, level)])
        return Change(backlog, "cleared", (peak, level))


def _level(sample: tuple[int, int]) -> int:
    return sample[1]


class Alerts:
    """`look` every `every_secs`."""

    def __init__(self, core: Core, settings: Settings) -> None:
        self._core = core
        self._growth = Growth(int(settings.backlog_secs * 1000), settings.backlog_least)
        # What could not be written down yet.
        self._untold: list[Change] = []
        self._minutes = settings.backlog_secs / 60
        self.every_secs = min(max(settings.backlog_secs / _SAMPLES, _LEAST_SECS), _MOST_SECS)

    @property
    def growing(self) -> Iterable[Backlog]:
        return self._growth.alarms

    async def look(self) -> None:
        levels = await self._core.read(self._levels)
        self._untold += self._growth.sample(self._core.clock.now(), levels)
        while self._untold:
            await self._tell(self._untold[0])
            del self._untold[0]

    def _levels(self, tx: Tx) -> dict[Backlog, int]:
        to_nodes = {("node", row[0]): row[1] for row in tx.rows(_TO_NODES, (self._core.node.id,))}
        return to_nodes | {("mailbox", row[0]): row[1] for row in tx.rows(_IN_MAILBOXES)}

    async def _tell(self, change: Change) -> None:
        (what, name), (before, after) = change.backlog, change.grew
        where = f"for {name}" if what == "node" else f"in the mailbox {name}"
        if change.what == "cleared":
            log.info("the backlog %s shrinks again: %d, from %d", where, after, before)
            return
        detail = f"the backlog {where} grew from {before} to {after} in {self._minutes:g} min"
        log.warning("%s, and does not stop", detail)
        raise_ = self._core.delivery.incidents.raise_

        def note(tx: Tx) -> None:
            raise_(tx, "backlog_growth", f"{what}/{name}@{tx.now}", detail)

        await self._core.commit(note)
