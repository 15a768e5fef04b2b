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
import threading
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import msgspec
import uvicorn
import uvloop
from litestar import Litestar

from gatepost.clock import Clock
from gatepost.config import Settings, is_loopback
from gatepost.connect.gateway_endpoint import GatewayEndpoint
from gatepost.core.gateway_core import Core
from gatepost.delivery.abuse import AbuseKind
from gatepost.errors import ConfigError
from gatepost.gateway.api.operations import Operations
from gatepost.gateway.gateway_services import GatewayServices
from gatepost.gateway.peering import Peering
from gatepost.gateway.settings_reload import LoadSettings, SettingsReload
from gatepost.gateway.wait_for_disk import wait_for_space
from gatepost.listening.connection_pool import (
    ConnectionPool,
    ListenerPools,
    name_offender,
)
from gatepost.listening.listener import ListeningServer
from gatepost.listening.local_auth import LocalTokenAuth
from gatepost.listening.open_files import plan_open_files
from gatepost.listening.operator_access import GuessLimit, OperatorAccess
from gatepost.tasks.runtimes.session_user import is_root
from gatepost.tls import own_certificate_pin

log = logging.getLogger(__name__)

_LOOPBACK_OF_WILDCARD = {"0.0.0.0": "127.0.0.1", "::": "::1"}
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def run_gateway(settings: Settings, load: LoadSettings | None = None) -> None:
    """Serve until SIGTERM or SIGINT, then stop in order. SIGHUP reads the settings by `load`."""
    # All files of this process, and of its libraries, are readable by its user alone.
    os.umask(0o077)
    # A short switch interval: the writer thread needs the interpreter soon after each fsync,
    # even while the event loop is busy.
    sys.setswitchinterval(0.0005)
    while uvloop.run(serve_until_stopped(settings, load)):
        log.info("the gateway starts again under another node id")


async def serve_until_stopped(settings: Settings, load: LoadSettings | None = None) -> bool:
    """Serve until a signal comes, or a restart is wanted; return True for the latter."""
    asyncio.get_running_loop().set_exception_handler(_log_loop_error)
    if is_root():
        log.warning(
            "the gateway runs as root, and needs no such rights: give it a user of its own, see"
            " docs/operations.md; its sessions run as other users"
        )
    listener = _bind_listener(settings)
    await wait_for_space(settings.node.state_dir)
    async with open_core(settings) as operations:
        core, access = operations.core, _operator_access(operations.core)
        pools = _create_pools(core)
        reload = SettingsReload(core, load)
        services = GatewayServices(operations, access, pools, reload)
        app = services.create_app()
        server = _create_server(core, app, pools.listener, access)
        public_url, local_url = _public_url(settings, listener), _listener_url(settings, listener)
        async with (
            services.running(app, public_url, _own_tls_pin(settings, public_url), local_url),
            _stop_on_signals(server, operations, services.peering),
            _reload_on_signal(reload),
        ):
            await _serve_clients(core, server, listener)
    return core.restart_wanted.is_set()


async def _serve_clients(core: Core, server: uvicorn.Server, listener: socket.socket) -> None:
    """Accept connections until the server stops."""
    _start_listening(listener)
    core.state.write_endpoint(_local_endpoint(core, listener))
    log.info("node %s listens on %s", core.node.id, _bound_url(core.settings, listener))
    # Objects that exist now live as long as the process, and messages make no cycles. So the
    # garbage collector skips the former and runs rarely for the latter.
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)
    try:
        await server.serve(sockets=[listener])
    finally:
        core.state.remove_endpoint()


def _operator_access(core: Core) -> OperatorAccess:
    token = core.state.load_local_token(core.clock)
    per_minute = core.settings.limits.wrong_tokens_per_min
    guesses = GuessLimit(per_minute, core.abuse, core.clock)
    auth = LocalTokenAuth(token, core.clock.random(32).hex())
    return OperatorAccess(auth, guesses, core.settings)


def _log_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an error that no task awaits. A broken connection is not worth a traceback."""
    error = context.get("exception")
    if isinstance(error, OSError):
        log.info("a connection ended: %s (%s)", context["message"], error)
    else:
        loop.default_exception_handler(context)


@contextlib.asynccontextmanager
async def open_core(settings: Settings, clock: Clock | None = None) -> AsyncIterator[Operations]:
    core = Core(settings, clock)
    core.start()
    try:
        yield Operations(core)
    finally:
        await core.stop()


@contextlib.asynccontextmanager
async def _stop_on_signals(
    server: uvicorn.Server, operations: Operations, peering: Peering
) -> AsyncIterator[None]:
    """Stop the server on SIGTERM or SIGINT, or for a restart; the rest then stops in order."""
    loop = asyncio.get_running_loop()
    leaving: set[asyncio.Task[None]] = set()
    restart_wanted = operations.core.restart_wanted

    async def leave(number: int) -> None:
        try:
            await peering.announce_leaving()
        finally:
            server.handle_exit(number, None)

    def stop(number: int) -> None:
        end_process_after(operations.core.settings.node.stop_secs)
        operations.waits.end_waits()
        leaving.add(asyncio.create_task(leave(number)))

    async def leave_for_restart() -> None:
        await restart_wanted.wait()
        operations.waits.end_waits()
        server.should_exit = True

    for number in _SIGNALS:
        loop.add_signal_handler(number, stop, number)
    restarting = asyncio.create_task(leave_for_restart())
    try:
        yield
    finally:
        restarting.cancel()
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


@contextlib.asynccontextmanager
async def _reload_on_signal(reload: SettingsReload) -> AsyncIterator[None]:
    """Read the settings again on SIGHUP. A gateway in a terminal ends with it, as any program."""
    if os.isatty(0):
        yield
        return
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, reload.reload_on_signal)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGHUP)


def end_process_after(secs: float) -> None:
    """End this process after a time limit, even if its threads or its event loop hang.

    An operation of the writer may hang, and with it everything that waits for the journal. A
    process that is killed loses nothing that was answered.
    """

    def end_process() -> None:
        log.error("the gateway did not stop within %g s: its process ends now", secs)
        logging.shutdown()
        os._exit(1)

    timer = threading.Timer(secs, end_process)
    timer.daemon = True
    timer.start()


def _create_server(
    core: Core, app: Litestar, pool: ConnectionPool, access: OperatorAccess
) -> uvicorn.Server:
    settings = core.settings
    _check_tls(settings)
    return ListeningServer(
        app,
        settings,
        pool,
        access.screen_handshake,
        ssl_certfile=settings.named_file(settings.listen.tls_cert),
        ssl_keyfile=settings.named_file(settings.listen.tls_key),
    )


def _create_pools(core: Core) -> ListenerPools:
    limits, per_session = plan_open_files(core.settings)
    report = partial(_report_flood, core)
    # Each session's socket is bounded, so this pool always has a free place.
    places = 2 * per_session * (core.settings.hub.max_sessions + 1)
    of_sessions = msgspec.structs.replace(
        limits, max_connections=places + 16, max_unauthenticated=places + 16
    )
    return ListenerPools(
        ConnectionPool(limits, report), ConnectionPool(of_sessions, report), per_session
    )


def _report_flood(core: Core, source: str) -> None:
    core.abuse.report_abuse(
        name_offender(source),
        AbuseKind.CONNECTION_FLOOD,
        "too many connections without a valid token; the oldest ones are closed",
    )


def _bind_listener(settings: Settings) -> socket.socket:
    host, port = settings.listen.host, settings.listen.port
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise _port_error(host, port, error) from None
    return listener


def _start_listening(listener: socket.socket) -> None:
    """Write the endpoint file, after which clients connect."""
    try:
        listener.listen(1024)
    except OSError as error:
        host, port = listener.getsockname()[:2]
        raise _port_error(host, port, error) from None


def _port_error(host: str, port: int, error: OSError) -> ConfigError:
    return ConfigError(
        f"cannot listen on {host}:{port} ({error.strerror}); set listen.port to a free one,"
        " or to 0 for any"
    )


def _check_tls(settings: Settings) -> None:
    """Raise ConfigError at startup, where the operator sees it, for an unusable certificate."""
    listen = settings.listen
    if (certificate := settings.named_file(listen.tls_cert)) is not None:
        try:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate, settings.named_file(listen.tls_key))
        except OSError as error:
            raise ConfigError(
                f"listen.tls_cert and listen.tls_key cannot be used: {error}"
            ) from None
    elif not is_loopback(listen.host):
        log.warning(
            "other machines can reach this gateway without TLS. They are refused, or with"
            " listen.allow_plain or room.allow_plain their tokens and mail can be read on the way;"
            " set listen.tls_cert and listen.tls_key, or use `gatepost init --public`"
        )


def _listener_url(settings: Settings, listener: socket.socket) -> str:
    """Return the URL for clients on this machine; a wildcard address is reached by loopback."""
    host = listener.getsockname()[0]
    return _bound_url(settings, listener, _LOOPBACK_OF_WILDCARD.get(host, host))


def _bound_url(settings: Settings, listener: socket.socket, host: str | None = None) -> str:
    """Return the URL of the address that the listener is bound to, or of `host` instead."""
    scheme = "https" if settings.listen.tls_cert else "http"
    bound, port = listener.getsockname()[:2]
    host = bound if host is None else host
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _public_url(settings: Settings, listener: socket.socket) -> str | None:
    """Return the URL peers dial; None if it is not configured and cannot be derived."""
    if settings.room.public_url:
        return settings.room.public_url
    is_wildcard = settings.listen.host in _LOOPBACK_OF_WILDCARD
    return None if is_wildcard else _listener_url(settings, listener)


def _own_tls_pin(settings: Settings, url: str | None) -> str | None:
    """Return the pin that peers need to know us by, if we made our certificate ourselves."""
    certificate = settings.named_file(settings.listen.tls_cert)
    if certificate is None or (url is not None and not url.startswith("https:")):
        return None
    return own_certificate_pin(certificate)


def _local_endpoint(core: Core, listener: socket.socket) -> GatewayEndpoint:
    unix = str(core.state.socket) if core.settings.listen.unix_socket else None
    certificate = core.settings.named_file(core.settings.listen.tls_cert)
    return GatewayEndpoint(
        _listener_url(core.settings, listener),
        unix,
        os.getpid(),
        core.node.id,
        None if certificate is None else str(certificate),
    )
