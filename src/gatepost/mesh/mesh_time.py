"""The two times of the mesh: a steady one for timers, the time of day for timestamps."""

from msgspec import Struct


class MeshTime(Struct, frozen=True):
    """`steady_ms` never jumps, so a corrected clock makes no node suspect; `unix_secs` may jump."""

    steady_ms: int
    unix_secs: int


class SteadyClock:
    """The steady time of the input at hand, as a Clock for token buckets."""

    def __init__(self, now: int) -> None:
        self._now = now

    def now(self) -> int:
        return self._now

    def set_time(self, steady_ms: int) -> None:
        self._now = steady_ms

    def random(self, size: int) -> bytes:
        raise NotImplementedError("the mesh core draws no random numbers")


class MeshTimers(Struct, frozen=True, kw_only=True):
    """All intervals, in milliseconds; the clock tolerance in seconds."""

    heartbeat_ms: int = 10_000
    suspect_ms: int = 30_000
    grace_ms: int = 90_000
    clock_tolerance_secs: int = 5

    @property
    def takeover_ms(self) -> int:
        """Silence of the publisher after which its office is vacant."""
        return self.suspect_ms + self.grace_ms
