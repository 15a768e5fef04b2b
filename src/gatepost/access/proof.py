"""Node proof: a signature by the node's key that is good for one exchange with one gateway.

With an invite, the node signs a nonce of its own. A copy of that exchange earns nothing: invite
and nonce are remembered together until the invite ends, and the invite ends soon.

A node that comes back has no invite, hence nothing that ends. A nonce of its own would have to be
remembered for ever, or an old exchange, overheard or found in a log, would earn a ticket again.
So it signs a challenge of ours. The challenge carries its own end and our MAC, so asking for one
costs no storage and it holds across a restart; once answered it is remembered until that end.
"""

from hmac import compare_digest, digest

from msgspec import Struct

from gatepost.access.issuer import Issuer
from gatepost.access.tokens import b64, unb64
from gatepost.events import NodeKey, frame, verify

_RANDOM = 16
_EXPIRY = 8
_MAC = 32
_SIZE = _EXPIRY + _RANDOM + _MAC
_TEXT_SIZE = len(b64(bytes(_SIZE)))


class Statement(Struct, frozen=True):
    """What a proof says: I, with this key, ask this issuer on this ground, now.

    `ground` is the invite or the challenge; `issuer` is the fingerprint of the key of the one
    asked, so that it cannot pass the proof on to another gateway as its own.
    """

    ground: str
    nonce: str
    issuer: str
    node_id: str
    node_key: bytes

    def encoded(self) -> bytes:
        words = (self.ground, self.nonce, self.issuer, self.node_id)
        return frame("gatepost/node-proof/1", *(w.encode() for w in words), self.node_key)

    def sign(self, key: NodeKey) -> bytes:
        return key.sign(self.encoded())

    def signed_by(self, key: bytes, signature: bytes) -> bool:
        """Whether the node has this very key and has signed with it."""
        return verify(key, self.encoded(), signature) and self.node_key == key


def by_invite(id: str) -> str:
    return f"invite:{id}"


def by_challenge(text: str) -> str:
    return f"challenge:{text}"


class Challenges:
    """Made and recognised without remembering them."""

    def __init__(self, issuer: Issuer, life: int) -> None:
        self._clock = issuer.clock
        self._key = issuer.derive("challenge")
        self._life = life

    def make(self, now: int) -> tuple[str, int]:
        """A challenge and when it ends."""
        expires_at = now + self._life
        body = expires_at.to_bytes(_EXPIRY, "big") + self._clock.random(_RANDOM)
        return b64(body + self._mac(body)), expires_at

    def end_of(self, text: str, now: int) -> int | None:
        """When this challenge of ours ends; None if it has ended, or is not ours."""
        raw = _bytes(text)
        body, mac = raw[:-_MAC], raw[-_MAC:]
        expires_at = int.from_bytes(body[:_EXPIRY], "big")
        return expires_at if compare_digest(mac, self._mac(body)) and now < expires_at else None

    def _mac(self, body: bytes) -> bytes:
        return digest(self._key, body, "sha256")


def _bytes(text: str) -> bytes:
    """Only the one spelling of a challenge counts, for it is remembered by its spelling."""
    try:
        raw = unb64(text) if len(text) == _TEXT_SIZE else b""
    except ValueError:
        raw = b""
    return raw if len(raw) == _SIZE and b64(raw) == text else bytes(_SIZE)
