"""Blinded keys of onion services (rend-spec-v3, appendix A): another key for each time period."""

from hashlib import sha3_256, sha512

from nacl.bindings import (
    crypto_core_ed25519_scalar_add,
    crypto_core_ed25519_scalar_mul,
    crypto_core_ed25519_scalar_reduce,
    crypto_scalarmult_ed25519_base_noclamp,
)

from gatepost.mesh.onion.onion_identity import OnionIdentity, expand_seed
from gatepost.wire.agent_tokens import SecretValue

DEFAULT_PERIOD_MINUTES = 1440
_BLIND_STRING = b"Derive temporary signing key\x00"
_HASH_INPUT = b"Derive temporary signing key hash input"
_BASE_POINT = (
    b"(15112221349535400772501151409588531511454012693041857206046113283949847762202, "
    b"46316835694926478169428394003475163141307993866256225615783033603165251855960)"
)


def encode_int8(number: int) -> bytes:
    return number.to_bytes(8, "big")


class BlindedKey(SecretValue, frozen=True):
    """The key of one service in one period. It signs like an Ed25519 key, but has no seed."""

    scalar: bytes
    prefix: bytes
    public_key: bytes

    def sign(self, message: bytes) -> bytes:
        nonce = crypto_core_ed25519_scalar_reduce(sha512(self.prefix + message).digest())
        point = crypto_scalarmult_ed25519_base_noclamp(nonce)
        digest = sha512(point + self.public_key + message).digest()
        challenge = crypto_core_ed25519_scalar_reduce(digest)
        product = crypto_core_ed25519_scalar_mul(challenge, self.scalar)
        return bytes(point + crypto_core_ed25519_scalar_add(nonce, product))


def blind_key(
    identity: OnionIdentity, period: int, minutes: int = DEFAULT_PERIOD_MINUTES
) -> BlindedKey:
    nonce = b"key-blind" + encode_int8(period) + encode_int8(minutes)
    factor = bytearray(sha3_256(_BLIND_STRING + identity.public_key + _BASE_POINT + nonce).digest())
    factor[0] &= 248
    factor[31] = (factor[31] & 63) | 64
    expanded = expand_seed(identity.seed)
    scalar = crypto_core_ed25519_scalar_mul(bytes(factor), expanded[:32])
    prefix = sha512(_HASH_INPUT + expanded[32:]).digest()[:32]
    return BlindedKey(scalar, prefix, crypto_scalarmult_ed25519_base_noclamp(scalar))


def find_blinded_key(
    identity: OnionIdentity, public_key: bytes, now: int, minutes: int = DEFAULT_PERIOD_MINUTES
) -> BlindedKey | None:
    """The key of the period in which this public key is valid; None if it is not valid now.

    The start of a period depends on the consensus, and a service keeps its previous key for a
    while, so adjacent periods are tried too.
    """
    current = now // 60_000 // minutes
    for step in (0, -1, 1, -2):
        found = blind_key(identity, max(0, current + step), minutes)
        if found.public_key == public_key:
            return found
    return None


def subcredential(identity: OnionIdentity, blinded: bytes) -> bytes:
    credential = sha3_256(b"credential" + identity.public_key).digest()
    return sha3_256(b"subcredential" + credential + blinded).digest()
