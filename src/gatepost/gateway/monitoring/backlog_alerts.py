"""Alerts on backlogs that keep growing, raised once per episode.

`GrowthDetector` has no clock and no journal: it receives levels and returns changes.
`BacklogAlerts` feeds it the open deliveries to each peer and the mail in each mailbox.
"""

import logging
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Literal

from msgspec import Struct

from gatepost.config import AlertsSettings as Settings
from gatepost.core.gateway_core import Core
from gatepost.delivery.delivery_reads import open_by_node
from gatepost.journal import Tx
from gatepost.mailbox.counts import mailbox_levels

log = logging.getLogger(__name__)

BacklogKey = tuple[str, str]  # "node" or "mailbox", and its name

_SAMPLES_PER_WINDOW = 40
_MIN_EVERY_SECS, _MAX_EVERY_SECS = 0.05, 15.0


class BacklogChange(Struct, frozen=True):
    """An alarm on a backlog was raised or cleared; `levels` is (before, after)."""

    backlog: BacklogKey
    event: Literal["raised", "cleared"]
    levels: tuple[int, int]


class GrowthDetector:
    """Raises and clears alarms from a series of backlog levels.

    An alarm is raised if for a whole `window` (ms) the backlog was never below its level at the
    start of the window, and is now larger than that level by `least`. It is cleared once the
    backlog has shrunk from its peak by `least`, or is empty; then the next episode may begin. The
    window of a backlog that was empty begins with its last empty sample, so that a burst is not
    taken for growth.
    """

    def __init__(self, window: int, least: int) -> None:
        self._window = window
        self._min_growth = least
        self._series: dict[BacklogKey, deque[tuple[int, int]]] = {}
        self._peaks: dict[BacklogKey, int] = {}
        self._sampled_at: int | None = None

    @property
    def alarms(self) -> list[BacklogKey]:
        return sorted(self._peaks)

    def add_sample(self, now: int, levels: Mapping[BacklogKey, int]) -> list[BacklogChange]:
        """Return the alarms these levels raise or clear. A backlog not in `levels` is empty."""
        changes = [
            change
            for backlog in sorted({*self._series, *levels})
            if (change := self._update_series(now, backlog, levels.get(backlog, 0))) is not None
        ]
        self._sampled_at = now
        self._series = {
            key: each for key, each in self._series.items() if any(map(_sample_level, each))
        }
        return changes

    def _update_series(self, now: int, backlog: BacklogKey, level: int) -> BacklogChange | None:
        series = self._series.get(backlog)
        if series is None:
            series = self._series[backlog] = deque()
            if self._sampled_at is not None:
                # It was empty at the previous sample.
                series.append((self._sampled_at, 0))
        series.append((now, level))
        while len(series) > 1 and series[1][0] <= now - self._window:
            series.popleft()
        if backlog in self._peaks:
            return self._check_cleared(now, backlog, level)
        start = series[0][1]
        if series[0][0] > now - self._window or min(map(_sample_level, series)) < start:
            return None
        if level < start + self._min_growth:
            return None
        self._peaks[backlog] = level
        return BacklogChange(backlog, "raised", (start, level))

    def _check_cleared(self, now: int, backlog: BacklogKey, level: int) -> BacklogChange | None:
        peak = self._peaks[backlog] = max(self._peaks[backlog], level)
        if level and level > peak - self._min_growth:
            return None
        del self._peaks[backlog]
        # The episode is over: the next one counts levels from now on.
        self._series[backlog] = deque([(now, level)])
        return BacklogChange(backlog, "cleared", (peak, level))


def _sample_level(sample: tuple[int, int]) -> int:
    return sample[1]


class BacklogAlerts:
    """Samples backlogs and reports changes; call `check_backlogs` every `every_secs`."""

    def __init__(self, core: Core, settings: Settings) -> None:
        self._core = core
        self._detector = GrowthDetector(int(settings.backlog_secs * 1000), settings.backlog_least)
        # Changes that are not committed yet; the next check tries again.
        self._unreported: list[BacklogChange] = []
        self._minutes = settings.backlog_secs / 60
        self.every_secs = min(
            max(settings.backlog_secs / _SAMPLES_PER_WINDOW, _MIN_EVERY_SECS), _MAX_EVERY_SECS
        )

    @property
    def growing_backlogs(self) -> Iterable[BacklogKey]:
        return self._detector.alarms

    def growing_mailboxes(self) -> list[str]:
        """The agents that do not keep up with their mail."""
        return [name for what, name in self.growing_backlogs if what == "mailbox"]

    def describe_growth(self) -> list[str]:
        return [f"the backlog of {what} {name} grows" for what, name in self.growing_backlogs]

    async def check_backlogs(self) -> None:
        levels = await self._core.read(self._read_levels)
        self._unreported += self._detector.add_sample(self._core.clock.now(), levels)
        while self._unreported:
            await self._report_change(self._unreported[0])
            del self._unreported[0]

    def _read_levels(self, tx: Tx) -> dict[BacklogKey, int]:
        to_nodes = open_by_node(tx, self._core.node.id)
        levels = {("node", node): count for node, count in to_nodes.items()}
        return levels | {("mailbox", name): count for name, count in mailbox_levels(tx).items()}

    async def _report_change(self, change: BacklogChange) -> None:
        (what, name), (before, after) = change.backlog, change.levels
        where = f"for {name}" if what == "node" else f"in the mailbox {name}"
        if change.event == "cleared":
            log.info("the backlog %s shrinks again: %d, from %d", where, after, before)
            return
        detail = f"the backlog {where} grew from {before} to {after} in {self._minutes:g} min"
        log.warning("%s, and does not stop", detail)
        raise_ = self._core.delivery.incidents.raise_

        def note(tx: Tx) -> None:
            raise_(tx, "backlog_growth", f"{what}/{name}@{tx.now}", detail)

        await self._core.commit(note)
