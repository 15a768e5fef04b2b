"""Cookies that prove an address: only a node that receives at an address can return its cookie.

A node may write any source address on a datagram. Until an address has returned its cookie, it only
gets answers that are no longer than their question.

A cookie is valid for one to two periods. So a datagram that returns it is recent, even if its
timestamp is wrong.
"""

from functools import lru_cache
from hashlib import blake2b
from hmac import compare_digest

_CACHED = 2048
_COOKIE_BYTES = 8


class AddressCookies:
    """A cookie is a keyed hash of the peer, its address and the period; recent ones are kept."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._period = 0
        self._compute = lru_cache(_CACHED)(self._compute_cookie)

    def set_period(self, period: int) -> None:
        """Cookies of this period and the one before it are valid now."""
        self._period = period

    def cookie_for(self, node: str, address: str) -> str:
        return self._compute(node, address, self._period)

    def is_valid(self, echo: str, node: str, address: str) -> bool:
        if len(echo) != 2 * _COOKIE_BYTES:
            return False
        shown, period = echo.encode(errors="replace"), self._period
        expected = (self._compute(node, address, each) for each in (period, period - 1))
        return any(compare_digest(shown, each.encode()) for each in expected)

    def _compute_cookie(self, node: str, address: str, period: int) -> str:
        text = f"{node}\0{address}\0{period}".encode(errors="replace")
        return blake2b(text, key=self._secret, digest_size=_COOKIE_BYTES).hexdigest()
