"""The gateway process: opens the core, opens the doors, runs until told to stop."""

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import uvicorn
import uvloop
from litestar import Litestar

from gatepost.clock import Clock
from gatepost.config import Listen, Settings
from gatepost.errors import ConfigError
from gatepost.gateway import external_agents, feedback, tracing, undelivered_api
from gatepost.gateway.alerts import Alerts
from gatepost.gateway.app import create_app
from gatepost.gateway.compaction import compact, remove_orphans
from gatepost.gateway.core import Core
from gatepost.gateway.door import Door
from gatepost.gateway.drop import DropDoor
from gatepost.gateway.external_agents import ExternalAgents
from gatepost.gateway.feedback import Feedback, Gate
from gatepost.gateway.metrics import Metrics
from gatepost.gateway.neighbours import Neighbours
from gatepost.gateway.operations import Operations
from gatepost.gateway.protocol import BoundedHttp
from gatepost.gateway.room_facts import room_facts
from gatepost.gateway.sealing import Sealing
from gatepost.gateway.state import Endpoint
from gatepost.gateway.threshold import Threshold
from gatepost.gateway.tracing import Tracer
from gatepost.gateway.unix import UnixDoor
from gatepost.room import MAX_MESSAGE

log = logging.getLogger(__name__)

_COMPACT_EVERY = 60.0
_SWEEP_DROP_EVERY = 600.0
_SAY_REVIEWS_EVERY = 60.0
_ANY_HOST = ("0.0.0.0", "::")
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def run(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT, then finish what was begun."""
    # The writer needs the interpreter back soon after each fsync, though the event loop is busy.
    sys.setswitchinterval(0.0005)
    uvloop.run(serve(settings))


async def serve(settings: Settings) -> None:
    listener = _bind(settings)
    async with open_core(settings) as operations:
        core = operations.core
        door = Door(core.state.local_token(core.clock))
        metrics = Metrics(core)
        threshold = Threshold(settings.room, core.clock)
        neighbours = Neighbours(core, metrics, threshold)
        external = ExternalAgents(operations, door, threshold, neighbours.keeper.policy)
        routes = [*neighbours.routes(), *external_agents.routes(external)]
        routes.append(undelivered_api.routes(core))
        routes.append(tracing.routes(Tracer(core, neighbours.pipes)))
        said = Feedback(core, neighbours.keeper)
        routes += feedback.routes(said, Gate(door, external))
        alerts = Alerts(core, settings.alerts)
        sealing = _sealing(core, neighbours)
        metrics.observing.growing = lambda: alerts.growing
        app = create_app(operations, door, metrics, routes)
        server = _server(settings, app)
        await remove_orphans(core)
        async with (
            _doors(operations),
            _background(operations),
            repeated(alerts.every_secs, alerts.look),
            repeated(_SAY_REVIEWS_EVERY, said.publish),
            sealing.running(),
            neighbours.running(_public_url(settings, listener)),
            _stopping(server, operations, neighbours),
        ):
            core.state.announce(_endpoint(core, listener))
            log.info("node %s listens on %s", core.node.id, _url(settings, listener))
            # What exists now lives as long as the process, and messages make no cycles: the
            # collector need not look at the one, nor often for the other.
            gc.freeze()
            gc.set_threshold(100_000, 50, 100)
            try:
                await server.serve(sockets=[listener])
            finally:
                core.state.withdraw()


def _sealing(core: Core, neighbours: Neighbours) -> Sealing:
    bounds, facts = core.bounds, lambda: room_facts(neighbours.keeper)
    return Sealing(core, read=bounds.read_through, settled=bounds.closed_through, facts=facts)


@contextlib.asynccontextmanager
async def open_core(settings: Settings, clock: Clock | None = None) -> AsyncIterator[Operations]:
    core = Core(settings, clock)
    core.start()
    try:
        yield Operations(core)
    finally:
        await core.stop()


@contextlib.asynccontextmanager
async def _doors(operations: Operations) -> AsyncIterator[None]:
    core, listen = operations.core, operations.core.settings.listen
    async with contextlib.AsyncExitStack() as open_doors:
        if listen.unix_socket:
            unix = UnixDoor(operations, core.state.socket)
            await unix.start()
            open_doors.push_async_callback(unix.stop)
        if listen.drop_folder:
            drop = DropDoor(operations, core.state.drop)
            await drop.start()
            open_doors.push_async_callback(drop.stop)
            await open_doors.enter_async_context(repeated(_SWEEP_DROP_EVERY, drop.sweep))
        yield


def _background(operations: Operations) -> contextlib.AbstractAsyncContextManager[None]:
    return repeated(_COMPACT_EVERY, lambda: compact(operations.core))


@contextlib.asynccontextmanager
async def repeated(seconds: float, work: Callable[[], Awaitable[object]]) -> AsyncIterator[None]:
    """While this lasts, `work` is done every so many seconds."""
    loop = asyncio.create_task(_every(seconds, work))
    try:
        yield
    finally:
        loop.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await loop


@contextlib.asynccontextmanager
async def _stopping(
    server: uvicorn.Server, operations: Operations, neighbours: Neighbours
) -> AsyncIterator[None]:
    """SIGTERM and SIGINT end the server, and then everything else in its order."""
    loop = asyncio.get_running_loop()
    leaving: set[asyncio.Task[None]] = set()

    async def leave(number: int) -> None:
        try:
            await neighbours.retire()
        finally:
            server.handle_exit(number, None)

    def stop(number: int) -> None:
        operations.end_waits()
        leaving.add(asyncio.create_task(leave(number)))

    for number in _SIGNALS:
        loop.add_signal_handler(number, stop, number)
    try:
        yield
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Nothing: signals are ours, and uvicorn would raise them anew before we are done."""
        yield


async def _every(seconds: float, work: Callable[[], Awaitable[object]]) -> None:
    """Do `work` again and again; an error is reported and does not end it."""
    while True:
        await asyncio.sleep(seconds)
        try:
            await work()
        except Exception:
            log.exception("background work failed and will be tried again")


def _server(settings: Settings, app: Litestar) -> uvicorn.Server:
    listen = settings.listen
    _check_tls(listen)
    return _Server(
        uvicorn.Config(
            app,
            http=BoundedHttp,
            ws="websockets-sansio",
            ws_max_size=max(settings.limits.max_body_bytes, MAX_MESSAGE),
            ws_per_message_deflate=False,
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
            limit_concurrency=settings.limits.max_connections,
            timeout_graceful_shutdown=2,
            ssl_certfile=_file(listen.tls_cert),
            ssl_keyfile=_file(listen.tls_key),
        )
    )


def _bind(settings: Settings) -> socket.socket:
    host, port = settings.listen.host, settings.listen.port
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        # Whoever reads the announcement may connect at once.
        listener.listen(1024)
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"cannot listen on {host}:{port} ({error.strerror}); set listen.port to a free one,"
            " or to 0 for any"
        ) from None
    return listener


def _check_tls(listen: Listen) -> None:
    """Say what is wrong with the certificate while there is somebody to read it."""
    if listen.tls_cert:
        try:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(_file(listen.tls_cert) or "", _file(listen.tls_key))
        except OSError as error:
            raise ConfigError(
                f"listen.tls_cert and listen.tls_key cannot be used: {error}"
            ) from None


def _file(path: str) -> str | None:
    return str(Path(path).expanduser()) if path else None


def _url(settings: Settings, listener: socket.socket) -> str:
    scheme = "https" if settings.listen.tls_cert else "http"
    host, port = listener.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _public_url(settings: Settings, listener: socket.socket) -> str | None:
    """What others dial; None if only the operator could know and has not said."""
    if settings.room.public_url:
        return settings.room.public_url
    return _url(settings, listener) if settings.listen.host not in _ANY_HOST else None


def _endpoint(core: Core, listener: socket.socket) -> Endpoint:
    unix = str(core.state.socket) if core.settings.listen.unix_socket else None
    url, cert = _url(core.settings, listener), _file(core.settings.listen.tls_cert)
    return Endpoint(url, unix, os.getpid(), core.node.id, cert)
