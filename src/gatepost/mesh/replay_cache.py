"""The datagrams that were taken lately, so that none counts twice.

A datagram older than the clock window is refused by its timestamp, so it can be forgotten. The rate
limit bounds the datagrams that one sender gets accepted within the window.
"""

from collections import deque
from hashlib import blake2b


class ReplayCache:
    """At most `most` datagrams per sender; `window_ms` is twice the clock tolerance, and more."""

    def __init__(self, window_ms: int, most: int = 512) -> None:
        self._window_ms = window_ms
        self._most = most
        self._seen: dict[str, set[bytes]] = {}
        self._order: dict[str, deque[tuple[int, bytes]]] = {}

    def add_datagram(self, sender: str, text: bytes, now: int) -> bool:
        """Remember a datagram. False if it is known, or if too many are remembered."""
        seen = self._seen.setdefault(sender, set())
        order = self._order.setdefault(sender, deque())
        while order and order[0][0] <= now - self._window_ms:
            seen.discard(order.popleft()[1])
        digest = blake2b(text, digest_size=16).digest()
        if digest in seen or len(seen) >= self._most:
            return False
        seen.add(digest)
        order.append((now, digest))
        return True
