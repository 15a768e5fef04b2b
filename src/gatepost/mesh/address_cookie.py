"""Cookies that prove an address: only somebody who receives at an address can return its cookie.

A node may write any source address on a datagram. Until the cookie of an address came back, nothing
is sent there but answers that are no longer than their question.
"""

from hashlib import blake2b
from hmac import compare_digest


class AddressCookies:
    """Cookies need no memory: each is a keyed hash of the peer and its address."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def cookie_for(self, node: str, address: str) -> str:
        text = f"{node}\0{address}".encode(errors="replace")
        return blake2b(text, key=self._secret, digest_size=8).hexdigest()

    def is_valid(self, echo: str, node: str, address: str) -> bool:
        return bool(echo) and compare_digest(echo, self.cookie_for(node, address))
