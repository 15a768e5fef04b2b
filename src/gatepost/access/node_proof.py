"""Node proof: a signature by the node's key, valid for one exchange with one gateway.

With an invite, the node chooses the nonce that it signs. A replay of that exchange gets no ticket:
the gateway remembers invite and nonce together until the invite expires.

A reconnecting node has no invite, so nothing limits how long its nonce would have to be remembered.
Without that memory, an old exchange from the network or a log would get a ticket again. The node
therefore signs a challenge of the gateway. The challenge contains its expiry and the gateway's MAC,
so issuing one needs no storage and it survives a restart. An answered challenge is remembered until
it expires.
"""

from hmac import compare_digest, digest

from msgspec import Struct

from gatepost.access.issuer import Issuer
from gatepost.access.tokens import decode_b64, encode_b64
from gatepost.events import NodeKey, frame_parts, verify_signature

_RANDOM_BYTES = 16
_EXPIRY_BYTES = 8
_MAC_BYTES = 32
_CHALLENGE_BYTES = _EXPIRY_BYTES + _RANDOM_BYTES + _MAC_BYTES
_TEXT_SIZE = len(encode_b64(bytes(_CHALLENGE_BYTES)))


class ProofStatement(Struct, frozen=True):
    """The content of a proof: this node, with this key, asks this issuer on this ground.

    `ground` names the invite or the challenge. `issuer` is the fingerprint of the asked gateway's
    key, so that the gateway cannot reuse the proof at another gateway.
    """

    ground: str
    nonce: str
    issuer: str
    node_id: str
    node_key: bytes

    def signed_bytes(self) -> bytes:
        texts = (self.ground, self.nonce, self.issuer, self.node_id)
        return frame_parts("gatepost/node-proof/1", *(t.encode() for t in texts), self.node_key)

    def sign_with(self, key: NodeKey) -> bytes:
        return key.sign(self.signed_bytes())

    def is_signed_by(self, key: bytes, signature: bytes) -> bool:
        """Whether `key` is the node's key and made the signature."""
        return verify_signature(key, self.signed_bytes(), signature) and self.node_key == key


def invite_ground(id: str) -> str:
    return f"invite:{id}"


def challenge_ground(text: str) -> str:
    return f"challenge:{text}"


class ChallengeIssuer:
    """Issues and recognises challenges without storing them."""

    def __init__(self, issuer: Issuer, ttl: int) -> None:
        self._clock = issuer.clock
        self._key = issuer.derive_key("challenge")
        self._ttl = ttl

    def make_challenge(self, now: int) -> tuple[str, int]:
        """Return a new challenge and its expiry."""
        expires_at = now + self._ttl
        body = expires_at.to_bytes(_EXPIRY_BYTES, "big") + self._clock.random(_RANDOM_BYTES)
        return encode_b64(body + self._compute_mac(body)), expires_at

    def challenge_expiry(self, text: str, now: int) -> int | None:
        """The expiry of a challenge; None if it has expired or was not issued here."""
        raw = _decode_challenge(text)
        body, mac = raw[:-_MAC_BYTES], raw[-_MAC_BYTES:]
        expires_at = int.from_bytes(body[:_EXPIRY_BYTES], "big")
        return (
            expires_at
            if compare_digest(mac, self._compute_mac(body)) and now < expires_at
            else None
        )

    def _compute_mac(self, body: bytes) -> bytes:
        return digest(self._key, body, "sha256")


def _decode_challenge(text: str) -> bytes:
    """Decode a challenge; anything but its canonical text gives zeros, which match no MAC.

    Answered challenges are remembered by their text, so a second spelling must not pass.
    """
    try:
        raw = decode_b64(text) if len(text) == _TEXT_SIZE else b""
    except ValueError:
        raw = b""
    return (
        raw if len(raw) == _CHALLENGE_BYTES and encode_b64(raw) == text else bytes(_CHALLENGE_BYTES)
    )
