"""The interface of a transport: unreliable datagrams between addresses that are text."""

from collections.abc import Callable, Mapping
from typing import Protocol

from msgspec import Struct

# Fits into one packet on every path that IPv6 allows (1,280 bytes), also inside a tunnel.
MAX_DATAGRAM_BYTES = 1_200

# Gets each datagram and the address it came from; returns whether a member signed it, if it knows.
ReceiveDatagram = Callable[[bytes, str], bool | None]


class TransportCounts(Struct):
    """Datagrams of one transport since it started. A dropped datagram is in one count only."""

    sent: int = 0
    received: int = 0
    dropped_full: int = 0
    dropped_oversized: int = 0
    dropped_unreachable: int = 0
    receive_errors: int = 0


class DatagramTransport(Protocol):
    """Sends and receives datagrams of at most `MAX_DATAGRAM_BYTES`.

    A datagram may be lost, repeated or reordered, and its source address may be forged.
    """

    @property
    def local_address(self) -> str:
        """The address that this transport receives at. Known once it has started."""
        ...

    @property
    def counts(self) -> TransportCounts: ...

    @property
    def authenticated_hosts(self) -> Mapping[str, str]:
        """Node → the address from which datagrams of this node alone can come.

        Empty where the transport authenticates no sender.
        """
        ...

    async def start(self, receive: ReceiveDatagram) -> None:
        """Begin to receive. An exception of `receive` is counted and stops nothing.

        Raises `TransportUnavailable` if the transport cannot work on this machine.
        """
        ...

    def send(self, address: str, datagram: bytes) -> None:
        """Send without waiting. A datagram that cannot be sent now is dropped and counted."""
        ...

    async def close(self) -> None:
        """Stop receiving and give up everything that `start` took. May be called twice."""
        ...
