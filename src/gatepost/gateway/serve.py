"""The gateway process: opens the core and all transports, and serves until it is stopped."""

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
from gatepost.config import ListenSettings, Settings
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
from gatepost.room import MAX_MESSAGE_BYTES

log = logging.getLogger(__name__)

_COMPACT_EVERY = 60.0
_SWEEP_DROP_EVERY = 600.0
_SAY_REVIEWS_EVERY = 60.0
_ANY_HOST = ("0.0.0.0", "::")
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def run(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT, then stop in order."""
    # A short switch interval: the writer thread needs the interpreter soon after each fsync,
    # even while the event loop is busy.
    sys.setswitchinterval(0.0005)
    uvloop.run(serve(settings))


async def serve(settings: Settings) -> None:
    listener = _bind(settings)
    async with open_core(settings) as operations:
        core = operations.core
        local_auth = Door(core.state.local_token(core.clock))
        metrics = Metrics(core)
        guard = Threshold(settings.room, core.clock)
        peering = Neighbours(core, metrics, guard)
        external = ExternalAgents(operations, local_auth, guard, peering.keeper.policy)
        routes = [*peering.routes(), *external_agents.routes(external)]
        routes.append(undelivered_api.routes(core))
        routes.append(tracing.routes(Tracer(core, peering.pipes)))
        findings = Feedback(core, peering.keeper)
        routes += feedback.routes(findings, Gate(local_auth, external))
        alerts = Alerts(core, settings.alerts)
        archiver = _sealing(core, peering)
        metrics.observing.growing = lambda: alerts.growing
        app = create_app(operations, local_auth, metrics, routes)
        server = _server(settings, app)
        await remove_orphans(core)
        async with (
            _doors(operations),
            _background(operations),
            repeated(alerts.every_secs, alerts.look),
            repeated(_SAY_REVIEWS_EVERY, findings.publish),
            archiver.running(),
            peering.running(_public_url(settings, listener)),
            _stopping(server, operations, peering),
        ):
            core.state.announce(_endpoint(core, listener))
            log.info("node %s listens on %s", core.node.id, _url(settings, listener))
            # Objects that exist now live as long as the process, and messages make no cycles. So
            # the garbage collector skips the former and runs rarely for the latter.
            gc.freeze()
            gc.set_threshold(100_000, 50, 100)
            try:
                await server.serve(sockets=[listener])
            finally:
                core.state.withdraw()


def _sealing(core: Core, peering: Neighbours) -> Sealing:
    bounds, facts = core.bounds, lambda: room_facts(peering.keeper)
    return Sealing(core, read=bounds.read, settled=bounds.settled, facts=facts)


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
    async with contextlib.AsyncExitStack() as transports:
        if listen.unix_socket:
            unix = UnixDoor(operations, core.state.socket)
            await unix.start()
            transports.push_async_callback(unix.stop)
        if listen.drop_folder:
            drop = DropDoor(operations, core.state.drop)
            await drop.start()
            transports.push_async_callback(drop.stop)
            await transports.enter_async_context(repeated(_SWEEP_DROP_EVERY, drop.sweep))
        yield


def _background(operations: Operations) -> contextlib.AbstractAsyncContextManager[None]:
    return repeated(_COMPACT_EVERY, lambda: compact(operations.core))


@contextlib.asynccontextmanager
async def repeated(seconds: float, work: Callable[[], Awaitable[object]]) -> AsyncIterator[None]:
    """Run `work` every `seconds` until exit."""
    loop = asyncio.create_task(_every(seconds, work))
    try:
        yield
    finally:
        loop.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await loop


@contextlib.asynccontextmanager
async def _stopping(
    server: uvicorn.Server, operations: Operations, peering: Neighbours
) -> AsyncIterator[None]:
    """Stop the server on SIGTERM or SIGINT; everything else then stops in order."""
    loop = asyncio.get_running_loop()
    leaving: set[asyncio.Task[None]] = set()

    async def leave(number: int) -> None:
        try:
            await peering.retire()
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
        """Do not capture: we handle signals, and uvicorn would raise them again too early."""
        yield


async def _every(seconds: float, work: Callable[[], Awaitable[object]]) -> None:
    """Repeat `work`; an error is logged and does not end the loop."""
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
            ws_max_size=max(settings.limits.max_body_bytes, MAX_MESSAGE_BYTES),
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
        # A client may connect as soon as it has read the endpoint file.
        listener.listen(1024)
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"cannot listen on {host}:{port} ({error.strerror}); set listen.port to a free one,"
            " or to 0 for any"
        ) from None
    return listener


def _check_tls(listen: ListenSettings) -> None:
    """Raise ConfigError at startup, where the operator sees it, for an unusable certificate."""
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
    """Return the URL peers dial; None if it is not configured and cannot be derived."""
    if settings.room.public_url:
        return settings.room.public_url
    return _url(settings, listener) if settings.listen.host not in _ANY_HOST else None


def _endpoint(core: Core, listener: socket.socket) -> Endpoint:
    unix = str(core.state.socket) if core.settings.listen.unix_socket else None
    url, cert = _url(core.settings, listener), _file(core.settings.listen.tls_cert)
    return Endpoint(url, unix, os.getpid(), core.node.id, cert)
