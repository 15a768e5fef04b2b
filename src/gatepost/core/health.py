"""The health of this gateway: online, or degraded and why. Other gateways see it in the room.

`JournalWatch` notices a writer that makes no progress, for /readyz and /healthz.
"""

import logging
import math
from collections.abc import Callable, Iterable
from typing import Literal

from gatepost.clock import Clock
from gatepost.errors import StorageFailed
from gatepost.journal import Writer

log = logging.getLogger(__name__)

HealthStatus = Literal["online", "degraded"]
HealthCheck = Callable[[], Iterable[str]]

# Keep a problem this long, so that an intermittent one does not change the room every second.
_RECOVERY_MS = 30_000
_RECOVERS = "it recovers"
# A writer stalled for this many times `journal.stall_secs` does not recover by itself.
_RESTART_FACTOR = 6


class GatewayHealth:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._checks: list[HealthCheck] = []
        self._troubled_at: int | None = None

    def add_check(self, check: HealthCheck) -> None:
        """Add a check, which returns the current problems, a sentence each."""
        self._checks.append(check)

    def problems(self) -> list[str]:
        return [problem for check in self._checks for problem in check()]

    def current_status(self) -> HealthStatus:
        """Return `degraded` while there is a problem, and for a moment after the last one."""
        now, problems = self._clock.now(), self.problems()
        if problems:
            if self._troubled_at is None:
                log.warning("this gateway is degraded: %s", "; ".join(problems))
            self._troubled_at = now
        elif self._troubled_at is not None and not (
            self._troubled_at <= now < self._troubled_at + _RECOVERY_MS
        ):
            log.info("this gateway is no longer degraded")
            self._troubled_at = None
        return "online" if self._troubled_at is None else "degraded"

    def find_reason(self) -> str | None:
        """The first reason why this gateway is degraded; None if it is not."""
        if self.current_status() == "online":
            return None
        return next(iter(self.problems()), _RECOVERS)

    def describe(self) -> str:
        """The status of this gateway in words, with the reasons."""
        status, problems = self.current_status(), self.problems()
        if status == "online":
            return "online, this one"
        return f"degraded, this one: {'; '.join(problems) or _RECOVERS}"


class JournalWatch:
    """Watches the writer from another thread, so that it answers during long commits."""

    def __init__(self, writer: Writer, stall_secs: float) -> None:
        self._writer = writer
        self._stall_secs = stall_secs

    def find_problems(self) -> list[str]:
        """Why nothing can be written now, a sentence each."""
        failed = [self._writer.failure] if self._writer.failure else []
        return failed + self._describe_stall(self._stall_secs)

    def require_progress(self) -> None:
        """Raise StorageFailed while the journal refuses writes or makes no progress."""
        for problem in self.find_problems():
            raise StorageFailed(problem)

    def require_life(self) -> None:
        """Raise StorageFailed if only a restart of the process can help."""
        for problem in self._describe_stall(self._stall_secs * _RESTART_FACTOR):
            raise StorageFailed(problem)

    def _describe_stall(self, limit: float) -> list[str]:
        busy = self._writer.busy_secs()
        if busy <= limit:
            return []
        if busy == math.inf:
            return ["the journal's writer has ended; restart the gateway"]
        return [f"the journal has been busy with one commit for {busy:.0f} s"]
