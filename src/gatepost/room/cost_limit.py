"""Limits the time that one node may make this gateway spend on its room messages.

A writer that breaks no rule can still send records that cost time to check. Only that writer's
connections are then read more slowly.
"""

from collections.abc import Callable

# A node's long-term share of the event loop, and its burst in seconds. A first sync of 40,000
# records takes about five seconds.
COST_SHARE = 0.25
COST_BURST_SECS = 5.0
_MAX_PAUSE_SECS = 10.0
_MAX_NODES = 10_000


class CostLimit:
    """A bucket that leaks `COST_SHARE` seconds of cost per second."""

    def __init__(self) -> None:
        self._level = 0.0
        self._at = 0.0

    def charge(self, spent: float, now: float) -> float:
        """Note seconds spent; return the seconds to pause before the next message."""
        self._level = max(0.0, self._level - (now - self._at) * COST_SHARE) + spent
        self._at = now
        excess = self._level - COST_BURST_SECS
        return min(_MAX_PAUSE_SECS, excess / COST_SHARE) if excess > 0 else 0.0


class CostLimits:
    """One limit per node, however many connections it has.

    `on_exceeded` is called with a node that has to pause.
    """

    def __init__(self, on_exceeded: Callable[[str], None] = lambda node: None) -> None:
        self._limits: dict[str, CostLimit] = {}
        self.on_exceeded = on_exceeded

    def charge(self, node: str, spent: float, now: float) -> float:
        """Note seconds spent on a message of a node; return the seconds to pause."""
        if node not in self._limits and len(self._limits) >= _MAX_NODES:
            self._limits.pop(next(iter(self._limits)))
        pause = self._limits.setdefault(node, CostLimit()).charge(spent, now)
        if pause:
            self.on_exceeded(node)
        return pause
