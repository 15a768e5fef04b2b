"""Descriptors of onion services, version 3: reading those that Tor made, and merging several.

All nodes open the master service with the same key, each with its own intro points. The publisher
merges these into one descriptor, certifies them with a new descriptor signing key, and signs it
with the blinded master key (rend-spec-v3, section 2). A client that uses any of the intro points
reaches the node that opened it.
"""

import re
from base64 import b64decode, b64encode
from collections.abc import Iterable
from hashlib import sha3_256, shake_256
from textwrap import wrap
from typing import TYPE_CHECKING

from msgspec import Struct
from nacl.signing import SigningKey

from gatepost.clock import Clock
from gatepost.errors import EncryptionError
from gatepost.mesh.onion.onion_blinding import (
    DEFAULT_PERIOD_MINUTES,
    BlindedKey,
    encode_int8,
    find_blinded_key,
    subcredential,
)
from gatepost.mesh.onion.onion_identity import OnionIdentity

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers import Cipher, modes

MAX_MERGED_POINTS = 10
_KEY, _SALT, _MAC = 32, 16, 32
_SIGNATURE_BYTES = 64
_PADDED_BYTES = 10_000
_LIFETIME_MINUTES = 180
_CERT_HOURS = 54
_SIGNING_CERT, _AUTH_CERT, _ENC_CERT = 0x08, 0x09, 0x0B
_SUPERENCRYPTED = b"hsdir-superencrypted-data"
_ENCRYPTED = b"hsdir-encrypted-data"
_SIGNATURE_PREFIX = b"Tor onion service descriptor sig v3"
_FAKE_CLIENTS = 16
_MESSAGE = re.compile(r"-----BEGIN MESSAGE-----\n(.*?)-----END MESSAGE-----", re.DOTALL)
_CERTIFICATE = r"-----BEGIN ED25519 CERT-----\n(.*?)-----END ED25519 CERT-----"
_SIGNING_KEY = re.compile(rf"descriptor-signing-key-cert\n{_CERTIFICATE}", re.DOTALL)
_POINT = re.compile(
    r"introduction-point (?P<link>\S+)\n.*?onion-key ntor (?P<onion>\S+)\n"
    rf".*?auth-key\n{_CERTIFICATE.replace('(', '(?P<auth>')}"
    r".*?enc-key ntor (?P<enc>\S+)\n"
    rf".*?enc-key-cert\n{_CERTIFICATE.replace('(', '(?P<cert>')}",
    re.DOTALL,
)


class OnionIntroPoint(Struct, frozen=True):
    """One intro point without its certificates, which each descriptor makes anew."""

    onion_key: bytes
    auth_key: bytes
    enc_key: bytes
    enc_cert_key: bytes
    link_specifiers: bytes

    def pack(self) -> str:
        keys = self.onion_key + self.auth_key + self.enc_key + self.enc_cert_key
        return b64encode(keys + self.link_specifiers).decode()

    @classmethod
    def unpack(cls, text: str) -> "OnionIntroPoint":
        """Read a packed point; EncryptionError if it is malformed."""
        try:
            data = b64decode(text, validate=True)
        except ValueError:
            data = b""
        if not 4 * _KEY < len(data) <= 4 * _KEY + 255:
            raise EncryptionError("this is no intro point of an onion service")
        onion, auth, enc, cert = (data[start : start + _KEY] for start in range(0, 4 * _KEY, _KEY))
        return cls(onion, auth, enc, cert, data[4 * _KEY :])


class OpenedDescriptor(Struct, frozen=True):
    """A descriptor that was decrypted with the key of its service."""

    blinded_key: bytes
    revision: int
    points: tuple[OnionIntroPoint, ...]


def open_descriptor(text: str, identity: OnionIdentity) -> OpenedDescriptor:
    """Decrypt a descriptor of this service; EncryptionError if it is of another or damaged."""
    try:
        certificate = _SIGNING_KEY.search(text)
        revision = re.search(r"revision-counter (\d{1,19})\n", text)
        assert certificate is not None and revision is not None
        blinded = _signing_key_of(_decode_lines(certificate[1]))
        layer = _Layer(subcredential(identity, blinded), int(revision[1]), blinded)
        middle = layer.decrypt(_message_in(text), _SUPERENCRYPTED).rstrip(b"\0").decode()
        inner = layer.decrypt(_message_in(middle), _ENCRYPTED).rstrip(b"\0").decode()
        points = tuple(_read_point(found) for found in _POINT.finditer(inner))
    except (AssertionError, ValueError, IndexError):
        raise EncryptionError("the descriptor of the onion service cannot be read") from None
    return OpenedDescriptor(blinded, int(revision[1]), points)


def build_descriptor(
    identity: OnionIdentity,
    blinded_key: bytes,
    points: Iterable[OnionIntroPoint],
    clock: Clock,
    period_minutes: int = DEFAULT_PERIOD_MINUTES,
) -> str:
    """A descriptor of the service with these intro points, in the period of the blinded key.

    The time is its revision: of two descriptors a directory keeps the later one.
    """
    now = revision = clock.now()
    blinded = find_blinded_key(identity, blinded_key, now, period_minutes)
    if blinded is None:
        raise EncryptionError("the period of the onion service's key is over")
    signing = SigningKey(clock.random(_KEY))
    hours = now // 3_600_000 + _CERT_HOURS
    layer = _Layer(subcredential(identity, blinded_key), revision, blinded_key)
    inner = "create2-formats 2\n" + "".join(_write_point(each, signing, hours) for each in points)
    encrypted = layer.encrypt(_pad(inner.encode(), 128), _ENCRYPTED, clock)
    middle = _fake_clients(clock) + "encrypted\n" + _armour("MESSAGE", encrypted)
    outer = layer.encrypt(_pad(middle.encode(), _PADDED_BYTES), _SUPERENCRYPTED, clock)
    certificate = _certify(_SIGNING_CERT, bytes(signing.verify_key), hours, blinded)
    text = (
        f"hs-descriptor 3\ndescriptor-lifetime {_LIFETIME_MINUTES}\n"
        f"descriptor-signing-key-cert\n{_armour('ED25519 CERT', certificate)}"
        f"revision-counter {revision}\nsuperencrypted\n{_armour('MESSAGE', outer)}"
    )
    signature = signing.sign(_SIGNATURE_PREFIX + text.encode()).signature
    return f"{text}signature {_encode(signature)}\n"


def merge_intro_points(groups: Iterable[Iterable[OnionIntroPoint]]) -> list[OnionIntroPoint]:
    """Intro points of all nodes, in turn, so that every node has some if there are too many."""
    remaining = [list(group) for group in groups]
    merged: dict[OnionIntroPoint, None] = {}
    while any(remaining) and len(merged) < MAX_MERGED_POINTS:
        for group in remaining:
            if group and len(merged) < MAX_MERGED_POINTS:
                merged[group.pop(0)] = None
    return list(merged)


class _Layer(Struct, frozen=True):
    """One encryption layer. No client authorization is used, so both layers have the same key."""

    subcredential: bytes
    revision: int
    blinded_key: bytes

    def encrypt(self, plain: bytes, purpose: bytes, clock: Clock) -> bytes:
        salt = clock.random(_SALT)
        cipher, mac_key = self._keys(salt, purpose)
        encryptor = cipher.encryptor()
        encrypted = encryptor.update(plain) + encryptor.finalize()
        return salt + encrypted + _mac(mac_key, salt, encrypted)

    def decrypt(self, data: bytes, purpose: bytes) -> bytes:
        salt, encrypted, mac = data[:_SALT], data[_SALT:-_MAC], data[-_MAC:]
        cipher, mac_key = self._keys(salt, purpose)
        if mac != _mac(mac_key, salt, encrypted):
            raise ValueError("the layer was encrypted for another service")
        decryptor = cipher.decryptor()
        return bytes(decryptor.update(encrypted) + decryptor.finalize())

    def _keys(self, salt: bytes, purpose: bytes) -> "tuple[Cipher[modes.CTR], bytes]":
        # Here, because most gateways have no onion service.
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

        secret = self.blinded_key + self.subcredential + encode_int8(self.revision)
        material = shake_256(secret + salt + purpose).digest(_KEY + _SALT + _KEY)
        cipher = Cipher(algorithms.AES(material[:_KEY]), modes.CTR(material[_KEY : _KEY + _SALT]))
        return cipher, material[_KEY + _SALT :]


def _mac(key: bytes, salt: bytes, encrypted: bytes) -> bytes:
    lengths = (encode_int8(len(key)), encode_int8(len(salt)))
    return sha3_256(lengths[0] + key + lengths[1] + salt + encrypted).digest()


def _read_point(found: "re.Match[str]") -> OnionIntroPoint:
    point = OnionIntroPoint(
        onion_key=_decode_lines(found["onion"]),
        auth_key=_certified_key(_decode_lines(found["auth"])),
        enc_key=_decode_lines(found["enc"]),
        enc_cert_key=_certified_key(_decode_lines(found["cert"])),
        link_specifiers=_decode_lines(found["link"]),
    )
    return OnionIntroPoint.unpack(point.pack())


def _write_point(point: OnionIntroPoint, signing: SigningKey, hours: int) -> str:
    auth = _certify(_AUTH_CERT, point.auth_key, hours, signing)
    enc = _certify(_ENC_CERT, point.enc_cert_key, hours, signing)
    return (
        f"introduction-point {b64encode(point.link_specifiers).decode()}\n"
        f"onion-key ntor {b64encode(point.onion_key).decode()}\n"
        f"auth-key\n{_armour('ED25519 CERT', auth)}"
        f"enc-key ntor {b64encode(point.enc_key).decode()}\n"
        f"enc-key-cert\n{_armour('ED25519 CERT', enc)}"
    )


def _certify(kind: int, key: bytes, hours: int, signer: SigningKey | BlindedKey) -> bytes:
    """An Ed25519 certificate that contains the key of its signer."""
    public = signer.public_key if isinstance(signer, BlindedKey) else bytes(signer.verify_key)
    head = bytes([1, kind]) + hours.to_bytes(4, "big") + b"\x01" + key
    body = head + b"\x01" + len(public).to_bytes(2, "big") + b"\x04\x00" + public
    # The signature comes first in a signed message of PyNaCl.
    return body + bytes(signer.sign(body))[:_SIGNATURE_BYTES]


def _certified_key(certificate: bytes) -> bytes:
    return certificate[7:39]


def _signing_key_of(certificate: bytes) -> bytes:
    """The key in the extension of a certificate, which signed it."""
    return certificate[44:76]


def _fake_clients(clock: Clock) -> str:
    """Invented clients, which hide whether a service is restricted to known clients."""
    lines = ["desc-auth-type x25519", f"desc-auth-ephemeral-key {_encode(clock.random(_KEY))}"]
    for _ in range(_FAKE_CLIENTS):
        parts = (clock.random(8), clock.random(_SALT), clock.random(_SALT))
        lines.append("auth-client " + " ".join(map(_encode, parts)))
    return "\n".join(lines) + "\n"


def _armour(name: str, data: bytes) -> str:
    lines = "\n".join(wrap(b64encode(data).decode(), 64))
    return f"-----BEGIN {name}-----\n{lines}\n-----END {name}-----\n"


def _message_in(text: str) -> bytes:
    found = _MESSAGE.search(text)
    if found is None:
        raise ValueError("the descriptor has no message")
    return _decode_lines(found[1])


def _decode_lines(text: str) -> bytes:
    joined = "".join(text.split())
    return b64decode(joined + "=" * (-len(joined) % 4), validate=True)


def _encode(data: bytes) -> str:
    return b64encode(data).decode().rstrip("=")


def _pad(data: bytes, multiple: int) -> bytes:
    return data + b"\0" * (-len(data) % multiple)
