"""Addresses for datagrams that the room or gossip names: which are used, and how often.

A member writes its own address, and may write that of a victim. So an address is checked like one
to dial, and a silent member gets only a few datagrams per takeover time.
"""

import ipaddress
from collections.abc import Iterator

from gatepost.errors import WrongHost
from gatepost.links.connections.dial_address import check_address
from gatepost.mesh.members import split_host
from gatepost.room import SharedRoom


def is_usable(address: str, *, allow_loopback: bool) -> bool:
    """Whether a datagram may go to an address that another node named."""
    try:
        check_address(split_host(address), allow_loopback=allow_loopback)
        return 0 < int(address.rpartition(":")[2]) < 65_536
    except (WrongHost, ValueError):
        return False


def is_onion(address: str) -> bool:
    """Whether an address is that of an onion service, which only Tor reaches."""
    return split_host(address).endswith(".onion")


def is_own_address(address: str) -> bool:
    """Whether others can reach this gateway at the address; a wildcard is not an address."""
    if is_onion(address):
        return True
    try:
        return not ipaddress.ip_address(split_host(address)).is_unspecified
    except ValueError:
        return False


class RoomAddresses:
    """Remembers when the address of each member was tried last."""

    def __init__(self, pause_ms: int) -> None:
        self._pause_ms = pause_ms
        self._tried: dict[str, int] = {}

    def due_addresses(self, room: SharedRoom, now: int) -> Iterator[tuple[str, str]]:
        """(node, address) of the members that were never tried, or not since the pause."""
        transports = room.effective.transports
        for node in self._tried.keys() - transports.keys():
            del self._tried[node]
        for node, record in transports.items():
            if record.udp is not None and self._is_due(node, now):
                yield node, record.udp

    def note_try(self, node: str, now: int) -> None:
        self._tried[node] = now

    def _is_due(self, node: str, now: int) -> bool:
        at = self._tried.get(node)
        return at is None or now - at >= self._pause_ms
