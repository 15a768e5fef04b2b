"""The API on Unix sockets, for sessions that have no network. They use their task's token.

The listener's own code serves them, with the same deadlines. Each session has a socket, in a folder
that no other session in a sandbox sees. So the kernel itself keeps sessions apart: one that opens
connections without end fills the queue of its own socket, and one that asks without end waits for
its own requests.
"""

import asyncio
import contextlib
import logging
import os
import shutil
import socket
from collections import defaultdict
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

from litestar.types import ASGIApp, Receive, Scope, Send

from gatepost.core.gateway_core import Core
from gatepost.delivery.abuse import AbuseKind
from gatepost.errors import GatepostError
from gatepost.listening.bounded_http import ScreenHandshake
from gatepost.listening.connection_pool import (
    ListenerPools,
    scope_source,
    session_source,
)
from gatepost.listening.listener import ConnectionAcceptor, ListeningServer
from gatepost.listening.unix_listener import bind_unix_listener
from gatepost.tasks.runtimes.session_user import SessionUsers, is_root

log = logging.getLogger(__name__)

# Requests of one session that are handled at the same time, those that wait for mail included.
_REQUESTS_AT_ONCE = 4


class SessionSockets:
    """A socket for each session that is open. Sessions are known by their names."""

    def __init__(self, core: Core, users: SessionUsers) -> None:
        self._core = core
        self._users = users
        self._state = core.state
        self._server: ListeningServer | None = None
        self._per_session = 0
        # Sockets that exist before they are served, so that earlier sessions can connect.
        self._unserved: dict[str, socket.socket] = {}
        self._acceptors: dict[str, ConnectionAcceptor] = {}

    @contextlib.asynccontextmanager
    async def serving(
        self, app: ASGIApp, pools: ListenerPools, screen: ScreenHandshake
    ) -> AsyncIterator[None]:
        """Answer requests until exit."""
        server = ListeningServer(SessionTurns(app), self._core.settings, pools.sessions, screen)
        self._server, self._per_session = server, pools.per_session
        task = asyncio.create_task(server.serve(sockets=[]))
        for name, listener in self._unserved.items():
            self._serve(server, name, listener)
        self._unserved.clear()
        try:
            yield
        finally:
            self._server = None
            for acceptor in self._acceptors.values():
                acceptor.close()
            server.should_exit = True
            await task

    def open(self, name: str) -> None:
        """Open a session's socket. If that fails, the session needs a network to report."""
        path = self._state.session_socket(name)
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            listener = bind_unix_listener(path)
            self._admit_user(name, path)
        except (OSError, GatepostError) as error:
            log.warning("session %s has no socket: %s cannot be made (%s)", name, path, error)
            return
        if self._server is None:
            self._unserved[name] = listener
        else:
            self._serve(self._server, name, listener)

    def _admit_user(self, name: str, path: Path) -> None:
        """Let the user of a session reach its socket, if that user is not this gateway's own."""
        if is_root():
            user = self._users.find(name)
            self._state.session_sockets.chmod(0o711)
            os.chown(path.parent, 0, user.gid)
            path.parent.chmod(0o710)
            os.chown(path, user.uid, user.gid)

    def _serve(self, server: ListeningServer, name: str, listener: socket.socket) -> None:
        source = session_source(name)
        self._acceptors[name] = server.listen_for(
            source, listener, self._per_session, partial(self._report_crowd, source)
        )

    def close(self, name: str) -> None:
        """Close a session's socket and its connections."""
        acceptor, unserved = self._acceptors.pop(name, None), self._unserved.pop(name, None)
        if acceptor is not None:
            acceptor.close()
            acceptor.abort_connections()
        elif unserved is not None:
            unserved.close()
        self._state.session_socket(name).unlink(missing_ok=True)

    def remove(self, name: str) -> None:
        """Close the socket of an ended session, and free its folder and its user."""
        self.close(name)
        self._users.release(name)
        with contextlib.suppress(OSError):
            self._state.session_socket(name).parent.rmdir()

    def remove_unused(self) -> None:
        """Remove the folders of sessions that ended while this gateway was away."""
        names = self._acceptors.keys() | self._unserved.keys()
        used = {self._state.session_socket(name).parent for name in names}
        with contextlib.suppress(FileNotFoundError):
            for path in self._state.session_sockets.iterdir():
                if path not in used:
                    shutil.rmtree(path, ignore_errors=True)

    def _report_crowd(self, source: str) -> None:
        self._core.abuse.report_abuse(
            source,
            AbuseKind.CONNECTION_FLOOD,
            f"it has had all its {self._per_session} connections for long; further ones wait",
        )


class SessionTurns:
    """The application, for a few requests of each session at a time; further ones wait."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._turns: defaultdict[str, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(_REQUESTS_AT_ONCE)
        )
        # Source → its requests that are handled or wait.
        self._requests: defaultdict[str, int] = defaultdict(int)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        source = scope_source(scope)
        self._requests[source] += 1
        try:
            async with self._turns[source]:
                await self._app(scope, receive, send)
        finally:
            self._requests[source] -= 1
            if not self._requests[source]:
                del self._requests[source], self._turns[source]
