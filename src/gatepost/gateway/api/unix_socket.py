"""Frames over a Unix socket, one per line. Only the gateway's user can open it."""

import asyncio
import logging
import os
import socket
import struct
import time
from pathlib import Path

from gatepost.errors import ConfigError, Forbidden, GatepostError, InvalidRequest, Unavailable
from gatepost.gateway.api.frame_session import FrameSession, carry_session
from gatepost.gateway.api.operations import Operations

log = logging.getLogger(__name__)

# How long replies are still sent after the client has closed its sending side.
_DRAIN_SECS = 1.0
_ROOT = 0


class UnixSocketServer:
    def __init__(self, operations: Operations, path: Path) -> None:
        self._operations = operations
        self._path = path
        self._limits = operations.core.settings.limits
        self._server: asyncio.Server | None = None
        self._client_tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._path.unlink(missing_ok=True)
        mask = os.umask(0o177)
        try:
            self._server = await asyncio.start_unix_server(
                self._serve_client, self._path, limit=self._limits.max_body_bytes
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
        for task in self._client_tasks:
            task.cancel()
        await asyncio.gather(*self._client_tasks, return_exceptions=True)

    async def _serve_client(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._client_tasks.add(task)
        try:
            _check_peer_user(writer)
            if len(self._client_tasks) > self._limits.max_connections:
                raise Unavailable("too many connections")
            await self._run_session(reader, writer)
        except GatepostError as error:
            log.warning("unix socket: %s", error.message)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._client_tasks.discard(task)
            writer.close()

    async def _run_session(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        pending = asyncio.Event()
        session = FrameSession(self._operations, pending.set)
        await carry_session(
            session, _receive_lines(session, reader), _send_frames(session, pending, writer)
        )


async def _receive_lines(session: FrameSession, reader: asyncio.StreamReader) -> None:
    try:
        while line := await reader.readline():
            session.receive_frame(line)
            await session.wait_for_capacity()
    except ValueError:
        session.send_failure(InvalidRequest("the line is longer than limits.max_body_bytes"))
    # A client may close its side and still read: `printf … | nc -N -U gateway.sock`.
    deadline = time.monotonic() + _DRAIN_SECS
    while session.has_pending_replies and time.monotonic() < deadline:
        await asyncio.sleep(0.005)


async def _send_frames(
    session: FrameSession, pending: asyncio.Event, writer: asyncio.StreamWriter
) -> None:
    while True:
        await pending.wait()
        pending.clear()
        for frame in session.take_output():
            writer.write(frame + b"\n")
        await writer.drain()


def _check_peer_user(writer: asyncio.StreamWriter) -> None:
    """Raise Forbidden for other users, even if the mode of the socket file was changed."""
    peer = writer.get_extra_info("socket")
    if not hasattr(socket, "SO_PEERCRED"):
        return
    data = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, uid, _ = struct.unpack("3i", data)
    if uid not in (os.getuid(), _ROOT):
        raise Forbidden(f"user {uid} is not this gateway's user")
