"""Frames over a Unix socket, one a line. Only this machine's user can open it."""

import asyncio
import contextlib
import logging
import os
import socket
import struct
from pathlib import Path

from gatepost.errors import Forbidden, InvalidRequest
from gatepost.gateway.limits import Bucket
from gatepost.gateway.operations import Operations
from gatepost.gateway.session import Session

log = logging.getLogger(__name__)


class UnixDoor:
    def __init__(self, operations: Operations, path: Path) -> None:
        self._operations = operations
        self._path = path
        self._limits = operations.core.settings.limits
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._path.unlink(missing_ok=True)
        mask = os.umask(0o177)
        try:
            self._server = await asyncio.start_unix_server(
                self._connected, self._path, limit=self._limits.max_body_bytes
            )
        finally:
            os.umask(mask)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._open):
            task.cancel()
        self._path.unlink(missing_ok=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            _check_peer(writer)
            if len(self._open) > self._limits.max_connections:
                raise InvalidRequest("too many connections")
            await self._converse(reader, writer)
        except (Forbidden, InvalidRequest) as error:
            log.warning("unix socket: %s", error.message)
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._open.discard(task)
            writer.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pending = asyncio.Event()
        bucket = Bucket(self._limits.rate_per_sec, self._limits.burst)
        session = Session(self._operations, bucket, pending.set)
        sender = asyncio.create_task(_send(session, pending, writer))
        try:
            while line := await _line(reader, session):
                session.receive(line)
                await session.room()
        finally:
            session.close()
            sender.cancel()
            with contextlib.suppress(asyncio.CancelledError, ConnectionError):
                await sender


async def _line(reader: asyncio.StreamReader, session: Session) -> bytes:
    try:
        return await reader.readline()
    except ValueError:
        session.refuse(InvalidRequest("the line is longer than limits.max_body_bytes"))
        await asyncio.sleep(0)
        return b""


async def _send(session: Session, pending: asyncio.Event, writer: asyncio.StreamWriter) -> None:
    while True:
        await pending.wait()
        pending.clear()
        for frame in session.take_output():
            writer.write(frame + b"\n")
        await writer.drain()


def _check_peer(writer: asyncio.StreamWriter) -> None:
    """The file's mode keeps others out; this holds even if somebody changed it."""
    peer = writer.get_extra_info("socket")
    if not hasattr(socket, "SO_PEERCRED"):
        return
    data = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, uid, _ = struct.unpack("3i", data)
    if uid not in (os.getuid(), 0):
        raise Forbidden(f"user {uid} is not this gateway's user")
