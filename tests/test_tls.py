"""Certificates a gateway makes itself, and the pins by which it is known."""

import asyncio
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from socket import create_connection
from threading import Thread

import httpx
import pytest

from gatepost import tls
from gatepost.errors import ConfigError

NOW = 1_790_000_000_000


def _write_certificate(folder: Path) -> tuple[Path, Path]:
    key, certificate = folder / "tls.key", folder / "tls.crt"
    key.write_bytes(tls.create_key())
    certificate.write_bytes(tls.create_certificate(key.read_bytes(), "vps.example", NOW))
    return certificate, key


def _pin(certificate: Path) -> str:
    pin = tls.own_certificate_pin(certificate)
    assert pin is not None
    return pin


class _QuietServer(HTTPServer):
    def handle_error(self, request: object, address: object) -> None:
        """A client that does not like the certificate just leaves."""


class _EmptyAnswer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def _listening(certificate: Path, key: Path) -> Iterator[int]:
    """A listener with this certificate; its port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with _QuietServer(("127.0.0.1", 0), _EmptyAnswer) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def test_a_pin_belongs_to_the_key_and_survives_a_renewal(tmp_path: Path) -> None:
    certificate, key = _write_certificate(tmp_path)
    before = _pin(certificate)
    assert len(before) == tls.PIN_DIGITS
    certificate.write_bytes(tls.create_certificate(key.read_bytes(), "other.example", NOW + 1))
    assert _pin(certificate) == before
    (tmp_path / "other").mkdir()
    assert _pin(_write_certificate(tmp_path / "other")[0]) != before


@pytest.mark.parametrize("transport", ["socket", "httpx", "asyncio"])
def test_only_the_pinned_key_is_talked_to(tmp_path: Path, transport: str) -> None:
    certificate, key = _write_certificate(tmp_path)
    pin = _pin(certificate)
    with _listening(certificate, key) as port:
        _talk(transport, port, tls.pinned_context("0" * 64, pin))
        with pytest.raises((tls.OtherCertificate, httpx.ConnectError)):
            _talk(transport, port, tls.pinned_context("0" * 64))
        with pytest.raises((tls.OtherCertificate, httpx.ConnectError)):
            _talk(transport, port, tls.pinned_context())


def _talk(transport: str, port: int, context: ssl.SSLContext) -> None:
    if transport == "socket":
        with create_connection(("127.0.0.1", port)) as plain, context.wrap_socket(plain):
            pass
    elif transport == "httpx":
        with httpx.Client(verify=context, trust_env=False) as http:
            assert http.get(f"https://127.0.0.1:{port}/").status_code == 204
    else:
        asyncio.run(_talk_async(port, context))


async def _talk_async(port: int, context: ssl.SSLContext) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    writer.close()
    await writer.wait_closed()


def test_what_is_no_certificate_is_named(tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.write_text("nothing")
    for call in (
        lambda: tls.own_certificate_pin(empty),
        lambda: tls.own_certificate_pin(tmp_path / "missing.pem"),
        lambda: tls.read_authorities(empty, "room.tls_ca"),
        lambda: tls.read_authorities(tmp_path / "missing.pem", "room.tls_ca"),
        lambda: tls.create_certificate(b"nothing", "vps", NOW),
    ):
        with pytest.raises(ConfigError):
            call()
