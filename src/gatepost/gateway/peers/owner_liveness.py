"""Tells which gateways are dead: silent for so long that a backbone node may override them.

A gateway that is connected to us is alive. Any other shows its heartbeats in the room. A heartbeat
counts from the moment it came here, so a clock that is ahead does not prolong a life.
"""

from collections.abc import Callable

from gatepost.clock import Clock
from gatepost.room import RoomMember

# After its start a gateway has yet to hear of the others, and whether it was overridden itself.
_SETTLING_MS = 60_000


class OwnerLiveness:
    """`is_connected` tells whether a node has a connection to us."""

    def __init__(
        self, clock: Clock, node: str, dead_after_ms: int, is_connected: Callable[[str], bool]
    ) -> None:
        self._clock = clock
        self._node = node
        self._dead_after_ms = dead_after_ms
        self._is_connected = is_connected
        self._settled_at = clock.now() + min(_SETTLING_MS, dead_after_ms)
        # Node → its last heartbeat, and when that came here.
        self._heard: dict[str, tuple[int, int]] = {}
        self._away_ms = 0

    def note_own_heartbeat(self, heartbeat: int) -> None:
        """The last heartbeat of this gateway, before its start."""
        self._away_ms = self._clock.now() - heartbeat

    def was_away_for(self, duration_ms: int) -> bool:
        """Whether this gateway was away for so long before its start."""
        return self._away_ms > duration_ms

    def is_dead(self, member: RoomMember) -> bool:
        now = self._clock.now()
        is_settled = now >= self._settled_at
        if member.id == self._node:
            # Whoever was given our agents meanwhile keeps them.
            return self.was_away_for(self._dead_after_ms) and not is_settled
        heartbeat, heard_at = member.record.last_heartbeat_at, now
        known = self._heard.get(member.id)
        if known is None:
            heard_at = min(now, heartbeat)
        elif known[0] == heartbeat:
            heard_at = known[1]
        self._heard[member.id] = (heartbeat, heard_at)
        is_silent = now - heard_at > self._dead_after_ms
        return is_settled and is_silent and not self._is_connected(member.id)

    def seconds_silent(self, member: RoomMember) -> float:
        """Seconds since the last sign of life."""
        if self._is_connected(member.id):
            return 0.0
        self.is_dead(member)
        heard_at = self._heard.get(member.id, (0, self._clock.now()))[1]
        return max(0, self._clock.now() - heard_at) / 1000
