"""A node's identity key, and encryption of payloads for the nodes that may read them."""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from hashlib import sha256
from typing import Annotated, Literal

from msgspec import Meta, Struct
from msgspec.structs import replace
from nacl.bindings import (
    crypto_aead_xchacha20poly1305_ietf_decrypt,
    crypto_aead_xchacha20poly1305_ietf_encrypt,
    crypto_aead_xchacha20poly1305_ietf_NPUBBYTES,
    crypto_box_easy_afternm,
    crypto_box_NONCEBYTES,
    crypto_box_open_easy_afternm,
)
from nacl.exceptions import CryptoError
from nacl.public import Box
from nacl.signing import SigningKey, VerifyKey

from gatepost.clock import Clock
from gatepost.errors import ConfigError, EncryptionError
from gatepost.events.framing import frame_parts

KEY_SIZE = 32

PublicKey = Annotated[bytes, Meta(min_length=KEY_SIZE, max_length=KEY_SIZE)]
Signature = Annotated[bytes, Meta(min_length=64, max_length=64)]

_PAYLOAD_NONCE = crypto_aead_xchacha20poly1305_ietf_NPUBBYTES
_WRAP_NONCE = crypto_box_NONCEBYTES
# PyNaCl raises a plain ValueError for a ciphertext shorter than its authentication tag.
_DECRYPTION_ERRORS = (CryptoError, ValueError)


@lru_cache(4096)
def fingerprint_key(public: bytes) -> str:
    """Return a short name for a public key: 128 bits of its SHA-256, in hex."""
    return sha256(public).hexdigest()[:32]


def verify_signature(public: bytes, message: bytes, signature: bytes) -> bool:
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
        self._signing_key = SigningKey(secret)
        self.exchange_key = self._signing_key.to_curve25519_private_key()
        self.public = bytes(self._signing_key.verify_key)
        self.fingerprint = fingerprint_key(self.public)

    @classmethod
    def generate(cls, clock: Clock) -> "NodeKey":
        return cls(clock.random(KEY_SIZE))

    def sign(self, message: bytes) -> bytes:
        return self._signing_key.sign(message).signature

    def __repr__(self) -> str:
        return f"<NodeKey {self.fingerprint}>"


class EncryptedPayload(Struct, frozen=True):
    """An encrypted payload and its content key, wrapped for each recipient's fingerprint.

    `data` and each key start with their nonce. On the wire, bytes are base64.
    """

    alg: Literal["xchacha20poly1305"]
    data: bytes
    keys: dict[str, bytes]


class PayloadCipher:
    """Encrypts payloads for other nodes and decrypts payloads meant for this one.

    It calls libsodium's functions, not PyNaCl's classes around them: each payload passes here.
    """

    def __init__(self, key: NodeKey, clock: Clock, cache_size: int = 1024) -> None:
        self._key = key
        self._clock = clock
        # Cached: deriving the shared key costs far more than using it.
        self._shared_key = lru_cache(cache_size)(self._derive_shared_key)

    def encrypt(
        self, payload: bytes, recipients: Iterable[bytes], *, event_id: str, source_node_id: str
    ) -> tuple[EncryptedPayload, bytes]:
        """Return the encrypted payload and its content key.

        The sender keeps the content key in case the recipients change.
        """
        random = self._clock.random(KEY_SIZE + _PAYLOAD_NONCE)
        content_key, nonce = random[:KEY_SIZE], random[KEY_SIZE:]
        bound = _associated_data(event_id, source_node_id)
        data = nonce + crypto_aead_xchacha20poly1305_ietf_encrypt(
            payload, bound, nonce, content_key
        )
        return EncryptedPayload(
            "xchacha20poly1305", data, self.wrap_key(content_key, recipients)
        ), content_key

    def decrypt(
        self,
        encrypted: EncryptedPayload,
        *,
        encrypted_by: bytes,
        event_id: str,
        source_node_id: str,
    ) -> bytes:
        """Decrypt a payload; `encrypted_by` is the public key of the node that wrapped its key."""
        content_key = self.unwrap_key(encrypted.keys, encrypted_by)
        return self.decrypt_with_key(
            encrypted, content_key, event_id=event_id, source_node_id=source_node_id
        )

    def decrypt_with_key(
        self, encrypted: EncryptedPayload, content_key: bytes, *, event_id: str, source_node_id: str
    ) -> bytes:
        """Decrypt a payload with its content key, as the sender can."""
        return decrypt_payload(
            encrypted, content_key, event_id=event_id, source_node_id=source_node_id
        )

    def replace_recipients(
        self, encrypted: EncryptedPayload, content_key: bytes, recipients: Iterable[bytes]
    ) -> EncryptedPayload:
        """Return the same ciphertext with its content key wrapped for other recipients instead."""
        return replace(encrypted, keys=self.wrap_key(content_key, recipients))

    def wrap_key(self, content_key: bytes, recipients: Iterable[bytes]) -> dict[str, bytes]:
        """Wrap the content key for each recipient's public key; fingerprint → wrapped key."""
        keys = {
            fingerprint_key(public): self._wrap_key_for(content_key, public)
            for public in recipients
        }
        if not keys:
            raise EncryptionError("a payload needs at least one recipient")
        return keys

    def unwrap_key(self, keys: Mapping[str, bytes], wrapped_by: bytes) -> bytes:
        """Unwrap this node's copy of a content key."""
        if self._key.fingerprint not in keys:
            raise EncryptionError(f"not encrypted for this node ({self._key.fingerprint})")
        return self._unwrap_key(keys[self._key.fingerprint], wrapped_by)

    def unwrap_own_key(self, keys: Mapping[str, bytes], recipients: Iterable[bytes]) -> bytes:
        """Unwrap a content key that this node wrapped for one of these public keys.

        The key of a box is shared, so its writer can open it too.
        """
        for public in recipients:
            if (wrapped := keys.get(fingerprint_key(public))) is not None:
                return self._unwrap_key(wrapped, public)
        raise EncryptionError("encrypted for a node whose key is not known here")

    def _unwrap_key(self, wrapped: bytes, other: bytes) -> bytes:
        try:
            key = self._shared_key(other)
            return crypto_box_open_easy_afternm(wrapped[_WRAP_NONCE:], wrapped[:_WRAP_NONCE], key)
        except _DECRYPTION_ERRORS:
            raise EncryptionError(f"content key is not from {fingerprint_key(other)}") from None

    def _wrap_key_for(self, content_key: bytes, public: bytes) -> bytes:
        nonce = self._clock.random(_WRAP_NONCE)
        return nonce + crypto_box_easy_afternm(content_key, nonce, self._shared_key(public))

    def _derive_shared_key(self, public: bytes) -> bytes:
        try:
            box = Box(self._key.exchange_key, VerifyKey(public).to_curve25519_public_key())
            return box.shared_key()
        except CryptoError:
            raise EncryptionError(f"{fingerprint_key(public)} is not a usable node key") from None


def decrypt_payload(
    encrypted: EncryptedPayload, content_key: bytes, *, event_id: str, source_node_id: str
) -> bytes:
    """Decrypt a payload with its content key; EncryptionError if it was altered or misplaced."""
    try:
        bound, data = _associated_data(event_id, source_node_id), encrypted.data
        return crypto_aead_xchacha20poly1305_ietf_decrypt(
            data[_PAYLOAD_NONCE:], bound, data[:_PAYLOAD_NONCE], content_key
        )
    except _DECRYPTION_ERRORS:
        raise EncryptionError(f"payload of event {event_id} was altered or misplaced") from None


def _associated_data(event_id: str, source_node_id: str) -> bytes:
    return frame_parts("gatepost/payload/1", event_id.encode(), source_node_id.encode())
