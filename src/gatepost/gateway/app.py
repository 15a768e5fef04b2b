"""The ASGI application: routes, the WebSocket, health checks and error responses."""

import logging
import math
from collections.abc import Sequence
from typing import Any

from litestar import Litestar, MediaType, Response
from litestar import websocket as websocket_route
from litestar.config.cors import CORSConfig
from litestar.connection import ASGIConnection
from litestar.enums import ScopeType
from litestar.exceptions import HTTPException, WebSocketException
from litestar.handlers.base import BaseRouteHandler
from litestar.plugins import PluginProtocol
from litestar.plugins.core import MsgspecDIPlugin

from gatepost.access import AgentSession
from gatepost.errors import (
    GatepostError,
    InternalError,
    Unauthorized,
)
from gatepost.gateway import openapi
from gatepost.gateway.admin.external_agents import ExternalAgents, has_session_token
from gatepost.gateway.admin.status import gateway_status
from gatepost.gateway.api import http_routes
from gatepost.gateway.api.frame_channel import FrameChannel
from gatepost.gateway.api.operations import Operations
from gatepost.gateway.api.websocket_transport import WebSocketTransport
from gatepost.gateway.monitoring.metrics import Metrics
from gatepost.gateway.monitoring.peer_statuses import PeerStatuses
from gatepost.listening.json_input import TypedRequest
from gatepost.listening.operator_access import OperatorAccess
from gatepost.listening.route_decorators import get
from gatepost.listening.route_parameters import AnyRequest, AnyWebSocket, rename_query_parameters
from gatepost.listening.websocket_handshake import check_origin, refuse_websocket
from gatepost.tasks.service.hub_auth import HubAuth
from gatepost.wire.gateway_views import Status
from gatepost.wire.operations import Failure

log = logging.getLogger(__name__)

AnyConnection = ASGIConnection[Any, Any, Any, Any]

_CODE_BY_STATUS = {
    400: "invalid_request",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    413: "payload_too_large",
    429: "rate_limited",
}
_PATHS_WITHOUT_TOKEN = ("/healthz", "/readyz")


def create_app(
    operations: Operations,
    access: OperatorAccess,
    metrics: Metrics,
    more: Sequence[Any] = (),
    peers: PeerStatuses | None = None,
    external: ExternalAgents | None = None,
    hub_auth: HubAuth | None = None,
) -> Litestar:
    """Build the application. Routes in `more` with the option `open` need no local token.

    Sessions of `external` agents may open the WebSocket too. Any valid token, including a task's,
    can read the OpenAPI document.
    """
    settings = operations.core.settings

    async def require_any_token(connection: AnyConnection) -> None:
        if external is not None and has_session_token(connection):
            external.guard.require_tls(connection)
            await external.authenticate_session(connection)
        elif hub_auth is not None:
            await hub_auth.authenticate(connection)
        else:
            access.require_operator(connection)

    # A coroutine, though it awaits nothing: a plain function would run in another thread.
    async def guard(connection: AnyConnection, handler: BaseRouteHandler) -> None:
        is_open = connection.scope["path"] in _PATHS_WITHOUT_TOKEN or "open" in handler.opt
        # The WebSocket handler checks the token itself: a handshake is refused in another way.
        if connection.scope["path"] == openapi.OPENAPI_PATH:
            await require_any_token(connection)
        elif not is_open and connection.scope["type"] == ScopeType.HTTP:
            access.require_operator(connection)
            operations.bucket.take_tokens(1)

    return _Application(
        [
            http_routes.create_router(operations),
            *_health_routes(operations, metrics, peers),
            _websocket_route(operations, access, metrics, external),
            *more,
        ],
        guards=[guard],
        exception_handlers={Exception: _answer_error},
        request_class=TypedRequest,
        before_request=rename_query_parameters,
        request_max_body_size=settings.limits.max_body_bytes,
        openapi_config=openapi.openapi_config(),
        cors_config=_cors_config(settings.room.allowed_origins),
        logging_config=None,
        debug=False,
    )


class _Application(Litestar):
    """Litestar without the plugins for values that no route has.

    It would load pydantic (9 MB) because a library of an extra has it installed.
    """

    @staticmethod
    def _get_default_plugins(plugins: list[PluginProtocol]) -> list[PluginProtocol]:
        return [*plugins, MsgspecDIPlugin()]


def _cors_config(origins: tuple[str, ...]) -> CORSConfig | None:
    """Let pages of these origins read the answers; they still need a token."""
    if not origins:
        return None
    return CORSConfig(
        allow_origins=list(origins),
        allow_methods=["GET", "POST", "PUT", "DELETE"],
        allow_headers=["authorization", "content-type"],
        expose_headers=["retry-after"],
    )


def _health_routes(
    operations: Operations, metrics: Metrics, peers: PeerStatuses | None
) -> list[Any]:
    core = operations.core

    @get("/healthz", media_type=MediaType.TEXT, summary="The process lives", security=[])
    async def healthz() -> str:
        core.journal_watch.require_life()
        return "ok\n"

    @get("/readyz", media_type=MediaType.TEXT, summary="Messages are accepted", security=[])
    async def readyz() -> str:
        core.journal_watch.require_progress()
        return "ok\n"

    @get("/metrics", media_type=MediaType.TEXT, summary="Prometheus metrics")
    async def prometheus() -> Response[bytes]:
        content, kind = await metrics.render_text()
        return Response(content, media_type=kind)

    @get("/v1/status", summary="This gateway at a glance")
    async def glance() -> Status:
        return await gateway_status(operations, peers)

    return [healthz, readyz, prometheus, glance]


def _websocket_route(
    operations: Operations,
    access: OperatorAccess,
    metrics: Metrics,
    external: ExternalAgents | None,
) -> Any:
    limits = operations.core.settings.limits

    async def find_session(socket: AnyWebSocket) -> AgentSession | None:
        """Return the session of an external agent, or None for the local token."""
        if external is not None and has_session_token(socket):
            external.guard.require_tls(socket)
            return await external.authenticate_session(socket)
        access.require_operator(socket)
        return None

    @websocket_route("/v1/ws")
    async def frames(socket: AnyWebSocket) -> None:
        try:
            check_origin(socket, operations.core.settings.room.allowed_origins)
            session = await find_session(socket)
        except GatepostError as error:
            await refuse_websocket(socket, error)
            return
        await socket.accept()
        with metrics.track_session():
            if external is not None and session is not None:
                await external.serve_socket(socket, session)
            else:
                carrier = WebSocketTransport(socket, limits.max_body_bytes)
                await carrier.run(FrameChannel(operations, carrier.wake))

    return frames


def _answer_error(request: AnyRequest, error: Exception) -> Response[Failure]:
    """Answer with a code and a sentence. Unexpected errors are logged, their text is not shown."""
    if isinstance(error, GatepostError):
        status_code, failure = error.status, Failure.from_error(error)
    elif isinstance(error, HTTPException | WebSocketException):
        status_code, failure = _failure_from_litestar(error)
    else:
        log.error("a request failed unexpectedly", exc_info=error)
        status_code, failure = (
            500,
            Failure.from_error(InternalError("an internal error; see the log")),
        )
    headers = {}
    if failure.retry_after is not None:
        headers["retry-after"] = str(max(1, math.ceil(failure.retry_after)))
    if status_code == Unauthorized.status:
        headers["www-authenticate"] = "Bearer"
    return Response(failure, status_code=status_code, headers=headers, media_type=MediaType.JSON)


def _failure_from_litestar(error: HTTPException | WebSocketException) -> tuple[int, Failure]:
    status_code = getattr(error, "status_code", 500)
    code = _CODE_BY_STATUS.get(status_code, "error")
    problems = getattr(error, "extra", None) or []
    details = (
        "; ".join(_describe_problem(p) for p in problems) if isinstance(problems, list) else ""
    )
    return status_code, Failure(code, ": ".join(filter(None, (error.detail, details))))


def _describe_problem(problem: Any) -> str:
    if not isinstance(problem, dict):
        return str(problem)
    return " ".join(str(problem[k]) for k in ("key", "message") if problem.get(k))
