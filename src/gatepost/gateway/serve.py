"""The gateway process: opens the core, opens the doors, runs until told to stop."""

import asyncio
import contextlib
import gc
import logging
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import uvicorn
import uvloop

from gatepost.config import Settings
from gatepost.errors import ConfigError
from gatepost.gateway.app import create_app
from gatepost.gateway.compaction import compact
from gatepost.gateway.core import Core
from gatepost.gateway.door import Door
from gatepost.gateway.metrics import Metrics
from gatepost.gateway.operations import Operations
from gatepost.gateway.state import Endpoint
from gatepost.gateway.unix import UnixDoor

log = logging.getLogger(__name__)

_COMPACT_EVERY = 60.0


def run(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT, then finish what was begun."""
    uvloop.run(serve(settings))


async def serve(settings: Settings) -> None:
    listener = _bind(settings)
    async with open_core(settings) as operations:
        core = operations.core
        door = Door(core.state.local_token(core.clock))
        server = _server(settings, operations, door)
        async with _doors(operations), _background(operations):
            core.state.announce(_endpoint(core, listener))
            log.info("node %s listens on %s", core.node.id, _url(listener))
            # What exists now lives as long as the process; the collector need not look at it.
            gc.freeze()
            await server.serve(sockets=[listener])
            core.state.withdraw()


@contextlib.asynccontextmanager
async def open_core(settings: Settings) -> AsyncIterator[Operations]:
    core = Core(settings)
    core.start()
    try:
        yield Operations(core)
    finally:
        await core.stop()


@contextlib.asynccontextmanager
async def _doors(operations: Operations) -> AsyncIterator[None]:
    core = operations.core
    unix = UnixDoor(operations, core.state.socket)
    if core.settings.listen.unix_socket:
        await unix.start()
    try:
        yield
    finally:
        await unix.stop()


@contextlib.asynccontextmanager
async def _background(operations: Operations) -> AsyncIterator[None]:
    loop = asyncio.create_task(_every(_COMPACT_EVERY, lambda: compact(operations.core)))
    try:
        yield
    finally:
        loop.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await loop


async def _every(seconds: float, work: Callable[[], Awaitable[object]]) -> None:
    """Do `work` again and again; an error is reported and does not end it."""
    while True:
        await asyncio.sleep(seconds)
        try:
            await work()
        except Exception:
            log.exception("background work failed and will be tried again")


def _server(settings: Settings, operations: Operations, door: Door) -> uvicorn.Server:
    app = create_app(operations, door, Metrics(operations.core))
    return uvicorn.Server(
        uvicorn.Config(
            app,
            http="httptools",
            ws="websockets-sansio",
            ws_max_size=settings.limits.max_body_bytes,
            ws_per_message_deflate=False,
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
            limit_concurrency=settings.limits.max_connections,
            timeout_graceful_shutdown=5,
        )
    )


def _bind(settings: Settings) -> socket.socket:
    host, port = settings.listen.host, settings.listen.port
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"cannot listen on {host}:{port} ({error.strerror}); set listen.port to a free one,"
            " or to 0 for any"
        ) from None
    return listener


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _endpoint(core: Core, listener: socket.socket) -> Endpoint:
    unix = str(core.state.socket) if core.settings.listen.unix_socket else None
    return Endpoint(_url(listener), unix, os.getpid(), core.node.id)
