"""Each reason why a connection cannot be opened has its own sentence."""

import errno
import socket
import ssl

import httpx
import pytest

from gatepost.connect.connect_errors import explain_connect_error, is_untrusted
from gatepost.tls import OtherCertificate

URL = "https://vps.example:7433"


def _tls_error(reason: str) -> ssl.SSLError:
    error = ssl.SSLError(1, f"[SSL: {reason}]")
    error.reason = reason
    return error


def _untrusted(code: int) -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_code = code
    return error


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "refused"), "nothing listens at"),
        (socket.gaierror(-2, "unknown"), "the name vps.example has no address"),
        (TimeoutError(), "does not answer"),
        (OSError(errno.EHOSTUNREACH, "no route"), "there is no route"),
        (_tls_error("WRONG_VERSION_NUMBER"), "does not speak TLS"),
        (_tls_error("NO_SHARED_CIPHER"), "the TLS handshake with"),
        (_untrusted(18), "use --ca"),
        (_untrusted(62), "is for another name"),
        (_untrusted(10), "has expired"),
        (OtherCertificate("another"), "another certificate than the one its invite named"),
    ],
)
def test_a_cause_has_its_sentence_however_deep_it_is(error: Exception, sentence: str) -> None:
    wrapped = httpx.ConnectError("All connection attempts failed")
    wrapped.__cause__ = ExceptionGroup("attempts", [OSError("first"), error])
    for each in (error, wrapped):
        explained = explain_connect_error(URL, each, "use --ca")
        assert explained is not None
        assert sentence in explained


def test_an_unknown_cause_is_left_to_the_caller() -> None:
    secret = httpx.ReadError("Bearer secret")
    secret.__context__ = secret
    assert explain_connect_error(URL, secret, "") is None
    assert not is_untrusted(secret)
    assert is_untrusted(_untrusted(18))
