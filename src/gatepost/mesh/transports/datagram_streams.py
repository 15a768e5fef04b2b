"""Datagrams over streams: each a frame of two bytes of length and the datagram.

A stream carries datagrams in one direction. Its first frame is the address of its opener, so that
the receiver knows where to answer. That address may be forged, as that of a datagram. Every queue
is bounded: a datagram that finds its queue full is dropped, and a stream that stands still ends.

Strangers can open streams, and a member can make this node open streams to addresses without a
node. So a full table still takes new streams: the least useful stream ends instead.
"""

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from gatepost.mesh.transport import (
    MAX_DATAGRAM_BYTES,
    ReceiveDatagram,
    TransportCounts,
)

log = logging.getLogger(__name__)

_LENGTH_BYTES = 2
_MAX_QUEUED = 32
_MAX_OUTGOING = 256
_MAX_INCOMING = 256
_IDLE_SECS = 300.0
_WRITE_SECS = 30.0
_CONNECT_SECS = 60.0
_FIRST_RETRY_SECS = 1.0
_MAX_RETRY_SECS = 60.0

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
ConnectStream = Callable[[str], Awaitable[Streams]]
# Tells whether a text can be the address of a peer.
IsAddress = Callable[[str], bool]


def encode_frame(datagram: bytes) -> bytes:
    return len(datagram).to_bytes(_LENGTH_BYTES, "big") + datagram


async def read_frame(reader: asyncio.StreamReader) -> bytes | None:
    """The next frame; None at the end of the stream, or if the frame is longer than a datagram."""
    try:
        length = int.from_bytes(await reader.readexactly(_LENGTH_BYTES), "big")
        return await reader.readexactly(length) if length <= MAX_DATAGRAM_BYTES else None
    except (asyncio.IncompleteReadError, OSError):
        return None


class OutgoingStream:
    """The stream to one address, opened when a datagram is queued, and reopened if it has ended."""

    def __init__(
        self, address: str, own_address: str, connect: ConnectStream, counts: TransportCounts
    ) -> None:
        self._address = address
        self._own_address = own_address
        self._connect = connect
        self._counts = counts
        self._queue: asyncio.Queue[bytes] = asyncio.Queue(_MAX_QUEUED)
        self._retry_secs = _FIRST_RETRY_SECS
        self._task = asyncio.create_task(self._run())
        self.was_connected = False

    @property
    def has_ended(self) -> bool:
        return self._task.done()

    def send(self, datagram: bytes) -> None:
        try:
            self._queue.put_nowait(datagram)
        except asyncio.QueueFull:
            self._counts.dropped_full += 1

    def end(self) -> None:
        self._task.cancel()

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            try:
                async with asyncio.timeout(_CONNECT_SECS):
                    _, writer = await self._connect(self._address)
            except Exception as error:
                log.debug("no stream to %s: %s", self._address, type(error).__name__)
                self._drop_queued()
                await asyncio.sleep(self._retry_secs)
                self._retry_secs = min(self._retry_secs * 2, _MAX_RETRY_SECS)
                continue
            self._retry_secs, self.was_connected = _FIRST_RETRY_SECS, True
            if await self._write_frames(writer):
                return

    async def _write_frames(self, writer: asyncio.StreamWriter) -> bool:
        """Write until the stream breaks, or there was nothing to send for long (True)."""
        try:
            await self._write(writer, self._own_address.encode())
            while True:
                try:
                    async with asyncio.timeout(_IDLE_SECS):
                        datagram = await self._queue.get()
                except TimeoutError:
                    return True
                await self._write(writer, datagram)
                self._counts.sent += 1
        except (OSError, TimeoutError):
            self._counts.dropped_unreachable += 1
            return False
        finally:
            writer.close()

    async def _write(self, writer: asyncio.StreamWriter, datagram: bytes) -> None:
        writer.write(encode_frame(datagram))
        async with asyncio.timeout(_WRITE_SECS):
            await writer.drain()

    def _drop_queued(self) -> None:
        """Drop queued datagrams, which peers would refuse as too old."""
        while not self._queue.empty():
            self._queue.get_nowait()
            self._counts.dropped_unreachable += 1


class IncomingStreams:
    """The streams that others opened, the least useful first."""

    def __init__(self) -> None:
        # Without a datagram of a member so far, and with one: the longest silent first.
        self._unproven: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._proven: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    def add_stream(self, task: asyncio.Task[None], writer: asyncio.StreamWriter) -> None:
        if len(self._unproven) + len(self._proven) >= _MAX_INCOMING:
            table = self._unproven or self._proven
            table.pop(next(iter(table))).transport.abort()
        self._unproven[task] = writer

    def note_member(self, task: asyncio.Task[None]) -> None:
        """A datagram of a member came over this stream."""
        writer = self.remove_stream(task)
        if writer is not None:
            self._proven[task] = writer

    def remove_stream(self, task: asyncio.Task[None]) -> asyncio.StreamWriter | None:
        return self._unproven.pop(task, None) or self._proven.pop(task, None)

    async def close(self) -> None:
        streams = self._unproven | self._proven
        for writer in streams.values():
            writer.transport.abort()
        await asyncio.gather(*streams, return_exceptions=True)


class DatagramStreams:
    """All streams of one transport. `connect` opens one, through whatever lies in between."""

    def __init__(self, connect: ConnectStream, is_address: IsAddress) -> None:
        self._connect = connect
        self._is_address = is_address
        self.own_address = ""
        self.counts = TransportCounts()
        self._receive: ReceiveDatagram | None = None
        # The longest unused first.
        self._outgoing: OrderedDict[str, OutgoingStream] = OrderedDict()
        self._server: asyncio.Server | None = None
        self._incoming = IncomingStreams()

    async def listen(self, receive: ReceiveDatagram) -> int:
        """Take streams at a port of this machine, and return the port."""
        self._receive = receive
        self._server = await asyncio.start_server(self._serve_stream, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    def send(self, address: str, datagram: bytes) -> None:
        if len(datagram) > MAX_DATAGRAM_BYTES:
            self.counts.dropped_oversized += 1
        elif self._server is None or not self._is_address(address):
            self.counts.dropped_unreachable += 1
        else:
            self._stream_to(address).send(datagram)

    async def close(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()
        for stream in self._outgoing.values():
            await stream.close()
        self._outgoing.clear()
        await self._incoming.close()

    def _stream_to(self, address: str) -> OutgoingStream:
        stream = self._outgoing.pop(address, None)
        if stream is None or stream.has_ended:
            if len(self._outgoing) >= _MAX_OUTGOING:
                self._end_least_missed()
            stream = OutgoingStream(address, self.own_address, self._connect, self.counts)
        self._outgoing[address] = stream
        return stream

    def _end_least_missed(self) -> None:
        """End the longest unused stream, if possible one to an address that has never answered."""
        streams = self._outgoing.items()
        unused = (each for each, stream in streams if not stream.was_connected or stream.has_ended)
        address = next(unused, None) or next(iter(self._outgoing))
        self._outgoing.pop(address).end()

    async def _serve_stream(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._incoming.add_stream(task, writer)
        try:
            await self._read_stream(reader, task)
        except (TimeoutError, OSError):
            pass
        finally:
            self._incoming.remove_stream(task)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _read_stream(self, reader: asyncio.StreamReader, task: "asyncio.Task[None]") -> None:
        source: str | None = None
        while True:
            async with asyncio.timeout(_IDLE_SECS):
                frame = await read_frame(reader)
            if frame is None:
                return
            if source is None:
                source = frame.decode(errors="replace")
                if not self._is_address(source):
                    return
            elif self._pass_on(frame, source):
                self._incoming.note_member(task)

    def _pass_on(self, datagram: bytes, source: str) -> bool:
        """Hand a datagram on; returns whether it was one of a member."""
        self.counts.received += 1
        try:
            return self._receive is not None and bool(self._receive(datagram, source))
        except Exception:
            self.counts.receive_errors += 1
            if self.counts.receive_errors == 1:
                log.exception("a mesh datagram was not handled; further ones are only counted")
            return False
