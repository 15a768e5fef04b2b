"""Tells the operator about clocks that differ: in the status, and once an hour in the log and by an
incident.
"""

import logging

from gatepost.core.gateway_core import Core
from gatepost.mesh.clock_comparison import ClockFinding

_HOUR_MS = 3_600_000

log = logging.getLogger(__name__)


class ClockProblems:
    """Reports a finding from the second heartbeat on, when all peers have been heard."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._found: tuple[ClockFinding, ...] = ()
        self._candidates: frozenset[tuple[str, bool]] = frozenset()
        # Node → the steady time of its latest incident, which no clock moves.
        self._told: dict[str, int] = {}

    def describe(self) -> list[str]:
        return [finding.describe() for finding in self._found]

    def note_clocks(self, clocks: tuple[ClockFinding, ...], now: int) -> bool:
        """Take the findings of a heartbeat; returns whether others are described from now on."""
        me, before, described = self._core.node.id, self._candidates, self.describe()
        shown = [each for each in clocks if each.is_wrong or each.node != me]
        self._candidates = frozenset((each.node, each.is_wrong) for each in shown)
        self._found = tuple(each for each in shown if (each.node, each.is_wrong) in before)
        for finding in self._found:
            self._raise_incident(finding, now)
        return self.describe() != described

    def _raise_incident(self, finding: ClockFinding, now: int) -> None:
        told_at = self._told.get(finding.node)
        if told_at is not None and now - told_at < _HOUR_MS:
            return
        self._told[finding.node] = now
        log.warning("%s", finding.describe())
        hour = self._core.clock.now() // _HOUR_MS
        incidents, subject = self._core.delivery.incidents, f"{finding.node}@{hour}"
        self._core.submit(
            lambda tx: incidents.raise_(tx, "clock_skew", subject, finding.describe())
        )
