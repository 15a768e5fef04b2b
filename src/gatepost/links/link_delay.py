"""Estimates the travel time of frames, so that events which expired on the way are not engaged.

An emitter stamps each frame with its clock, and a frame can wait in sockets for a long time. The
clocks of two machines differ by an unknown offset, but the fastest frame of a link bounds it: a
later frame that took longer has waited for the difference. The reader measures with its uptime,
which cannot be set.
"""


class LinkDelay:
    """The frames of one peer over one link."""

    def __init__(self) -> None:
        self._fastest: int | None = None
        self._stamped_at = 0

    def emitter_time(self, stamped_at: int, uptime: int) -> int:
        """A lower bound of the emitter's clock now, when a frame with this stamp arrives."""
        offset = uptime - stamped_at
        was_set_back = stamped_at < self._stamped_at
        if self._fastest is None or was_set_back or offset < self._fastest:
            self._fastest = offset
        self._stamped_at = stamped_at
        return uptime - self._fastest
