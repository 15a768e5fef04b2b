"""Frames over a Unix socket, one per line. Only the gateway's user can open it."""

import asyncio
import logging
import os
import socket
import struct
import time
from pathlib import Path

from gatepost.errors import ConfigError, Forbidden, GatepostError, InvalidRequest, Unavailable
from gatepost.gateway.operations import Operations
from gatepost.gateway.session import Session, carry

log = logging.getLogger(__name__)

# How long replies are still sent after the client has closed its sending side.
_LAST_ANSWERS_SECS = 1.0
_ROOT = 0


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
        except OSError as error:
            raise ConfigError(
                f"cannot make the socket {self._path} ({error}); choose a state_dir with a shorter"
                " path, or set listen.unix_socket = false"
            ) from None
        finally:
            os.umask(mask)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            self._path.unlink(missing_ok=True)
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            _check_peer(writer)
            if len(self._open) > self._limits.max_connections:
                raise Unavailable("too many connections")
            await self._converse(reader, writer)
        except GatepostError as error:
            log.warning("unix socket: %s", error.message)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._open.discard(task)
            writer.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pending = asyncio.Event()
        session = Session(self._operations, pending.set)
        await carry(session, _receive(session, reader), _send(session, pending, writer))


async def _receive(session: Session, reader: asyncio.StreamReader) -> None:
    try:
        while line := await reader.readline():
            session.receive(line)
            await session.room()
    except ValueError:
        session.refuse(InvalidRequest("the line is longer than limits.max_body_bytes"))
    # A client may close its side and still read: `printf … | nc -N -U gateway.sock`.
    deadline = time.monotonic() + _LAST_ANSWERS_SECS
    while session.unsettled and time.monotonic() < deadline:
        await asyncio.sleep(0.005)


async def _send(session: Session, pending: asyncio.Event, writer: asyncio.StreamWriter) -> None:
    while True:
        await pending.wait()
        pending.clear()
        for frame in session.take_output():
            writer.write(frame + b"\n")
        await writer.drain()


def _check_peer(writer: asyncio.StreamWriter) -> None:
    """Raise Forbidden for other users, even if the mode of the socket file was changed."""
    peer = writer.get_extra_info("socket")
    if not hasattr(socket, "SO_PEERCRED"):
        return
    data = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, uid, _ = struct.unpack("3i", data)
    if uid not in (os.getuid(), _ROOT):
        raise Forbidden(f"user {uid} is not this gateway's user")
