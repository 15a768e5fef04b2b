"""An address from the room leads to another machine, and to the one that was checked."""

import asyncio
import socket
import ssl
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from gatepost import tls
from gatepost.errors import WrongHost
from gatepost.links.connections import dial_address
from gatepost.links.connections.dial_address import (
    PinnedTransport,
    check_address,
    resolve_address,
)

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.9.9.9",
        "::1",
        "0.0.0.0",
        "::",
        "::ffff:127.0.0.1",
        "64:ff9b::7f00:1",
    ],
)
def test_this_machine_is_dialled_only_if_that_is_allowed(address: str) -> None:
    with pytest.raises(WrongHost, match="on this machine"):
        check_address(address, allow_loopback=False)
    check_address(address, allow_loopback=True)


@pytest.mark.parametrize(
    "address", ["169.254.169.254", "fe80::1%eth0", "224.0.0.1", "ff02::1", "240.0.0.1"]
)
def test_addresses_that_no_gateway_can_have_are_never_dialled(address: str) -> None:
    with pytest.raises(WrongHost, match="not one that a gateway can have"):
        check_address(address, allow_loopback=True)


@pytest.mark.parametrize("address", ["192.0.2.7", "10.1.2.3", "2001:db8::7", "64:ff9b::a01:203"])
def test_other_machines_are_dialled(address: str) -> None:
    check_address(address, allow_loopback=False)


@pytest.mark.parametrize("name", ["localhost", "127.1", "0x7f.1", "2130706433"])
async def test_a_name_for_this_machine_is_as_good_as_its_address(name: str) -> None:
    with pytest.raises(WrongHost):
        await resolve_address(f"http://{name}:7433", allow_loopback=False)


async def test_one_bad_address_among_good_ones_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(0, 0, 0, "", (each, 1)) for each in ("192.0.2.1", "127.0.0.1")]
    monkeypatch.setattr(dial_address, "_resolve_name", lambda host: found)
    with pytest.raises(WrongHost):
        await resolve_address("https://mixed.example:1", allow_loopback=False)


async def _answer_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
    writer.close()
    return head


@pytest.fixture
async def listener() -> AsyncIterator[tuple[int, list[bytes]]]:
    heads: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await _answer_nothing(reader, writer))

    server = await asyncio.start_server(answer, "127.0.0.1", 0, family=socket.AF_INET)
    async with server:
        yield server.sockets[0].getsockname()[1], heads


async def test_the_checked_address_is_dialled_under_the_name(
    listener: tuple[int, list[bytes]],
) -> None:
    """The name may resolve to something else a moment later."""
    port, heads = listener
    async with httpx.AsyncClient(transport=PinnedTransport("127.0.0.1")) as http:
        answer = await http.get(f"http://gateway.invalid:{port}/x")
    assert answer.status_code == 200
    assert f"host: gateway.invalid:{port}".encode() in heads[0].lower()


@pytest.mark.parametrize(("name", "trusted"), [("gateway.example", True), ("other.example", False)])
async def test_the_certificate_is_checked_by_the_name_and_not_by_the_address(
    tmp_path: Path, name: str, trusted: bool
) -> None:
    key, certificate = tmp_path / "tls.key", tmp_path / "tls.crt"
    key.write_bytes(tls.create_key())
    now = int(time.time() * 1000)
    certificate.write_bytes(tls.create_certificate(key.read_bytes(), "gateway.example", now))
    ours = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ours.load_cert_chain(certificate, key)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _answer_nothing(reader, writer)

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=ours)
    port = server.sockets[0].getsockname()[1]
    authority = tls.authority_context(certificate.read_text())
    pinned = tls.pinned_context(tls.own_certificate_pin(certificate) or "")
    async with server:
        for context, expected in ((authority, trusted), (pinned, True)):
            transport = PinnedTransport("127.0.0.1", verify=context)
            async with httpx.AsyncClient(transport=transport) as http:
                try:
                    found = (await http.get(f"https://{name}:{port}/")).status_code
                except httpx.ConnectError:
                    found = 0
            assert found == (200 if expected else 0)
