"""The listener: accepts connections into the pool, and makes their TLS handshakes."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import Any

import uvicorn
from litestar.types import ASGIApp

from gatepost.access import rate_limit_source
from gatepost.config import Settings
from gatepost.listening.bounded_http import BoundedHttpProtocol, ScreenHandshake
from gatepost.listening.connection_pool import ConnectionPool, ConnectionSlot
from gatepost.room import MAX_MESSAGE_BYTES

log = logging.getLogger(__name__)

_HANDSHAKE_SECS = 10.0
_SHUTDOWN_SECS = 5.0
# The most connections accepted before the event loop does other work. The requests of a crowd that
# comes at the same moment then come one after the other, with other work in between.
_ACCEPTS_AT_ONCE = 4
# The pause after the system refused to accept, for example because no more files may be open.
_RETRY_SECS = 0.5
_GRACEFUL_STOP_SECS = 2
# How old the date header of an answer may be.
_DATE_SECS = 1.0

# A client may have as many connections as its socket permits for this long, before it is reported.
_CROWDED_SECS = 2.0

# Returns the source of a connection from the socket and the address it came from.
FindSource = Callable[[socket.socket, Any], str]
ReportCrowd = Callable[[], None]


def find_address(_: socket.socket, address: Any) -> str:
    return rate_limit_source(address[0])


class ListeningServer(uvicorn.Server):
    """uvicorn's server with our own way to accept connections.

    Every socket for HTTP belongs to one of these, so the same bounds hold at all of them.
    """

    def __init__(
        self,
        app: ASGIApp,
        settings: Settings,
        pool: ConnectionPool,
        screen: ScreenHandshake,
        **tls: Any,
    ) -> None:
        self._exit = asyncio.Event()
        super().__init__(
            uvicorn.Config(
                app,
                http=BoundedHttpProtocol,
                ws="websockets-sansio",
                ws_max_size=max(settings.limits.max_body_bytes, MAX_MESSAGE_BYTES),
                ws_ping_interval=settings.delivery.link_silence_secs / 2,
                ws_ping_timeout=settings.delivery.link_silence_secs / 2,
                # The limit above holds for decompressed messages.
                ws_per_message_deflate=settings.delivery.compress_links,
                log_config=None,
                access_log=False,
                lifespan="off",
                server_header=False,
                timeout_graceful_shutdown=_GRACEFUL_STOP_SECS,
                **tls,
            )
        )
        self._pool = pool
        self._screen = screen

    @property
    def should_exit(self) -> bool:
        return self._exit.is_set()

    @should_exit.setter
    def should_exit(self, wanted: bool) -> None:
        if wanted:
            self._exit.set()
        else:
            self._exit.clear()

    async def main_loop(self) -> None:
        """Keep the date header current until the exit; uvicorn's loop asks ten times a second."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_DATE_SECS):
                    await self._exit.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do not capture: we handle signals, and uvicorn would raise them again too early."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        acceptors: list[Any] = [
            ConnectionAcceptor(each, self._pool, self._connect) for each in sockets or ()
        ]
        for acceptor in acceptors:
            acceptor.start()
        self.servers = acceptors
        self.started = True

    def listen_for(
        self, source: str, listener: socket.socket, most: int, report_crowd: ReportCrowd
    ) -> "ConnectionAcceptor":
        """Accept connections of one source at a socket that only this source can reach.

        The caller closes the socket.
        """
        acceptor = ConnectionAcceptor(
            listener, self._pool, self._connect, lambda *_: source, most, report_crowd
        )
        acceptor.start()
        return acceptor

    async def _connect(self, connection: socket.socket, slot: ConnectionSlot) -> None:
        """Hand a connection over to the HTTP protocol, after its TLS handshake if it has one."""
        secure = self.config.ssl is not None
        await asyncio.get_running_loop().connect_accepted_socket(
            partial(
                BoundedHttpProtocol,
                config=self.config,
                server_state=self.server_state,
                app_state=self.lifespan.state,
                slot=slot,
                screen=self._screen,
            ),
            connection,
            ssl=self.config.ssl,
            ssl_handshake_timeout=_HANDSHAKE_SECS if secure else None,
            ssl_shutdown_timeout=_SHUTDOWN_SECS if secure else None,
        )


class ConnectionAcceptor:
    """Accepts the connections of one socket. A connection is counted before anything is read.

    The event loop's own servers count none of the connections that are in their TLS handshake.

    With `most`, further connections wait in the system's queue of this socket until one ends. So a
    client that opens connections without end costs nothing but its own time.
    """

    def __init__(
        self,
        listener: socket.socket,
        pool: ConnectionPool,
        connect: Callable[[socket.socket, ConnectionSlot], Coroutine[Any, Any, None]],
        find_source: FindSource = find_address,
        most: int | None = None,
        report_crowd: ReportCrowd = lambda: None,
    ) -> None:
        self._listener = listener
        self._pool = pool
        self._connect = connect
        self._find_source = find_source
        self._most = most
        self._report_crowd = report_crowd
        self._slots: set[ConnectionSlot] = set()
        self._is_full = False
        self._crowd_timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._retry: asyncio.TimerHandle | None = None
        self._is_closed = False

    def start(self) -> None:
        self._listener.setblocking(False)
        self._resume()

    def close(self) -> None:
        if self._is_closed:
            return
        asyncio.get_running_loop().remove_reader(self._listener)
        self._listener.close()
        self._is_closed = True
        for timer in (self._retry, self._crowd_timer):
            if timer is not None:
                timer.cancel()
        for task in self._tasks:
            task.cancel()

    async def wait_closed(self) -> None:
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _resume(self) -> None:
        asyncio.get_running_loop().add_reader(self._listener, self._accept_some)

    def _accept_some(self) -> None:
        for _ in range(_ACCEPTS_AT_ONCE):
            if self._most is not None and len(self._slots) >= self._most:
                self._stop_at_limit()
                return
            try:
                connection, address = self._listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionError:
                continue
            except OSError as error:
                self._pause(error)
                return
            self._take_connection(connection, address)

    def _stop_at_limit(self) -> None:
        """Accept nothing until a connection has ended. A crowd that stays is reported."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._listener)
        self._is_full = True
        if self._crowd_timer is None:
            self._crowd_timer = loop.call_later(_CROWDED_SECS, self._report_crowd)

    def _forget_slot(self, slot: ConnectionSlot) -> None:
        self._slots.discard(slot)
        if self._crowd_timer is not None and len(self._slots) * 2 < (self._most or 0):
            self._crowd_timer.cancel()
            self._crowd_timer = None
        if self._is_full and not self._is_closed:
            self._is_full = False
            self._resume()

    def abort_connections(self) -> None:
        for slot in list(self._slots):
            slot.abort()

    def _pause(self, error: OSError) -> None:
        log.error("no connection can be accepted: %s", error)
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._listener)
        self._retry = loop.call_later(_RETRY_SECS, self._resume)

    def _take_connection(self, connection: socket.socket, address: Any) -> None:
        connection.setblocking(False)
        if connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        slot = self._pool.admit(self._find_source(connection, address), lambda: None)
        self._slots.add(slot)
        slot.on_released = partial(self._forget_slot, slot)
        # Until its protocol has it.
        task = asyncio.get_running_loop().create_task(self._connect(connection, slot))
        # The protocol puts its own way to end in the place of this one.
        slot.abort = task.cancel
        self._tasks.add(task)
        task.add_done_callback(partial(self._end_handshake, connection, slot))

    def _end_handshake(
        self, connection: socket.socket, slot: ConnectionSlot, task: "asyncio.Task[None]"
    ) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if task.cancelled() or error is not None:
            log.debug("a connection ended in its handshake: %s", error)
            slot.release()
            connection.close()
