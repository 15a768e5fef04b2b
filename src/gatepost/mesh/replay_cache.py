"""The datagrams that were taken lately, so that none counts twice.

A datagram older than the clock window is refused by its timestamp, so it can be forgotten. The rate
limit bounds the datagrams that one sender gets accepted within the window.
"""

from collections import OrderedDict
from hashlib import blake2b

Fingerprint = bytes


def fingerprint_datagram(text: bytes) -> Fingerprint:
    return blake2b(text, digest_size=16).digest()


class ReplayCache:
    """At most `most` datagrams per sender; `window_ms` is twice the clock tolerance, and more."""

    def __init__(self, window_ms: int, most: int = 512) -> None:
        self._window_ms = window_ms
        self._most = most
        # Sender → fingerprint → when it was taken, the oldest first.
        self._taken: dict[str, OrderedDict[Fingerprint, int]] = {}

    def can_take(self, sender: str, fingerprint: Fingerprint, now: int) -> bool:
        """False if the datagram was taken already, or if too many are remembered."""
        taken = self._taken.get(sender)
        if taken is None:
            return True
        self._forget_old(taken, now)
        return fingerprint not in taken and len(taken) < self._most

    def remember(self, sender: str, fingerprint: Fingerprint, now: int) -> None:
        """Remember a datagram with a valid signature; others must not use up the capacity."""
        self._taken.setdefault(sender, OrderedDict())[fingerprint] = now

    def _forget_old(self, taken: OrderedDict[Fingerprint, int], now: int) -> None:
        oldest = now - self._window_ms
        while taken and next(iter(taken.values())) <= oldest:
            taken.popitem(last=False)
