"""TLS: certificates that a gateway makes for itself, and pins of public keys.

A pin is the SHA-256 of a certificate's public key (its SubjectPublicKeyInfo), as 64 hex digits. A
pinned peer is known by exactly this key, whatever name, issuer and dates its certificate has. So a
certificate that is renewed for the same key keeps its pin.
"""

import datetime
import functools
import ipaddress
import ssl
from hashlib import sha256
from hmac import compare_digest
from pathlib import Path
from typing import TYPE_CHECKING

from gatepost.errors import ConfigError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import Certificate, GeneralName

PIN_DIGITS = 64
_LIFE = datetime.timedelta(days=3650)
# The clock of another machine may be behind ours.
_BACKDATED = datetime.timedelta(days=1)


class OtherCertificate(ssl.SSLCertVerificationError):
    """The peer has another key than the pinned one."""


class PinnedSslObject(ssl.SSLObject):
    def do_handshake(self) -> None:
        super().do_handshake()
        _check_pin(self)


class PinnedSslSocket(ssl.SSLSocket):
    def do_handshake(self, block: bool = False) -> None:
        super().do_handshake(block)
        _check_pin(self)


class PinnedContext(ssl.SSLContext):
    """Accepts exactly the keys in `pins`. The handshake fails before anything else is sent."""

    sslobject_class = PinnedSslObject
    sslsocket_class = PinnedSslSocket
    pins: tuple[str, ...] = ()


@functools.lru_cache(maxsize=512)
def pinned_context(*pins: str) -> PinnedContext:
    """A context shared by all users of the same pins; it must not be changed."""
    context = PinnedContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.pins = pins
    return context


def authority_context(*authorities: str) -> ssl.SSLContext:
    """A context that trusts the system's authorities and these PEM texts."""
    context = ssl.create_default_context()
    for text in filter(None, authorities):
        context.load_verify_locations(cadata=text)
    return context


def read_authorities(file: Path, setting: str) -> str:
    """The PEM text of a file; raises ConfigError, which names the setting or option."""
    try:
        text = file.expanduser().read_text(encoding="ascii")
        authority_context(text)
    except (OSError, ValueError) as error:
        why = "it is not text" if isinstance(error, UnicodeError) else error
        raise ConfigError(f"{setting} cannot be used: {file}: {why}") from None
    return text


def local_context(certificate_file: str) -> ssl.SSLContext:
    """A context for the gateway on this machine, known by its certificate file alone."""
    return pinned_context(public_key_pin(read_certificate(Path(certificate_file))))


def own_certificate_pin(certificate_file: Path) -> str | None:
    """The pin of a certificate that no authority signed; None for any other certificate.

    Certificates of an authority are verified by name, and usually change their key.
    """
    certificate = read_certificate(certificate_file)
    return public_key_pin(certificate) if certificate.issuer == certificate.subject else None


def public_key_pin(certificate: "Certificate") -> str:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    key = certificate.public_key()
    return sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()


def create_key() -> bytes:
    """A new private key for a certificate, as PEM."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def create_certificate(key_pem: bytes, host: str, now: int) -> bytes:
    """A certificate for this host, signed with its own key, as PEM. `now` is epoch ms."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.serialization import Encoding

    key = _load_key(key_pem)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, host[:64])])
    made_at = datetime.datetime.fromtimestamp(now // 1000, datetime.UTC)
    names = [_general_name(host), _general_name("localhost"), _general_name("127.0.0.1")]
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(made_at - _BACKDATED)
        .not_valid_after(made_at + _LIFE)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)


def _load_key(key_pem: bytes) -> "EllipticCurvePrivateKey":
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(key_pem, None)
    except (ValueError, TypeError):
        raise ConfigError("the key of the certificate is damaged or encrypted") from None
    if not isinstance(key, EllipticCurvePrivateKey):
        raise ConfigError("the key of the certificate is not one that `gatepost init` made")
    return key


def _general_name(host: str) -> "GeneralName":
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def read_certificate(file: Path) -> "Certificate":
    """The first certificate of a PEM file: the one the gateway itself has."""
    from cryptography.x509 import load_pem_x509_certificate

    try:
        return load_pem_x509_certificate(file.read_bytes())
    except OSError as error:
        raise ConfigError(f"the certificate {file} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{file} holds no certificate: {error}") from None


def _check_pin(connection: ssl.SSLObject | ssl.SSLSocket) -> None:
    from cryptography.x509 import load_der_x509_certificate

    context = connection.context
    assert isinstance(context, PinnedContext), "only a PinnedContext makes these connections"
    encoded = connection.getpeercert(binary_form=True)
    found = "" if encoded is None else public_key_pin(load_der_x509_certificate(encoded))
    if not any(compare_digest(found, pin) for pin in context.pins):
        raise OtherCertificate("the peer has another certificate than the pinned one")
