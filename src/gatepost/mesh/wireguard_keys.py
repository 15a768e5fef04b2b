"""WireGuard keys that prove their owner.

The room shows the WireGuard key of every node, so any member could name the key of another as its
own, and take its place in the tunnels of others. A WireGuard key cannot sign. It is therefore made
of an Ed25519 key, and this key signs the node key that it belongs to.
"""

import binascii
from base64 import b64decode, b64encode
from functools import lru_cache

from nacl.exceptions import CryptoError
from nacl.public import PrivateKey
from nacl.signing import SigningKey, VerifyKey

from gatepost.events import frame_parts

_KEY_BYTES = 32
_CACHED = 4096


class WireGuardIdentity:
    """The key of a node in the tunnel, made of a secret of 32 bytes."""

    def __init__(self, secret: bytes) -> None:
        self._signing = SigningKey(secret)

    @property
    def private_key(self) -> PrivateKey:
        return self._signing.to_curve25519_private_key()

    @property
    def public_key(self) -> str:
        return b64encode(bytes(self.private_key.public_key)).decode()

    def prove_owner(self, node_key: bytes) -> str:
        """The proof that this key belongs to the node with this key."""
        signature = self._signing.sign(_text_to_sign(node_key)).signature
        return b64encode(bytes(self._signing.verify_key) + signature).decode()


@lru_cache(maxsize=_CACHED)
def is_owner_proven(public_key: str, proof: str, node_key: bytes) -> bool:
    """Whether a WireGuard key belongs to the node with this node key."""
    try:
        data = b64decode(proof, validate=True)
        signer = VerifyKey(data[:_KEY_BYTES])
        signer.verify(_text_to_sign(node_key), data[_KEY_BYTES:])
        made = bytes(signer.to_curve25519_public_key())
    except (binascii.Error, CryptoError, ValueError, RuntimeError):
        return False
    return b64encode(made).decode() == public_key


def _text_to_sign(node_key: bytes) -> bytes:
    return frame_parts("gatepost/wireguard/1", node_key)
