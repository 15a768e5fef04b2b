"""Cookies that prove an address: only somebody who receives at an address can return its cookie.

A node may write any source address on a datagram. Until the cookie of an address came back, nothing
is sent there but answers that are no longer than their question.
"""

from functools import lru_cache
from hashlib import blake2b
from hmac import compare_digest

_CACHED = 1024


class AddressCookies:
    """Each cookie is a keyed hash of the peer and its address. The latest ones are kept."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self.cookie_for = lru_cache(_CACHED)(self._compute_cookie)

    def _compute_cookie(self, node: str, address: str) -> str:
        text = f"{node}\0{address}".encode(errors="replace")
        return blake2b(text, key=self._secret, digest_size=8).hexdigest()

    def is_valid(self, echo: str, node: str, address: str) -> bool:
        expected = self.cookie_for(node, address)
        return compare_digest(echo.encode(errors="replace"), expected.encode())
