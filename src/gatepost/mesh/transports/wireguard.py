"""Datagrams over UDP inside a WireGuard tunnel, whose interface this transport manages.

The kernel's WireGuard is used where it is there, otherwise `wireguard-go`. The tool `wg` sets keys
and peers; it reads the private key from its standard input. The private key is derived from the
node key, so it is never stored.

The socket takes datagrams of the tunnel's interface alone. So a source address in the tunnel is
that of the peer to which WireGuard routes it, whatever another interface brings.
"""

import asyncio
import contextlib
import ipaddress
from base64 import b64encode
from collections.abc import Iterable, Mapping
from pathlib import Path

from msgspec import Struct

from gatepost.child_process import ChildProcess, start_process, stop_process
from gatepost.errors import TransportUnavailable
from gatepost.mesh.transport import ReceiveDatagram, TransportCounts
from gatepost.mesh.transports.commands import CommandFailed, find_tool, run_command
from gatepost.mesh.transports.udp import UdpTransport
from gatepost.mesh.tunnel_addresses import Network
from gatepost.mesh.wireguard_keys import WireGuardIdentity

# A datagram of the mesh fits into a path of 1,280 bytes, with the headers of the tunnel.
_MTU = 1_420
_KEEPALIVE_SECS = 25
_READY_SECS = 5.0
_READY_PAUSE_SECS = 0.02
_NO_RIGHTS = (
    "WireGuard needs the right to manage network interfaces (CAP_NET_ADMIN): run the gateway as"
    " root, or grant the right to its service, or choose another mesh.transport"
)


class WireGuardPeer(Struct, frozen=True):
    """Another node in the tunnel. Without an `endpoint`, only it can begin."""

    public_key: str
    tunnel_ip: str
    endpoint: str | None = None
    node: str = ""


class WireGuardSetup(Struct, frozen=True):
    """`port` is that of WireGuard, `datagram_port` the one of the mesh inside the tunnel."""

    interface: str
    network: Network
    port: int
    datagram_port: int


class WireGuardTransport:
    """`configure` may be called at any time; before `start` it only keeps the configuration."""

    def __init__(self, setup: WireGuardSetup, identity: WireGuardIdentity, tunnel_ip: str) -> None:
        self._setup = setup
        self.identity = identity
        self.public_key = identity.public_key
        self.tunnel_ip = tunnel_ip
        self._peers: tuple[WireGuardPeer, ...] = ()
        self._receive: ReceiveDatagram | None = None
        self._udp = UdpTransport(tunnel_ip, setup.datagram_port, setup.interface)
        self.authenticated_hosts: Mapping[str, str] = {}
        self._userspace: ChildProcess | None = None
        self._is_up = False
        self._changing = asyncio.Lock()

    @property
    def local_address(self) -> str:
        return self._udp.local_address

    @property
    def counts(self) -> TransportCounts:
        return self._udp.counts

    async def start(self, receive: ReceiveDatagram) -> None:
        self._receive = receive
        try:
            await self._create_interface()
            self._is_up = True
            await self._apply_peers()
            await self._set_address()
            await self._udp.start(receive)
        except CommandFailed as failed:
            await self.close()
            raise TransportUnavailable(_explain_failure(failed)) from None
        except BaseException:
            await self.close()
            raise

    def send(self, address: str, datagram: bytes) -> None:
        self._udp.send(address, datagram)

    async def configure(self, tunnel_ip: str, peers: Iterable[WireGuardPeer]) -> None:
        """Change this node's address in the tunnel, or the peers; unchanged ones stay untouched."""
        async with self._changing:
            wanted = tuple(sorted(peers, key=lambda peer: peer.public_key))
            has_moved, self.tunnel_ip = tunnel_ip != self.tunnel_ip, tunnel_ip
            has_other_peers, self._peers = wanted != self._peers, wanted
            if has_moved:
                await self._move_socket()
            if has_other_peers and self._is_up:
                await self._apply_peers()

    async def close(self) -> None:
        await self._udp.close()
        self._is_up = False
        userspace, self._userspace = self._userspace, None
        if userspace is not None:
            # Its interface goes with it.
            await stop_process(userspace)
        else:
            with contextlib.suppress(CommandFailed, TransportUnavailable):
                await self._run_ip("link", "delete", "dev", self._setup.interface)

    # -- the interface

    async def _create_interface(self) -> None:
        find_tool("wg", "wireguard-tools")
        name = self._setup.interface
        # Remove an interface that a killed gateway left behind.
        with contextlib.suppress(CommandFailed):
            await self._run_ip("link", "delete", "dev", name)
        try:
            await self._run_ip("link", "add", "dev", name, "type", "wireguard")
        except CommandFailed as failed:
            if "not permitted" in failed.text:
                raise
            await self._start_userspace()

    async def _start_userspace(self) -> None:
        """Start WireGuard as a process, because the kernel lacks it."""
        program = find_tool("wireguard-go", "wireguard-go")
        if not Path("/dev/net/tun").exists():
            raise TransportUnavailable(
                "neither the kernel's WireGuard nor /dev/net/tun is there; load the module"
                " wireguard or tun, or choose another mesh.transport"
            )
        self._userspace = await start_process(program, "-f", self._setup.interface)
        try:
            async with asyncio.timeout(_READY_SECS):
                while not await self._has_interface():
                    await asyncio.sleep(_READY_PAUSE_SECS)
        except TimeoutError:
            raise TransportUnavailable("wireguard-go does not start; " + _NO_RIGHTS) from None

    async def _has_interface(self) -> bool:
        assert self._userspace is not None
        if self._userspace.poll() is not None:
            raise TransportUnavailable("wireguard-go ended at once; " + _NO_RIGHTS)
        try:
            await self._run_wg("show", self._setup.interface)
        except CommandFailed:
            return False
        return True

    async def _set_address(self) -> None:
        name, prefix = self._setup.interface, self._setup.network.prefixlen
        await self._run_ip("address", "flush", "dev", name)
        await self._run_ip("address", "add", f"{self.tunnel_ip}/{prefix}", "dev", name)
        await self._run_ip("link", "set", "dev", name, "mtu", str(_MTU), "up")

    async def _move_socket(self) -> None:
        await self._udp.close()
        counts = self._udp.counts
        self._udp = UdpTransport(self.tunnel_ip, self._setup.datagram_port, self._setup.interface)
        self._udp.counts = counts
        if self._is_up and self._receive is not None:
            await self._set_address()
            await self._udp.start(self._receive)

    async def _apply_peers(self) -> None:
        """Replace the configuration; sessions of peers that stay are not interrupted."""
        text = render_configuration(self._setup.port, bytes(self.identity.private_key), self._peers)
        name, peers = self._setup.interface, self._peers
        # An address may pass from one node to another: in between it belongs to none.
        self.authenticated_hosts = {}
        await self._run_wg("syncconf", name, "/dev/stdin", stdin=text.encode())
        self.authenticated_hosts = {each.node: each.tunnel_ip for each in peers if each.node}

    async def _run_ip(self, *arguments: str) -> bytes:
        return await run_command(find_tool("ip", "iproute2"), *arguments)

    async def _run_wg(self, *arguments: str, stdin: bytes = b"") -> bytes:
        return await run_command(find_tool("wg", "wireguard-tools"), *arguments, stdin=stdin)


def render_configuration(port: int, private_key: bytes, peers: Iterable[WireGuardPeer]) -> str:
    """The configuration as `wg syncconf` reads it."""
    lines = [
        "[Interface]",
        f"PrivateKey = {b64encode(private_key).decode()}",
        f"ListenPort = {port}",
    ]
    for peer in peers:
        bits = ipaddress.ip_address(peer.tunnel_ip).max_prefixlen
        lines += ["[Peer]", f"PublicKey = {peer.public_key}"]
        lines += [f"AllowedIPs = {peer.tunnel_ip}/{bits}"]
        if peer.endpoint is not None:
            lines += [f"Endpoint = {peer.endpoint}"]
        lines += [f"PersistentKeepalive = {_KEEPALIVE_SECS}"]
    return "\n".join(lines) + "\n"


def numeric_endpoint(text: str | None) -> str | None:
    """The endpoint, if it is an address at which another machine can be; None otherwise.

    A name is not taken: `wg` would look it up, and wait for that.
    """
    host, _, port = (text or "").rpartition(":")
    try:
        address = ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
        number = int(port)
    except ValueError:
        return None
    if address.is_unspecified or address.is_multicast or not 0 < number < 65_536:
        return None
    return f"[{address}]:{number}" if address.version == 6 else f"{address}:{number}"


def interface_name(fingerprint: str) -> str:
    """A name that no other gateway of this machine has, also in another network namespace."""
    return f"gp{fingerprint[:10]}"


def _explain_failure(failed: CommandFailed) -> str:
    if "not permitted" in failed.text or "ermission denied" in failed.text:
        return _NO_RIGHTS
    return f"the WireGuard interface cannot be set up ({failed})"
