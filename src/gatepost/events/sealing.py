"""A node's identity key, and encryption of payloads for the nodes that may read them."""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from hashlib import sha256
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace
from nacl.exceptions import CryptoError
from nacl.public import Box
from nacl.secret import Aead
from nacl.signing import SigningKey, VerifyKey

from gatepost.clock import Clock
from gatepost.errors import ConfigError, SealError
from gatepost.events.framing import frame

KEY_SIZE = 32

# PyNaCl raises a plain ValueError for a ciphertext shorter than its authentication tag.
_UNOPENED = (CryptoError, ValueError)


def fingerprint(public: bytes) -> str:
    """Return a short name for a public key: 128 bits of its SHA-256, in hex."""
    return sha256(public).hexdigest()[:32]


def verify(public: bytes, message: bytes, signature: bytes) -> bool:
    """Tell whether the node with this public key signed the message."""
    try:
        VerifyKey(public).verify(message, signature)
    except CryptoError:
        return False
    return True


class NodeKey:
    """A node's Ed25519 identity. Only `secret` reveals the seed; the repr shows the fingerprint."""

    def __init__(self, secret: bytes) -> None:
        if len(secret) != KEY_SIZE:
            raise ConfigError(f"a node key is {KEY_SIZE} bytes, not {len(secret)}")
        self.secret = secret
        self._signing = SigningKey(secret)
        self.exchange = self._signing.to_curve25519_private_key()
        self.public = bytes(self._signing.verify_key)
        self.fingerprint = fingerprint(self.public)

    @classmethod
    def create(cls, clock: Clock) -> "NodeKey":
        return cls(clock.random(KEY_SIZE))

    def sign(self, message: bytes) -> bytes:
        return self._signing.sign(message).signature

    def __repr__(self) -> str:
        return f"<NodeKey {self.fingerprint}>"


class Sealed(Struct, frozen=True):
    """An encrypted payload and its content key, wrapped for each recipient's fingerprint.

    `data` and each key start with their nonce. On the wire, bytes are base64.
    """

    alg: Literal["xchacha20poly1305"]
    data: bytes
    keys: dict[str, bytes]


class Sealer:
    """Encrypts payloads for other nodes and decrypts payloads meant for this one."""

    def __init__(self, key: NodeKey, clock: Clock, cache_size: int = 1024) -> None:
        self._key = key
        self._clock = clock
        # Cached: deriving the shared key costs far more than using it.
        self._box = lru_cache(cache_size)(self._derive_box)

    def seal(
        self, payload: bytes, recipients: Iterable[bytes], *, event_id: str, source_node_id: str
    ) -> tuple[Sealed, bytes]:
        """Return the encrypted payload and its content key.

        The sender keeps the content key in case the recipients change.
        """
        content_key, nonce = self._clock.random(KEY_SIZE), self._clock.random(Aead.NONCE_SIZE)
        bound = _associated(event_id, source_node_id)
        data = bytes(Aead(content_key).encrypt(payload, bound, nonce))
        return Sealed("xchacha20poly1305", data, self.wrap(content_key, recipients)), content_key

    def open(
        self, encrypted: Sealed, *, sealed_by: bytes, event_id: str, source_node_id: str
    ) -> bytes:
        """Decrypt a payload; `sealed_by` is the public key of the node that wrapped its key."""
        content_key = self.unwrap(encrypted.keys, sealed_by)
        return self.open_with(
            encrypted, content_key, event_id=event_id, source_node_id=source_node_id
        )

    def open_with(
        self, encrypted: Sealed, content_key: bytes, *, event_id: str, source_node_id: str
    ) -> bytes:
        """Decrypt a payload with its content key, as the sender can."""
        try:
            bound = _associated(event_id, source_node_id)
            return Aead(content_key).decrypt(encrypted.data, bound)
        except _UNOPENED:
            raise SealError(f"payload of event {event_id} was altered or misplaced") from None

    def reseal(self, encrypted: Sealed, content_key: bytes, recipients: Iterable[bytes]) -> Sealed:
        """Return the same ciphertext with its content key wrapped for other recipients instead."""
        return replace(encrypted, keys=self.wrap(content_key, recipients))

    def wrap(self, content_key: bytes, recipients: Iterable[bytes]) -> dict[str, bytes]:
        """Wrap the content key for each recipient's public key; fingerprint → wrapped key."""
        keys = {fingerprint(public): self._wrap_one(content_key, public) for public in recipients}
        if not keys:
            raise SealError("a payload needs at least one recipient")
        return keys

    def unwrap(self, keys: Mapping[str, bytes], wrapped_by: bytes) -> bytes:
        """Unwrap this node's copy of a content key."""
        try:
            return self._box(wrapped_by).decrypt(keys[self._key.fingerprint])
        except KeyError:
            raise SealError(f"not encrypted for this node ({self._key.fingerprint})") from None
        except _UNOPENED:
            raise SealError(f"content key is not from {fingerprint(wrapped_by)}") from None

    def _wrap_one(self, content_key: bytes, public: bytes) -> bytes:
        return bytes(self._box(public).encrypt(content_key, self._clock.random(Box.NONCE_SIZE)))

    def _derive_box(self, public: bytes) -> Box:
        try:
            return Box(self._key.exchange, VerifyKey(public).to_curve25519_public_key())
        except CryptoError:
            raise SealError(f"{fingerprint(public)} is not a usable node key") from None


def _associated(event_id: str, source_node_id: str) -> bytes:
    return frame("gatepost/payload/1", event_id.encode(), source_node_id.encode())
