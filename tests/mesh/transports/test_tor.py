"""Tor: its refusals, and with `--full` a private network on loopback."""

import asyncio
import contextlib
import shutil
from pathlib import Path

import pytest

from gatepost.errors import TransportUnavailable
from gatepost.mesh.onion.onion_identity import OnionIdentity
from gatepost.mesh.transports.tor import OnionService, TorTransport
from gatepost.mesh.transports.tor_control import TorControlLost
from gatepost.mesh.transports.tor_process import TorProcess
from tests.mesh.transports.private_tor import missing_for_tor, private_tor_network
from tests.waiting import async_wait_until


def test_without_tor_it_says_which_package_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    transport = TorTransport(TorProcess(tmp_path), OnionService(OnionIdentity(b"a" * 32)))
    with pytest.raises(TransportUnavailable, match="apt-get install tor"):
        asyncio.run(transport.start(lambda datagram, source: None))


def test_a_tor_that_ends_at_once_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_, **__: "/bin/false")
    transport = TorTransport(TorProcess(tmp_path), OnionService(OnionIdentity(b"a" * 32)))
    with pytest.raises(TransportUnavailable, match="ended at its start"):
        asyncio.run(transport.start(lambda datagram, source: None))
    assert "CookieAuthentication 1" in (tmp_path / "torrc").read_text()
    assert OnionIdentity(b"a" * 32).key_blob not in (tmp_path / "torrc").read_text()


def test_before_the_start_nothing_is_sent(tmp_path: Path) -> None:
    transport = TorTransport(TorProcess(tmp_path), OnionService(OnionIdentity(b"a" * 32)))
    transport.send(f"{transport.onion_host}:7433", b"x")
    transport.send("192.0.2.1:7433", b"x")
    assert transport.counts.dropped_unreachable == 2


def test_a_tor_that_was_killed_is_started_again_at_the_same_port(tmp_path: Path) -> None:
    if reason := missing_for_tor():
        pytest.skip(reason)
    asyncio.run(_kill_and_go_on(tmp_path))


async def _kill_and_go_on(folder: Path) -> None:
    # Its only directory authority does not exist, so that it speaks to nobody.
    nobody = f"DirAuthority nobody orport=1 v3ident={'A' * 40} 127.0.0.1:1 {'A' * 40}"
    tor = TorProcess(folder / "tor", lines=("UseDefaultFallbackDirs 0", nobody))
    transport = TorTransport(tor, OnionService(OnionIdentity(b"a" * 32)))
    await transport.start(lambda datagram, source: None)
    try:
        first, proxy = tor.control, transport.socks_url
        restarted = asyncio.create_task(transport.restart_when_ended())
        assert first is not None
        with contextlib.suppress(TorControlLost):
            await first.ask("SIGNAL HALT")
        await restarted
        assert tor.control is not None and tor.control is not first
        name = transport.onion_host.removesuffix(".onion")
        assert await tor.control.read_info("onions/current") == name
        assert transport.socks_url == proxy
    finally:
        await transport.close()


@pytest.mark.full
@pytest.mark.timeout(400)
def test_a_private_tor_network_carries_datagrams(tmp_path: Path) -> None:
    if reason := missing_for_tor():
        pytest.skip(reason)
    with private_tor_network(tmp_path) as settings:
        asyncio.run(_speak_through(tmp_path, settings))


async def _speak_through(folder: Path, settings: Path) -> None:
    received: list[tuple[bytes, str]] = []
    ann = TorTransport(TorProcess(folder / "ann", settings), OnionService(OnionIdentity(b"a" * 32)))
    bob = TorTransport(TorProcess(folder / "bob", settings), OnionService(OnionIdentity(b"b" * 32)))
    try:
        await asyncio.gather(
            ann.start(lambda datagram, source: None),
            bob.start(lambda datagram, source: received.append((datagram, source))),
        )

        def arrives() -> bool:
            ann.send(bob.local_address, b"hello")
            return bool(received)

        await async_wait_until(arrives, 120)
        assert received[0] == (b"hello", ann.local_address)
    finally:
        await ann.close()
        await bob.close()
