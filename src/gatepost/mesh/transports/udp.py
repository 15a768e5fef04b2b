"""Datagrams over a UDP socket."""

import asyncio
import ipaddress
import logging
import socket
from collections.abc import Mapping
from types import MappingProxyType

from gatepost.errors import TransportUnavailable
from gatepost.mesh.transport import (
    MAX_DATAGRAM_BYTES,
    ReceiveDatagram,
    TransportCounts,
)

_log = logging.getLogger(__name__)

# The most datagrams that are handled before the event loop does other work.
_DATAGRAMS_PER_TURN = 64


class UdpTransport:
    """The only queues are those of the kernel: a datagram that finds one full is dropped.

    With a `device`, only datagrams that came through this network interface are received.
    """

    authenticated_hosts: Mapping[str, str] = MappingProxyType({})

    def __init__(self, host: str = "127.0.0.1", port: int = 0, device: str = "") -> None:
        self._bind_address = (host, port)
        self._device = device
        self._socket: socket.socket | None = None
        self._local_address = ""
        self._receive: ReceiveDatagram = _ignore_datagram
        self.counts = TransportCounts()

    @property
    def local_address(self) -> str:
        return self._local_address

    async def start(self, receive: ReceiveDatagram) -> None:
        self._receive = receive
        self._socket = _bind_socket(*self._bind_address, self._device)
        self._local_address = _format_address(self._socket.getsockname())
        asyncio.get_running_loop().add_reader(self._socket, self._receive_waiting, self._socket)

    def send(self, address: str, datagram: bytes) -> None:
        if len(datagram) > MAX_DATAGRAM_BYTES:
            self.counts.dropped_oversized += 1
            return
        try:
            if self._socket is None:
                raise OSError("the transport is not running")
            target = _parse_address(address, self._socket.family)
            self._socket.sendto(datagram, target)
            self.counts.sent += 1
        except BlockingIOError:
            self.counts.dropped_full += 1
        except (OSError, ValueError, OverflowError):
            self.counts.dropped_unreachable += 1

    async def close(self) -> None:
        closing, self._socket = self._socket, None
        if closing is not None:
            asyncio.get_running_loop().remove_reader(closing)
            closing.close()

    def _receive_waiting(self, source: socket.socket) -> None:
        for _ in range(_DATAGRAMS_PER_TURN):
            try:
                # One byte more than allowed shows that a datagram was cut off.
                datagram, address = source.recvfrom(MAX_DATAGRAM_BYTES + 1)
            except BlockingIOError:
                return
            except OSError:
                # The kernel reports that no socket received an earlier datagram.
                continue
            self._pass_on(datagram, _format_address(address))
            if self._socket is None:
                return

    def _pass_on(self, datagram: bytes, address: str) -> None:
        if len(datagram) > MAX_DATAGRAM_BYTES:
            self.counts.dropped_oversized += 1
            return
        self.counts.received += 1
        try:
            self._receive(datagram, address)
        except Exception:
            self.counts.receive_errors += 1
            if self.counts.receive_errors == 1:
                _log.exception("a mesh datagram was not handled; further ones are only counted")


def _bind_socket(host: str, port: int, device: str) -> socket.socket:
    try:
        family = _family_of(host)
    except ValueError:
        raise TransportUnavailable(f"the mesh listens on an IP address, not on {host!r}") from None
    bound = socket.socket(family, socket.SOCK_DGRAM)
    try:
        bound.setblocking(False)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        if device:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device.encode())
        bound.bind((host, port))
    except (OSError, OverflowError) as error:
        bound.close()
        raise TransportUnavailable(f"cannot listen on UDP {host}:{port}: {error}") from None
    return bound


def _family_of(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ipaddress.ip_address(host).version == 6 else socket.AF_INET


def _parse_address(address: str, family: int) -> tuple[str, int]:
    """Only numeric addresses: looking a name up would block the event loop."""
    host, _, port = address.rpartition(":")
    parsed = ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    if family == socket.AF_INET6 and parsed.version == 4:
        return f"::ffff:{parsed}", int(port)
    return str(parsed), int(port)


def _format_address(address: tuple[str, int] | tuple[str, int, int, int]) -> str:
    host, port = address[0].removeprefix("::ffff:"), address[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _ignore_datagram(datagram: bytes, address: str) -> None:
    pass
