"""Wakes the sweep of tasks when a task misses its ETA or is due to be forgotten.

The sweep runs every few seconds in any case, for deadlines that only it knows. These two kinds are
known in advance, so the sweep runs at once when one of them is due.
"""

import asyncio
import contextlib
import math

from gatepost.core.gateway_core import Core
from gatepost.journal import Tx
from gatepost.tasks.task_table import Task

_SWEEP_SECS = 5.0
_NEXT_ETA = """
SELECT min(eta_at) FROM task
WHERE ended_at IS NULL AND late_at IS NULL AND requester_node IS NULL AND eta_at >= ?
"""
_NEXT_END = "SELECT min(ended_at) FROM task WHERE ended_at IS NOT NULL AND ended_at >= ?"


class TaskSweepTimer:
    """Used in the event loop. A deadline that a sweep could not handle waits for the next."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._keep = int(core.settings.hub.keep_tasks_secs * 1000)
        self._swept_at = core.clock.now()
        self._planned: float = math.inf
        self._sooner = asyncio.Event()

    def task_changed(self, task: Task) -> None:
        """Note the deadlines of a changed task, which may be the earliest."""
        due = task.eta_at if task.ended_at is None else task.ended_at + self._keep
        if due is not None and due < self._planned:
            self._sooner.set()

    async def wait_until_due(self) -> None:
        """Wait for the first deadline, or for the end of the usual period."""
        latest = self._swept_at + _SWEEP_SECS * 1000
        while True:
            self._sooner.clear()
            # Include a change that may not be in the journal yet.
            self._planned = latest
            self._planned = min(latest, await self._core.read(self._next_deadline))
            secs = (self._planned - self._core.clock.now()) / 1000
            # After the clock went back, do not wait longer than the usual period.
            if secs <= 0 or not await self._hear_of_sooner(min(secs, _SWEEP_SECS)):
                break
        self._swept_at = self._core.clock.now()

    async def _hear_of_sooner(self, secs: float) -> bool:
        """Wait for `secs`; True as soon as an earlier deadline is noted."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._sooner.wait(), secs)
            return True
        return False

    def _next_deadline(self, tx: Tx) -> float:
        ((eta_at,),) = tx.fetch_all(_NEXT_ETA, (self._swept_at,))
        ((ended_at,),) = tx.fetch_all(_NEXT_END, (self._swept_at - self._keep,))
        # A task is late, or forgotten, in the millisecond after its deadline.
        late = math.inf if eta_at is None else eta_at + 1
        return late if ended_at is None else min(late, ended_at + self._keep + 1)
