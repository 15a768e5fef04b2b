"""The health of this gateway: online, or degraded and why. Other gateways see it in the room."""

import logging
from collections.abc import Callable, Iterable
from typing import Literal

from gatepost.clock import Clock

log = logging.getLogger(__name__)

HealthStatus = Literal["online", "degraded"]
HealthCheck = Callable[[], Iterable[str]]

# A problem that comes and goes must not change the record in the room every second.
_RECOVERY_MS = 30_000


class GatewayHealth:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._checks: list[HealthCheck] = []
        self._troubled_at: int | None = None

    def add_check(self, check: HealthCheck) -> None:
        """`check` returns the present problems, a sentence each."""
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
