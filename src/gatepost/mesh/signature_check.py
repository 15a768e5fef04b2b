"""Checks Ed25519 signatures of datagrams with the fastest library that is installed.

libsodium is always there. ed25519-zebra uses the vector units of the processor and takes a third
less time; no wheel of it exists for some platforms. Both accept the same signatures by honest keys.
They differ in keys of small order, under which anyone can sign; such keys are not accepted here.
"""

from collections.abc import Callable

from nacl.bindings import crypto_core_ed25519_is_valid_point, crypto_sign_PUBLICKEYBYTES

from gatepost.events import verify_signature

try:
    from ed25519_zebra import ed_verify as _verify_with_zebra
except ImportError:
    _verify_with_zebra = None

# The signature, the signed bytes, the public key.
CheckSignature = Callable[[bytes, bytes, bytes], bool]


class SignatureChecker:
    """Remembers which public keys are valid: only keys of members come here."""

    def __init__(self, check_signature: CheckSignature | None = None) -> None:
        self._check_signature = check_signature or find_signature_check()
        self._validity: dict[bytes, bool] = {}

    def is_signed_by(self, public_key: bytes, signed: bytes, signature: bytes) -> bool:
        is_valid = self._validity.get(public_key)
        if is_valid is None:
            is_valid = self._validity[public_key] = is_valid_key(public_key)
        return is_valid and self._check_signature(signature, signed, public_key)


def is_valid_key(public_key: bytes) -> bool:
    """Whether this is a point of prime order: those of small order have forgeable signatures."""
    if len(public_key) != crypto_sign_PUBLICKEYBYTES:
        return False
    return bool(crypto_core_ed25519_is_valid_point(public_key))


def find_signature_check() -> CheckSignature:
    return _verify_with_zebra or verify_with_libsodium


def verify_with_libsodium(signature: bytes, signed: bytes, public_key: bytes) -> bool:
    return verify_signature(public_key, signed, signature)
