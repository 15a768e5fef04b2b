"""Is another gateway online, silent or dead? What this gateway knows of it, and the words for it.

A gateway shows signs of life in three ways: messages over a connection, datagrams of the mesh, and
heartbeats in the room. Three questions are asked about them:

- *Is it online?* Routing sends to it then (`Presence.is_online`).
- *Since when is it silent?* People and metrics want to know (`Presence.seconds_silent`).
- *Is it dead?* Others may take its agents then, after a day (`OwnerLiveness.is_dead`).

These rules answer them:

1. The mesh notices silence sooner than a connection that times out. A connection proves the mesh
   wrong only if something came over it within the time after which silence counts.
2. A gateway without a connection is online for a while after its last one ended, or after a
   heartbeat. A heartbeat counts longer by the time after which the room shows the next one.
3. Only a heartbeat that changed while this gateway watched proves life: the first one may be old.
   `Presence.status_of` alone believes a first heartbeat, by its age, because a gateway that is
   reached through a relay would look dead until the next one.
4. Clocks of others are not trusted. A heartbeat is dated by the smallest difference of clocks that
   was seen lately; for `OwnerLiveness` it counts from the moment it arrived.
5. Our own clock may be set back. Nothing was heard later than now, and no contact lasts longer than
   a heartbeat reaches.
"""

import math
from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec import Struct

from gatepost.clock import Clock
from gatepost.durations import format_duration
from gatepost.mesh.peer_states import PeerState
from gatepost.room import RoomMember
from gatepost.room.records import NodeStatus

# A gateway without a connection to us shows a heartbeat in the room once a minute.
HEARTBEAT_MS = 90_000
# So many offsets of a gateway's clock are remembered: a clock that was set is believed soon.
_OFFSETS_KEPT = 4
# After a start, a gateway first has to hear from the others, and whether it was overridden.
_SETTLING_MS = 60_000


def describe_presence(
    status: str,
    linked: bool,
    relay: str | None,
    silent: float,
    *,
    reason: str | None = None,
    problem: str = "",
) -> str:
    """How another gateway stands, in words: the one text that every command and page shows.

    `reason` is why it is degraded, and `problem` why it has no link.
    """
    age = format_duration(silent)
    if status == "offline":
        text = f"offline, silent for {age}"
    elif not linked and relay is None and silent * 1000 > HEARTBEAT_MS:
        # Its status is its last word, and the next heartbeat is overdue.
        text = f"not reached, heard {age} ago"
    else:
        why = reason or "`gatepost status` there says why"
        status_text = f"degraded ({why})" if status == "degraded" else status
        way = "linked" if linked else f"relayed via {relay}" if relay is not None else "not linked"
        text = f"{status_text}, {way}, heard {age} ago"
    return f"{text}: {problem}" if problem else text


class SignsOfLife(Protocol):
    """What a gateway sees of the others right now."""

    def now(self) -> int:
        """The time of day in milliseconds."""

    def member(self, node: str) -> RoomMember | None: ...

    def said_status(self, node: str) -> NodeStatus | None:
        """The status that a node reports over a connection, if any."""

    def said_reason(self, node: str) -> str | None:
        """The reason that a node gives over a connection for being degraded, if any."""

    def connection_silences(self, node: str) -> Sequence[float]:
        """For each connection to a node, the seconds since its last message."""

    def mesh_state(self, node: str) -> PeerState | None: ...

    def mesh_silence(self, node: str) -> float | None:
        """Seconds since the last datagram of a node."""


class Presence:
    """Knows which gateways are online. `suspect_secs`: silence of this length counts."""

    def __init__(
        self, own_node: str, signs: SignsOfLife, offline_ms: int, suspect_secs: float
    ) -> None:
        self._own_node = own_node
        self._signs = signs
        self._suspect_secs = suspect_secs
        self._memory = ContactMemory(offline_ms, HEARTBEAT_MS)

    def note_contact(self, node: str, silent_secs: float) -> None:
        """A connection ended, over which the last message came so long ago."""
        self._memory.note_contact(node, self._signs.now(), int(silent_secs * 1000))

    def is_online(self, node: str) -> bool:
        now, member = self._signs.now(), self._signs.member(node)
        if member is not None:
            self._memory.note_heartbeat(node, member.record.last_heartbeat_at, now)
        if node == self._own_node:
            return True
        state, silences = self._signs.mesh_state(node), self._signs.connection_silences(node)
        if state in (PeerState.SUSPECT, PeerState.DEAD):
            return any(silent < self._suspect_secs for silent in silences)
        if silences:
            return True
        if member is None or member.record.status == "offline":
            return False
        return state is PeerState.ALIVE or self._memory.is_online(node, now)

    def status_of(self, member: RoomMember) -> NodeStatus:
        """The status that a member reports, while it shows signs of life; else `offline`."""
        if not self.is_online(member.id) and not self._is_newly_heard(member):
            return "offline"
        return self._signs.said_status(member.id) or member.record.status

    def reason_of(self, node: str) -> str | None:
        """Why a node is degraded, as it says over a connection; None if it does not."""
        return self._signs.said_reason(node)

    def _is_newly_heard(self, member: RoomMember) -> bool:
        """Whether a heartbeat is all we know of a member, and the next one is not overdue."""
        age = self._signs.now() - member.record.last_heartbeat_at
        return self.is_first_heartbeat(member.id) and abs(age) < HEARTBEAT_MS

    def is_first_heartbeat(self, node: str) -> bool:
        """Whether one heartbeat is all we know of a node, and the mesh says nothing worse."""
        return self._signs.mesh_state(node) is None and self._memory.is_first_heartbeat(node)

    def seconds_silent(self, node: str) -> float:
        """Seconds since the last sign of life: a connection, a datagram, a heartbeat in the room.

        Signs that the room showed before this gateway watched it are dated by the writer's clock.
        """
        now, member = self._signs.now(), self._signs.member(node)
        found = list(self._signs.connection_silences(node))
        if (silence := self._signs.mesh_silence(node)) is not None:
            found.append(silence)
        if (heard_at := self._memory.heard_at(node)) is not None:
            found.append((now - heard_at) / 1000)
        if not found and member is not None:
            found.append((now - member.record.last_heartbeat_at) / 1000)
        return max(0.0, min(found, default=math.inf))


class _HeardHeartbeat(Struct):
    """The last heartbeat of a gateway, by its clock; `offsets` are that clock minus ours.

    A heartbeat that took long to arrive gives an offset that is too low, so the highest counts.
    """

    at: int
    offsets: list[int]

    def note_heartbeat(self, heartbeat: int, now: int) -> None:
        if heartbeat < self.at:
            # Its clock was set back: the offsets known are of no use.
            self.offsets = []
        self.at = heartbeat
        self.offsets = [*self.offsets[1 - _OFFSETS_KEPT :], heartbeat - now]

    def written_at(self) -> int:
        """When the heartbeat was written, by our clock, as far as we know."""
        return self.at - max(self.offsets)


class ContactMemory:
    """What was heard of gateways that are not connected. Times in milliseconds.

    A gateway stays online for `offline_ms` after the last sign of life.

    A heartbeat counts `heartbeat_ms` longer, for that is how rarely the room shows one. Report all
    heartbeats, also of connected gateways: otherwise an old one looks new after the connection.
    """

    def __init__(self, offline_ms: int, heartbeat_ms: int) -> None:
        self._offline_ms = offline_ms
        self._heartbeat_ms = heartbeat_ms
        # Until when each gateway counts as heard, less `offline_ms`.
        self._contacts: dict[str, int] = {}
        self._heard_at: dict[str, int] = {}
        self._heartbeats: dict[str, _HeardHeartbeat] = {}

    def note_contact(self, node: str, now: int, silent_ms: int = 0) -> None:
        """A connection to the gateway ended just now; its last message came `silent_ms` ago."""
        self._contacts[node] = now
        self._note_heard(node, now - silent_ms, now)

    def note_heartbeat(self, node: str, heartbeat: int, now: int) -> None:
        """The room shows this heartbeat; only one that changed while we watched proves life."""
        known = self._heartbeats.get(node)
        if known is None:
            self._heartbeats[node] = _HeardHeartbeat(heartbeat, [heartbeat - now])
        elif known.at != heartbeat:
            known.note_heartbeat(heartbeat, now)
            written_at = min(known.written_at(), now)
            self._note_heard(node, written_at, now)
            self._prolong_contact(node, written_at + self._heartbeat_ms, now)

    def _note_heard(self, node: str, at: int, now: int) -> None:
        # Our clock may have gone back: nothing was heard later than now.
        self._heard_at[node] = max(at, min(self._heard_at.get(node, 0), now))

    def _prolong_contact(self, node: str, until: int, now: int) -> None:
        # Our clock may have gone back: no contact is further ahead than a heartbeat reaches.
        latest = max(until, self._contacts.get(node, 0))
        self._contacts[node] = min(latest, now + self._heartbeat_ms)

    def heard_at(self, node: str) -> int | None:
        """When the last sign of life was given, by our clock; None if there was none."""
        return self._heard_at.get(node)

    def is_first_heartbeat(self, node: str) -> bool:
        """Whether the gateway has shown one heartbeat, which may be old, and no sign of life."""
        return node in self._heartbeats and node not in self._contacts

    def online_until(self, node: str) -> int:
        return self._contacts.get(node, 0) + self._offline_ms

    def is_online(self, node: str, now: int) -> bool:
        return now < self.online_until(node)


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
        """Whether this gateway was away for at least this long before its start."""
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
