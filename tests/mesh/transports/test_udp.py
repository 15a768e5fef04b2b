import asyncio
import logging
import socket

import pytest

from gatepost.errors import TransportUnavailable
from gatepost.mesh.transport import MAX_DATAGRAM_BYTES, DatagramTransport
from gatepost.mesh.transports.udp import UdpTransport
from tests.waiting import async_wait_until


class Received(list[tuple[bytes, str]]):
    def __call__(self, datagram: bytes, address: str) -> None:
        self.append((datagram, address))


async def start_pair(host: str = "127.0.0.1") -> tuple[UdpTransport, UdpTransport, Received]:
    ann, bob, received = UdpTransport(host), UdpTransport(host), Received()
    await ann.start(lambda datagram, address: None)
    await bob.start(received)
    return ann, bob, received


def test_a_datagram_arrives_with_the_address_that_answers_reach() -> None:
    async def exchange() -> None:
        ann, bob, received = await start_pair()
        ann.send(bob.local_address, b"hello")
        await async_wait_until(lambda: received == [(b"hello", ann.local_address)])
        assert (ann.counts.sent, bob.counts.received) == (1, 1)
        await ann.close()
        await bob.close()
        await bob.close()

    asyncio.run(exchange())


def test_both_families_reach_a_socket_that_listens_on_all_addresses() -> None:
    async def exchange() -> None:
        everywhere, received = UdpTransport("::"), Received()
        await everywhere.start(received)
        port = everywhere.local_address.rpartition(":")[2]
        for host in ("127.0.0.1", "::1"):
            caller, answers = UdpTransport(host), Received()
            await caller.start(answers)
            caller.send(f"[{host}]:{port}" if ":" in host else f"{host}:{port}", b"x")
            await async_wait_until(lambda: received)
            assert received.pop() == (b"x", caller.local_address)
            everywhere.send(caller.local_address, b"answer")
            await async_wait_until(answers.copy)
            await caller.close()
        await everywhere.close()

    asyncio.run(exchange())


@pytest.mark.parametrize(
    "address", ["", "host.example:7", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:99999", "[::1]:7"]
)
def test_an_address_that_cannot_be_reached_is_counted(address: str) -> None:
    async def send() -> None:
        ann = UdpTransport()
        await ann.start(lambda datagram, address: None)
        ann.send(address, b"x")
        assert (ann.counts.sent, ann.counts.dropped_unreachable) == (0, 1)
        await ann.close()
        ann.send("127.0.0.1:7", b"after the end")
        assert ann.counts.dropped_unreachable == 2

    asyncio.run(send())


def test_oversized_datagrams_are_neither_sent_nor_passed_on() -> None:
    async def exchange() -> None:
        ann, bob, received = await start_pair()
        ann.send(bob.local_address, bytes(MAX_DATAGRAM_BYTES + 1))
        assert ann.counts.dropped_oversized == 1
        host, _, port = bob.local_address.rpartition(":")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            stranger.sendto(bytes(MAX_DATAGRAM_BYTES + 1), (host, int(port)))
            stranger.sendto(bytes(MAX_DATAGRAM_BYTES), (host, int(port)))
        await async_wait_until(lambda: received)
        assert (len(received), bob.counts.dropped_oversized) == (1, 1)
        await ann.close()
        await bob.close()

    asyncio.run(exchange())


def test_a_full_socket_drops_and_counts() -> None:
    class FullSocket(socket.socket):
        def sendto(self, *parts: object) -> int:
            raise BlockingIOError

    async def send() -> None:
        ann = UdpTransport()
        await ann.start(lambda datagram, address: None)
        assert ann._socket is not None
        whole, ann._socket = ann._socket, FullSocket(socket.AF_INET, socket.SOCK_DGRAM)
        ann.send("127.0.0.1:7", b"x")
        assert (ann.counts.sent, ann.counts.dropped_full) == (0, 1)
        ann._socket.close()
        ann._socket = whole
        await ann.close()

    asyncio.run(send())


def test_a_receiver_that_fails_stops_nothing_and_is_reported_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(datagram: bytes, address: str) -> None:
        raise RuntimeError("not handled")

    async def exchange() -> None:
        ann, bob = UdpTransport(), UdpTransport()
        await ann.start(lambda datagram, address: None)
        await bob.start(fail)
        for _ in range(3):
            ann.send(bob.local_address, b"x")
        await async_wait_until(lambda: bob.counts.receive_errors == 3)
        await ann.close()
        await bob.close()

    with caplog.at_level(logging.ERROR):
        asyncio.run(exchange())
    assert len(caplog.records) == 1


def test_an_address_that_is_taken_or_no_address_is_named() -> None:
    async def start() -> None:
        ann: DatagramTransport = UdpTransport()
        await ann.start(lambda datagram, address: None)
        port = int(ann.local_address.rpartition(":")[2])
        with pytest.raises(TransportUnavailable, match=str(port)):
            await UdpTransport("127.0.0.1", port).start(lambda datagram, address: None)
        with pytest.raises(TransportUnavailable, match="localhost"):
            await UdpTransport("localhost").start(lambda datagram, address: None)
        await ann.close()

    asyncio.run(start())
