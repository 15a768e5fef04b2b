"""How long the frames of a peer are under way: an event that expires meanwhile is not engaged.

An emitter stamps each frame with its clock, and a frame can wait in sockets for a long time. The
clocks of two machines differ by an unknown offset, but the fastest frame of a link shows the most
that it can be: whatever a later frame took longer, it waited. The reader's side of the offset is
its uptime, which is never set.
"""


class LinkDelay:
    """The frames of one peer over one link."""

    def __init__(self) -> None:
        self._fastest: int | None = None
        self._stamped_at = 0

    def emitter_time(self, stamped_at: int, uptime: int) -> int:
        """The emitter's clock now, at least, as a frame arrives that was stamped then."""
        offset = uptime - stamped_at
        was_set_back = stamped_at < self._stamped_at
        if self._fastest is None or was_set_back or offset < self._fastest:
            self._fastest = offset
        self._stamped_at = stamped_at
        return uptime - self._fastest
