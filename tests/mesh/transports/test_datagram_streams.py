"""Datagrams over streams, with plain TCP in place of Tor."""

import asyncio

import pytest

from gatepost.mesh.transport import MAX_DATAGRAM_BYTES
from gatepost.mesh.transports import datagram_streams
from gatepost.mesh.transports.datagram_streams import (
    DatagramStreams,
    Streams,
    encode_frame,
)
from tests.waiting import async_wait_until

Received = list[tuple[bytes, str]]


async def connect(address: str) -> Streams:
    host, _, port = address.rpartition(":")
    return await asyncio.open_connection(host, int(port))


def is_address(text: str) -> bool:
    return text.startswith("127.0.0.1:")


async def start(received: Received) -> DatagramStreams:
    streams = DatagramStreams(connect, is_address)
    port = await streams.listen(lambda datagram, source: received.append((datagram, source)))
    streams.own_address = f"127.0.0.1:{port}"
    return streams


def test_datagrams_arrive_in_order_with_the_address_of_their_sender() -> None:
    async def exchange() -> None:
        received: Received = []
        ann, bob = await start([]), await start(received)
        sent = [b"x" * size for size in (0, 1, MAX_DATAGRAM_BYTES)]
        for datagram in sent:
            ann.send(bob.own_address, datagram)
        await async_wait_until(lambda: len(received) == 3)
        assert received == [(datagram, ann.own_address) for datagram in sent]
        assert (ann.counts.sent, bob.counts.received) == (3, 3)
        ann.send(bob.own_address, b"x" * (MAX_DATAGRAM_BYTES + 1))
        ann.send("nowhere", b"x")
        assert (ann.counts.dropped_oversized, ann.counts.dropped_unreachable) == (1, 1)
        await ann.close()
        await bob.close()

    asyncio.run(exchange())


def test_a_stream_that_cannot_be_opened_drops_and_a_full_queue_counts() -> None:
    async def send() -> None:
        attempts = 0

        async def fail(address: str) -> Streams:
            nonlocal attempts
            attempts += 1
            raise ConnectionRefusedError

        streams = DatagramStreams(fail, is_address)
        await streams.listen(lambda datagram, source: None)
        for _ in range(40):
            streams.send("127.0.0.1:1", b"x")
        assert streams.counts.dropped_full == 8
        await async_wait_until(lambda: streams.counts.dropped_unreachable == 32)
        assert attempts == 1
        await streams.close()

    asyncio.run(send())


def test_a_stream_that_breaks_the_rules_is_ended() -> None:
    async def intrude(first: bytes) -> bytes:
        received: Received = []
        bob = await start(received)
        reader, writer = await connect(bob.own_address)
        writer.write(first)
        left = await asyncio.wait_for(reader.read(), 10)
        writer.close()
        await bob.close()
        assert received == []
        return left

    too_long = (MAX_DATAGRAM_BYTES + 1).to_bytes(2, "big")
    hello = encode_frame(b"127.0.0.1:1")
    for first in (encode_frame(b"no address"), too_long, hello + too_long):
        assert asyncio.run(intrude(first)) == b""


def test_a_peer_that_restarts_is_reached_again() -> None:
    async def exchange() -> None:
        received: Received = []
        places: dict[str, str] = {}

        async def find(address: str) -> Streams:
            return await connect(places[address])

        ann = DatagramStreams(find, is_address)
        await ann.listen(lambda datagram, source: None)
        ann.own_address = "127.0.0.1:1"
        first = await start(received)
        places["127.0.0.1:9"] = first.own_address
        ann.send("127.0.0.1:9", b"one")
        await async_wait_until(lambda: len(received) == 1)
        await first.close()
        second = await start(received)
        places["127.0.0.1:9"] = second.own_address

        def try_again() -> bool:
            ann.send("127.0.0.1:9", b"two")
            return received[-1][0] == b"two"

        await async_wait_until(try_again)
        await ann.close()
        await second.close()

    asyncio.run(exchange())


def test_idle_streams_of_strangers_shut_no_member_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datagram_streams, "_MAX_INCOMING", 8)

    async def crowd() -> None:
        bob, received = DatagramStreams(connect, is_address), []

        def receive(datagram: bytes, source: str) -> bool:
            received.append(datagram)
            return datagram.startswith(b"signed")

        bob.own_address = f"127.0.0.1:{await bob.listen(receive)}"
        ann, cat = await start([]), await start([])
        ann.send(bob.own_address, b"signed 1")
        await async_wait_until(lambda: received == [b"signed 1"])
        crowd = []
        for number in range(20):
            _, writer = await connect(bob.own_address)
            # Some say who they are, and send datagrams that nobody signed.
            if number % 2:
                writer.write(encode_frame(b"127.0.0.1:1") + encode_frame(b"junk"))
            crowd.append(writer)
        await async_wait_until(lambda: received.count(b"junk") == 10)
        cat.send(bob.own_address, b"signed 2")
        await async_wait_until(lambda: b"signed 2" in received)
        ann.send(bob.own_address, b"signed 3")
        await async_wait_until(lambda: b"signed 3" in received)
        assert ann.counts.dropped_unreachable == 0, "its stream was not ended"
        for streams in (ann, bob, cat):
            await streams.close()
        for writer in crowd:
            writer.close()

    asyncio.run(crowd())


def test_addresses_where_nobody_is_shut_no_peer_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datagram_streams, "_MAX_OUTGOING", 8)

    async def try_addresses() -> None:
        received: Received = []
        bob, opened = await start(received), []

        async def connect_to_bob(address: str) -> Streams:
            opened.append(address)
            if address != bob.own_address:
                raise ConnectionRefusedError
            return await connect(address)

        ann = DatagramStreams(connect_to_bob, is_address)
        ann.own_address = f"127.0.0.1:{await ann.listen(lambda datagram, source: None)}"
        ann.send(bob.own_address, b"1")
        await async_wait_until(lambda: len(received) == 1)
        for port in range(1, 30):
            ann.send(f"127.0.0.1:{port}", b"x")
        ann.send(bob.own_address, b"2")
        await async_wait_until(lambda: len(received) == 2)
        assert opened.count(bob.own_address) == 1, "its stream was not ended"
        ann.send("127.0.0.1:30", b"x")
        await async_wait_until(lambda: "127.0.0.1:30" in opened)
        await ann.close()
        await bob.close()

    asyncio.run(try_addresses())
