"""Which gateways are believed to be online, going by contacts and by heartbeats in the room."""


class PeerPresence:
    """Times in milliseconds. A gateway stays online for `offline_ms` after the last sign of life.

    A heartbeat counts `heartbeat_ms` longer, for that is how rarely the room shows one.
    """

    def __init__(self, offline_ms: int, heartbeat_ms: int) -> None:
        self._offline_ms = offline_ms
        self._heartbeat_ms = heartbeat_ms
        self._contacts: dict[str, int] = {}
        self._heartbeats: dict[str, int] = {}

    def note_contact(self, node: str, now: int) -> None:
        """A connection to the gateway ended just now."""
        self._contacts[node] = now

    def note_heartbeat(self, node: str, heartbeat: int, now: int) -> None:
        """The room shows this heartbeat; only one that changed while we watched proves life."""
        known = self._heartbeats.get(node)
        self._heartbeats[node] = heartbeat
        if known is not None and known != heartbeat:
            self._contacts[node] = now + self._heartbeat_ms

    def online_until(self, node: str) -> int:
        return self._contacts.get(node, 0) + self._offline_ms

    def is_online(self, node: str, now: int) -> bool:
        return now < self.online_until(node)
