"""Frames over a Unix socket, one per line. Only the gateway's user can open it.

A client of a door names its protocol in the first line, and is handed to that door. Its connections
are admitted to the listener's pool: each process is a source, and a connection that has sent a line
is held by its process.
"""

import asyncio
import logging
import os
import socket
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

from gatepost.errors import (
    ConfigError,
    DeadlineExceeded,
    Forbidden,
    GatepostError,
    InvalidRequest,
)
from gatepost.gateway.api.frame_channel import FrameChannel, run_channel
from gatepost.gateway.api.operations import Operations
from gatepost.listening.connection_pool import (
    ConnectionPool,
    ConnectionSlot,
    process_source,
)
from gatepost.listening.listener import ConnectionAcceptor
from gatepost.listening.unix_listener import bind_unix_listener, read_peer
from gatepost.wire.frame_types import DOOR_GREETING

log = logging.getLogger(__name__)

# How long replies are sent after the client has closed its sending side.
_DRAIN_SECS = 1.0
# The time limit from the first byte of a line to its end. Lines have at most limits.max_body_bytes.
_LINE_SECS = 30.0
# The connection ends if the client reads nothing for this long.
_UNREAD_SECS = 30.0
_ROOT = 0


# Serves a connection whose first line is the greeting of a door.
ServeDoor = Callable[[bytes, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class UnixSocketServer:
    def __init__(
        self,
        operations: Operations,
        path: Path,
        pool: ConnectionPool,
        serve_door: ServeDoor | None = None,
    ) -> None:
        self._serve_door = serve_door
        self._operations = operations
        self._path = path
        self._pool = pool
        self._limits = operations.core.settings.limits
        self._listener: socket.socket | None = None
        self._acceptor: ConnectionAcceptor | None = None
        self._client_tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        try:
            self._listener = bind_unix_listener(self._path)
        except OSError as error:
            raise ConfigError(
                f"cannot make the socket {self._path} ({error}); choose a state_dir with a shorter"
                " path, or set listen.unix_socket = false"
            ) from None
        self._acceptor = ConnectionAcceptor(
            self._listener, self._pool, self._connect, _find_process
        )
        self._acceptor.start()

    async def stop(self) -> None:
        if self._acceptor is not None and self._listener is not None:
            self._acceptor.close()
            self._listener.close()
            self._path.unlink(missing_ok=True)
            await self._acceptor.wait_closed()
        for task in self._client_tasks:
            task.cancel()
        await asyncio.gather(*self._client_tasks, return_exceptions=True)

    async def _connect(self, connection: socket.socket, slot: ConnectionSlot) -> None:
        reader = asyncio.StreamReader(self._limits.max_body_bytes - 1)
        serve = partial(self._serve_client, slot)
        await asyncio.get_running_loop().connect_accepted_socket(
            lambda: asyncio.StreamReaderProtocol(reader, serve), connection
        )

    async def _serve_client(
        self, slot: ConnectionSlot, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._client_tasks.add(task)
        slot.abort = writer.transport.abort
        try:
            _check_peer_user(writer)
            await self._run_channel(slot, reader, writer)
        except GatepostError as error:
            log.warning("unix socket: %s", error.message)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._client_tasks.discard(task)
            slot.release()
            writer.close()

    async def _run_channel(
        self, slot: ConnectionSlot, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        lines = _LineReader(reader)
        first = await lines.read_ahead()
        if self._serve_door is not None and first.startswith(DOOR_GREETING):
            slot.identify(slot.source)
            await self._serve_door(first, reader, writer)
            return
        pending = asyncio.Event()
        channel = FrameChannel(self._operations, pending.set)
        await run_channel(
            channel, _receive_lines(channel, slot, lines), _send_frames(channel, pending, writer)
        )


class _LineReader:
    """Reads lines; peeks at the first one, which shows the client's protocol."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self._ahead: bytes | Exception | None = None

    async def read_ahead(self) -> bytes:
        """The first line; empty if it cannot be read, which is reported by `read_line`."""
        try:
            self._ahead = await _read_line(self._reader)
        except (ValueError, TimeoutError) as error:
            self._ahead = error
        return self._ahead if isinstance(self._ahead, bytes) else b""

    async def read_line(self) -> bytes:
        ahead, self._ahead = self._ahead, None
        if isinstance(ahead, Exception):
            raise ahead
        return await _read_line(self._reader) if ahead is None else ahead


async def _receive_lines(channel: FrameChannel, slot: ConnectionSlot, lines: _LineReader) -> None:
    try:
        while line := await lines.read_line():
            slot.identify(slot.source)
            channel.receive_frame(line)
            await channel.wait_for_capacity()
    except ValueError:
        channel.send_failure(InvalidRequest("the line is longer than limits.max_body_bytes"))
    except TimeoutError:
        channel.send_failure(DeadlineExceeded("the line came too slowly"))
    except GatepostError as error:
        channel.send_failure(error)
    # A client may close its side and still read: `printf … | nc -N -U gateway.sock`.
    deadline = time.monotonic() + _DRAIN_SECS
    while channel.has_pending_replies and time.monotonic() < deadline:
        await asyncio.sleep(0.005)


async def _read_line(reader: asyncio.StreamReader) -> bytes:
    """Wait for a line as long as it takes, and for the rest of it until its deadline."""
    start = await reader.read(1)
    if start in (b"", b"\n"):
        return start
    async with asyncio.timeout(_LINE_SECS):
        return start + await reader.readline()


async def _send_frames(
    channel: FrameChannel, pending: asyncio.Event, writer: asyncio.StreamWriter
) -> None:
    while True:
        await pending.wait()
        pending.clear()
        for frame in channel.take_output():
            writer.write(frame + b"\n")
        await drain_writer(writer)


async def drain_writer(writer: asyncio.StreamWriter) -> None:
    """Wait until the client has read most of the pending output; give up if it reads nothing."""
    while True:
        unread = writer.transport.get_write_buffer_size()
        try:
            async with asyncio.timeout(_UNREAD_SECS):
                return await writer.drain()
        except TimeoutError:
            if writer.transport.get_write_buffer_size() >= unread:
                writer.transport.abort()
                raise ConnectionAbortedError("the client does not read its replies") from None


def _find_process(connection: socket.socket, _: Any) -> str:
    peer = read_peer(connection)
    return process_source(0 if peer is None else peer.pid)


def _check_peer_user(writer: asyncio.StreamWriter) -> None:
    """Raise Forbidden for other users, even if the mode of the socket file was changed."""
    peer = read_peer(writer.get_extra_info("socket"))
    if peer is not None and peer.uid not in (os.getuid(), _ROOT):
        raise Forbidden(f"user {peer.uid} is not this gateway's user")
