"""Which gateways are believed to be online, going by contacts and by heartbeats in the room."""

from msgspec import Struct

# So many offsets of a gateway's clock are remembered: a clock that was set is believed soon.
_OFFSETS_KEPT = 4


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


class PeerPresence:
    """Times in milliseconds. A gateway stays online for `offline_ms` after the last sign of life.

    A heartbeat counts `heartbeat_ms` longer, for that is how rarely the room shows one. Report all
    heartbeats, also of connected gateways: otherwise an old one looks new after the connection.
    """

    def __init__(self, offline_ms: int, heartbeat_ms: int) -> None:
        self._offline_ms = offline_ms
        self._heartbeat_ms = heartbeat_ms
        self._contacts: dict[str, int] = {}
        self._heartbeats: dict[str, _HeardHeartbeat] = {}

    def note_contact(self, node: str, now: int) -> None:
        """A connection to the gateway ended just now."""
        self._contacts[node] = now

    def note_heartbeat(self, node: str, heartbeat: int, now: int) -> None:
        """The room shows this heartbeat; only one that changed while we watched proves life."""
        known = self._heartbeats.get(node)
        if known is None:
            self._heartbeats[node] = _HeardHeartbeat(heartbeat, [heartbeat - now])
        elif known.at != heartbeat:
            known.note_heartbeat(heartbeat, now)
            self._prolong_contact(node, min(known.written_at(), now) + self._heartbeat_ms, now)

    def _prolong_contact(self, node: str, until: int, now: int) -> None:
        # Our clock may have gone back: no contact is further ahead than a heartbeat reaches.
        latest = max(until, self._contacts.get(node, 0))
        self._contacts[node] = min(latest, now + self._heartbeat_ms)

    def is_first_heartbeat(self, node: str) -> bool:
        """Whether the gateway has shown one heartbeat, which may be old, and no sign of life."""
        return node in self._heartbeats and node not in self._contacts

    def online_until(self, node: str) -> int:
        return self._contacts.get(node, 0) + self._offline_ms

    def is_online(self, node: str, now: int) -> bool:
        return now < self.online_until(node)
