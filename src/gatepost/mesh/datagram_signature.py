"""Signed datagrams: the signature is the last field, and covers all bytes before it.

A reader checks the signature before it decodes anything but the envelope and an announcement, whose
HMAC is cheaper to check. The signature also covers the room, so that a datagram counts in one room
only.
"""

from base64 import b64encode
from binascii import a2b_base64
from hmac import compare_digest, digest
from typing import Protocol

from gatepost.events import NodeKey
from gatepost.mesh.messages import PeerAnnounce
from gatepost.mesh.signature_check import SignatureChecker

_FIELD = b',"signature":"'
_END = b'"}'
_SIGNATURE_CHARS = 88
# The bytes that a signature adds to a datagram.
SIGNATURE_BYTES = len(_FIELD) + _SIGNATURE_CHARS + len(_END) - 1
_TAIL_BYTES = SIGNATURE_BYTES + 1
_CONTEXT = b"gatepost mesh datagram\0"


class DatagramSigner(Protocol):
    """Signs as one node, and knows the signatures of others by their public keys."""

    def sign(self, text: bytes) -> bytes: ...

    def verify(self, public_key: bytes, text: bytes, signature: bytes) -> bool: ...


class NodeKeySigner:
    """Ed25519 signatures of node keys. `room` tells rooms apart."""

    def __init__(self, key: NodeKey, room: bytes) -> None:
        self._key = key
        self._context = _CONTEXT + room + b"\0"
        self._checker = SignatureChecker()

    def sign(self, text: bytes) -> bytes:
        return self._key.sign(self._context + text)

    def verify(self, public_key: bytes, text: bytes, signature: bytes) -> bool:
        return self._checker.is_signed_by(public_key, self._context + text, signature)


def append_signature(text: bytes, signer: DatagramSigner) -> bytes:
    """Add the signature to a JSON object."""
    return text[:-1] + _FIELD + b64encode(signer.sign(text)) + _END


def split_signature(datagram: bytes) -> tuple[bytes, bytes | None]:
    """The signed JSON object, and its signature; None if the datagram has none."""
    tail = datagram[-_TAIL_BYTES:]
    if not (tail.startswith(_FIELD) and tail.endswith(_END)):
        return datagram, None
    try:
        signature = a2b_base64(tail[len(_FIELD) : -len(_END)], strict_mode=True)
    except ValueError:
        return datagram, None
    return datagram[:-_TAIL_BYTES] + b"}", signature


def compute_hmac(cluster_token: str, sender: str, to: str, announce: PeerAnnounce) -> str:
    """The HMAC by which an announcement proves the cluster token without showing it."""
    fields = (sender, to, announce.wg_pubkey, announce.wg_endpoint, announce.tunnel_ip)
    return b64encode(digest(cluster_token.encode(), "\0".join(fields).encode(), "sha256")).decode()


def is_hmac_valid(tokens: tuple[str, ...], sender: str, to: str, announce: PeerAnnounce) -> bool:
    """Whether the announcement was made with one of the valid cluster tokens."""
    shown = announce.hmac.encode()
    expected = [compute_hmac(token, sender, to, announce).encode() for token in tokens]
    return any(compare_digest(shown, each) for each in expected)
