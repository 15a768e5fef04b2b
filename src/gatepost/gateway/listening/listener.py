"""The listener: accepts connections into the pool, and makes their TLS handshakes."""

import asyncio
import contextlib
import logging
import resource
import socket
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import msgspec
import uvicorn

from gatepost.access import rate_limit_source
from gatepost.config import LimitsSettings
from gatepost.gateway.listening.bounded_http import BoundedHttpProtocol, ScreenHandshake
from gatepost.gateway.listening.connection_pool import ConnectionPool, ConnectionSlot

log = logging.getLogger(__name__)

_HANDSHAKE_SECS = 10.0
_SHUTDOWN_SECS = 5.0
# So many connections are accepted before the event loop goes on with other work. The requests of a
# crowd that comes at the same moment then come one after the other, with other work in between.
_ACCEPTS_AT_ONCE = 4
# The pause after the system refused to accept, for example because no more files may be open.
_RETRY_SECS = 0.5
# Files of the journal, blobs, dialled peers, clients of the Unix socket, and everything else.
_OTHER_FILES = 1024
_FEWEST_STRANGERS = 16


class ListeningServer(uvicorn.Server):
    """uvicorn's server with our own way to accept connections."""

    def __init__(
        self, config: uvicorn.Config, pool: ConnectionPool, screen: ScreenHandshake
    ) -> None:
        super().__init__(config)
        self._pool = pool
        self._screen = screen

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
    """

    def __init__(
        self,
        listener: socket.socket,
        pool: ConnectionPool,
        connect: Callable[[socket.socket, ConnectionSlot], Any],
    ) -> None:
        self._listener = listener
        self._pool = pool
        self._connect = connect
        self._tasks: set[asyncio.Task[None]] = set()
        self._retry: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._listener.setblocking(False)
        self._resume()

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._listener)
        if self._retry is not None:
            self._retry.cancel()
        for task in self._tasks:
            task.cancel()

    async def wait_closed(self) -> None:
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _resume(self) -> None:
        asyncio.get_running_loop().add_reader(self._listener, self._accept_some)

    def _accept_some(self) -> None:
        for _ in range(_ACCEPTS_AT_ONCE):
            try:
                connection, address = self._listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionError:
                continue
            except OSError as error:
                self._pause(error)
                return
            self._take_connection(connection, address[0])

    def _pause(self, error: OSError) -> None:
        log.error("no connection can be accepted: %s", error)
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._listener)
        self._retry = loop.call_later(_RETRY_SECS, self._resume)

    def _take_connection(self, connection: socket.socket, host: str) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        task = asyncio.get_running_loop().create_task(self._carry(connection, host))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry(self, connection: socket.socket, host: str) -> None:
        """Carry a connection until its protocol has it."""
        carrying = asyncio.current_task()
        assert carrying is not None
        # The protocol puts its own way to end in the place of this one.
        slot = self._pool.admit(rate_limit_source(host), carrying.cancel)
        try:
            await self._connect(connection, slot)
        except (OSError, asyncio.CancelledError) as error:
            log.debug("a connection ended in its handshake: %s", error)
            slot.release()
            connection.close()


def allow_open_files(limits: LimitsSettings) -> LimitsSettings:
    """Raise the process's limit of open files; return the limits that are possible with it."""
    needed = limits.max_connections + _OTHER_FILES
    wanted = needed + limits.max_unauthenticated
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return limits
    reachable = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (reachable, hard))
    if reachable == wanted:
        return limits
    log.warning(
        "the system allows %d open files, but limits.max_connections and"
        " limits.max_unauthenticated need %d: raise the limit (`ulimit -n`), or lower them",
        reachable,
        wanted,
    )
    strangers = max(_FEWEST_STRANGERS, reachable - needed)
    return msgspec.structs.replace(limits, max_unauthenticated=strangers)
