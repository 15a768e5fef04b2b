"""A transport that keeps everything that is sent."""

from gatepost.mesh.transport import ReceiveDatagram, TransportCounts


class MemoryTransport:
    def __init__(self) -> None:
        self.sent: list[tuple[str, bytes]] = []
        self.counts = TransportCounts()
        self.local_address = "127.0.0.1:7"
        self.is_open = False
        self.authenticated_hosts: dict[str, str] = {}

    async def start(self, receive: ReceiveDatagram) -> None:
        self.receive = receive
        self.is_open = True

    def send(self, address: str, datagram: bytes) -> None:
        self.sent.append((address, datagram))

    async def close(self) -> None:
        self.is_open = False
