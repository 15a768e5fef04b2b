"""WireGuard between two network namespaces, where this machine can; its refusals everywhere."""

import asyncio
import os
import shutil
import subprocess
from base64 import b64encode
from pathlib import Path
from queue import Empty

import pytest

from gatepost.errors import TransportUnavailable
from gatepost.mesh.transports.wireguard import (
    WireGuardPeer,
    WireGuardSetup,
    WireGuardTransport,
    interface_name,
    numeric_endpoint,
    render_configuration,
)
from gatepost.mesh.tunnel_addresses import parse_network
from gatepost.mesh.wireguard_keys import WireGuardIdentity
from tests.mesh.transports.namespaces import (
    NamespacedProcess,
    joined_namespaces,
    missing_for_namespaces,
)

SCRIPT = Path(__file__).with_name("wireguard_node.py")


def test_the_configuration_names_each_peer_with_its_address_alone() -> None:
    key = "A" * 43 + "="
    peers = [WireGuardPeer(key, "10.1.0.2", "192.0.2.1:51820"), WireGuardPeer(key, "fd00::2")]
    text = render_configuration(51_820, b"k" * 32, peers)
    assert f"PrivateKey = {b64encode(b'k' * 32).decode()}" in text
    assert text.count("[Peer]") == 2
    assert "AllowedIPs = 10.1.0.2/32" in text
    assert "AllowedIPs = fd00::2/128" in text
    assert text.count("Endpoint") == 1


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("192.0.2.1:51820", "192.0.2.1:51820"),
        ("[2001:db8::1]:7", "[2001:db8::1]:7"),
        ("host.example:7", None),
        ("0.0.0.0:7", None),
        ("224.0.0.1:7", None),
        ("192.0.2.1:0", None),
        ("192.0.2.1:99999", None),
        ("192.0.2.1\nPostUp=x:7", None),
        ("", None),
        (None, None),
    ],
)
def test_only_numeric_addresses_of_machines_are_endpoints(
    text: str | None, endpoint: str | None
) -> None:
    assert numeric_endpoint(text) == endpoint


def test_a_name_of_an_interface_fits() -> None:
    assert len(interface_name("ab" * 16)) <= 15


def create_transport() -> WireGuardTransport:
    setup = WireGuardSetup("gptest0", parse_network("10.201.0.0/16"), 0, 0)
    return WireGuardTransport(setup, WireGuardIdentity(b"k" * 32), "10.201.0.1")


def test_without_its_tools_it_says_which_package_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    transport = create_transport()
    with pytest.raises(TransportUnavailable, match="wireguard-tools"):
        asyncio.run(transport.start(lambda datagram, source: None))


def test_without_the_right_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ip", "wg"):
        tool = tmp_path / name
        tool.write_text("#!/bin/sh\necho 'RTNETLINK: Operation not permitted' >&2\nexit 2\n")
        tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(TransportUnavailable, match="CAP_NET_ADMIN"):
        asyncio.run(create_transport().start(lambda datagram, source: None))


def test_two_namespaces_speak_through_the_tunnel_alone() -> None:
    if reason := missing_for_namespaces("wg", "wireguard-go"):
        pytest.skip(reason)
    prefix = f"gw{os.getpid() % 100_000}"
    with joined_namespaces(prefix, "192.0.2.1", "192.0.2.2") as (first, second):
        start = (first, SCRIPT, f"{prefix}x", "ann", "10.201.0.1")
        other = (second, SCRIPT, f"{prefix}y", "bob", "10.201.0.2")
        with NamespacedProcess(*start) as ann, NamespacedProcess(*other) as bob:
            ann_key, bob_key = ann.hear("ready")[1], bob.hear("ready")[1]
            ann.say("peer", bob_key, "10.201.0.2", "192.0.2.2:51820")
            bob.say("peer", ann_key, "10.201.0.1", "192.0.2.1:51820")
            ann.hear("done"), bob.hear("done")
            assert exchange(ann, bob, "10.201.0.2:7433") == "10.201.0.1:7433"

            bob.say("move", "10.201.0.9")
            bob.hear("done")
            ann.say("peer", bob_key, "10.201.0.9", "192.0.2.2:51820")
            ann.hear("done")
            assert exchange(ann, bob, "10.201.0.9:7433") == "10.201.0.1:7433"

            bob.say("forget", ann_key)
            bob.hear("done")
            ann.say("send", "10.201.0.9:7433", "after-the-end")
            assert bob.hears_nothing("got", 0.5)
        left = subprocess.run(["ip", "-n", first, "link"], capture_output=True, check=True).stdout
        assert f"{prefix}x".encode() not in left, "the interface goes with the transport"


def exchange(sender: NamespacedProcess, receiver: NamespacedProcess, address: str) -> str:
    """Send until something arrives, and return the address that it came from."""
    for _ in range(40):
        sender.say("send", address, f"hello-{address}")
        try:
            _, text, source = receiver.hear("got", 0.5)
        except Empty:
            continue
        if text == f"hello-{address}":
            return source
    raise AssertionError("nothing arrives through the tunnel")
