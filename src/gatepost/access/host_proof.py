"""A gateway proves its key to a joining node before the node sends it a secret.

The joining node sends a nonce with its request for a challenge, and the gateway signs both. The
fingerprint of the signing key is in the invite, or in the room. The invite itself is then encrypted
to that key: a machine in between can pass the proof on, but does not learn the secret.
"""

from hmac import compare_digest

from nacl.exceptions import CryptoError
from nacl.public import SealedBox
from nacl.signing import VerifyKey

from gatepost.access.auth_messages import Challenge
from gatepost.errors import InvalidToken, WrongHost
from gatepost.events import NodeKey, fingerprint_key, frame_parts, verify_signature

_NO_INVITE = "this gateway did not issue this invite; check where it came from"


def sign_host_proof(key: NodeKey, challenge: Challenge, nonce: str) -> bytes:
    return key.sign(_host_statement(challenge, nonce))


def check_host_proof(challenge: Challenge, nonce: str, fingerprint: str) -> None:
    """Raise WrongHost unless the gateway with this key made the challenge for this nonce."""
    key, statement = challenge.issuer_key, _host_statement(challenge, nonce)
    is_expected = compare_digest(fingerprint_key(key), fingerprint)
    if not is_expected or not verify_signature(key, statement, challenge.proof):
        raise WrongHost("the answer comes from another gateway than asked; do not continue")


def encrypt_invite(token: str, host_key: bytes) -> bytes:
    try:
        return SealedBox(VerifyKey(host_key).to_curve25519_public_key()).encrypt(token.encode())
    except (CryptoError, RuntimeError):
        raise WrongHost("the key of the gateway is no key; do not continue") from None


def decrypt_invite(encrypted: bytes, key: NodeKey) -> str:
    try:
        return SealedBox(key.exchange_key).decrypt(encrypted).decode()
    except (CryptoError, UnicodeDecodeError):
        raise InvalidToken(_NO_INVITE) from None


def _host_statement(challenge: Challenge, nonce: str) -> bytes:
    texts = (nonce, challenge.challenge, challenge.issuer_id)
    return frame_parts(
        "gatepost/host-proof/1", *(each.encode() for each in texts), challenge.issuer_key
    )
