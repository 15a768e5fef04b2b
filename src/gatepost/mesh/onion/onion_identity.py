"""Onion services of version 3: their keys, and the addresses that follow from these.

A service's key is derived from a secret, so it need not be stored: a node's own service from the
node key, and the master service, which all members share, from the mesh secrets.
"""

from base64 import b32encode, b64encode
from hashlib import blake2b, sha3_256, sha512

from nacl.signing import SigningKey

from gatepost.access import MeshSecrets
from gatepost.events import frame_parts
from gatepost.wire.agent_tokens import SecretValue

_VERSION = b"\x03"


class OnionIdentity(SecretValue, frozen=True):
    """The key of an onion service, made of a seed of 32 bytes."""

    seed: bytes

    @property
    def public_key(self) -> bytes:
        return bytes(SigningKey(self.seed).verify_key)

    @property
    def host(self) -> str:
        return onion_host(self.public_key)

    @property
    def key_blob(self) -> str:
        """The expanded secret key as the control port takes it."""
        return b64encode(expand_seed(self.seed)).decode()


def expand_seed(seed: bytes) -> bytes:
    """The scalar of an Ed25519 key, clamped, and the prefix of its signatures."""
    digest = bytearray(sha512(seed).digest())
    digest[0] &= 248
    digest[31] = (digest[31] & 63) | 64
    return bytes(digest)


def onion_host(public_key: bytes) -> str:
    checksum = sha3_256(b".onion checksum" + public_key + _VERSION).digest()[:2]
    return b32encode(public_key + checksum + _VERSION).decode().lower() + ".onion"


def master_identity(secrets: MeshSecrets) -> OnionIdentity:
    """The onion service of the whole mesh. A rotation of the secrets gives it another address.

    A revoked node knows the former key, so the former address must not be trusted.
    """
    domain = frame_parts("gatepost/master-onion/1")
    key = secrets.onion_seed.encode()
    return OnionIdentity(blake2b(domain, key=key, digest_size=32).digest())
