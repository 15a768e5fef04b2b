"""Sentences for connections that could not be opened, with the next step for each cause."""

import errno
import socket
import ssl
from collections.abc import Iterator
from urllib.parse import urlsplit

from gatepost.tls import OtherCertificate

# How a client trusts one more certificate.
TRUST_ADVICE = "name a file with the certificate of its authority in SSL_CERT_FILE"
_NAME_MISMATCH_CODES = (62, 64)
_EXPIRED_CODE = 10
# OpenSSL's messages for an answer that is not TLS.
_PLAIN_REASONS = (
    "WRONG_VERSION_NUMBER",
    "HTTP_REQUEST",
    "RECORD_LAYER_FAILURE",
    "UNKNOWN_PROTOCOL",
)
_NO_ROUTE = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EADDRNOTAVAIL)


def explain_connect_error(url: str, error: BaseException, trust_advice: str) -> str | None:
    """Say why `url` could not be reached; None if the error has no known cause.

    `trust_advice` tells how the caller trusts one more certificate. The sentence never quotes the
    error: its text may quote the request.
    """
    for cause in _walk_causes(error):
        if isinstance(cause, ssl.SSLError):
            return _explain_tls(url, cause, trust_advice)
        if isinstance(cause, socket.gaierror):
            return f"the name {urlsplit(url).hostname} has no address: check its spelling"
        if isinstance(cause, ConnectionRefusedError):
            return (
                f"nothing listens at {url}: check host and port, and that a gateway runs there"
                " and listens on that address (`listen.host`, `listen.port`)"
            )
        if isinstance(cause, TimeoutError) or _has_errno(cause, (errno.ETIMEDOUT,)):
            return f"{url} does not answer: a firewall may be in between, or the machine is off"
        if _has_errno(cause, _NO_ROUTE):
            return f"there is no route to {url}: check the address and this machine's network"
    return None


def is_untrusted(error: BaseException) -> bool:
    """Whether the peer's certificate is the reason of a failed connection."""
    return any(isinstance(each, ssl.SSLCertVerificationError) for each in _walk_causes(error))


def _explain_tls(url: str, error: ssl.SSLError, trust_advice: str) -> str | None:
    if isinstance(error, OtherCertificate):
        return (
            f"{url} has another certificate than the one its invite named: if its key was"
            " replaced, ask for a new invite; otherwise another machine answers in its place"
        )
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in _NAME_MISMATCH_CODES:
            return f"the certificate of {url} is for another name: use the name that is in it"
        if error.verify_code == _EXPIRED_CODE:
            return f"the certificate of {url} has expired: renew it there"
        return f"this machine does not trust the certificate of {url}: {trust_advice}"
    if error.reason in _PLAIN_REASONS:
        return (
            f"{url} does not speak TLS: give that gateway a certificate"
            " (`gatepost init --public`), or write http:// where the network itself is trusted"
        )
    return f"the TLS handshake with {url} failed ({error.reason or 'the connection ended'})"


def _has_errno(error: BaseException, numbers: tuple[int, ...]) -> bool:
    return isinstance(error, OSError) and error.errno in numbers


def _walk_causes(error: BaseException) -> Iterator[BaseException]:
    """The error and all errors that led to it, innermost last."""
    open_errors, seen = [error], set[int]()
    while open_errors:
        current = open_errors.pop(0)
        if id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        causes = (current.__cause__, current.__context__)
        open_errors += [each for each in causes if each is not None]
        if isinstance(current, BaseExceptionGroup):
            open_errors += current.exceptions
