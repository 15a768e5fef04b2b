"""Everything behind the door that needs the SDK: its bindings, cards and push notifications."""

import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Any

from a2a.extensions.common import HTTP_EXTENSION_HEADER, get_requested_extensions
from a2a.server.context import ServerCallContext
from a2a.server.routes.common import ServerCallContextBuilder
from a2a.server.routes.jsonrpc_routes import create_jsonrpc_routes
from a2a.server.routes.rest_routes import create_rest_routes
from starlette.applications import Starlette
from starlette.requests import Request

from gatepost.a2a.agent_cards import AgentCards
from gatepost.a2a.callers import StreamPlaces
from gatepost.a2a.card_key import CardKey
from gatepost.a2a.door_records import DoorRecords
from gatepost.a2a.paths import REST, RPC
from gatepost.a2a.push_desk import PushDesk
from gatepost.a2a.request_handler import CALL_KEY, A2aCall, FabricRequestHandler
from gatepost.a2a.task_desk import TaskDesk
from gatepost.gateway.doors import DoorServices

log = logging.getLogger(__name__)


class _ContextBuilder(ServerCallContextBuilder):
    """Passes on who calls, as the endpoint has found it out."""

    def build(self, request: Request) -> ServerCallContext:
        asked = request.headers.getlist(HTTP_EXTENSION_HEADER)
        return ServerCallContext(
            state={CALL_KEY: request.scope[CALL_KEY], "headers": dict(request.headers)},
            requested_extensions=get_requested_extensions(asked),
        )


class A2aApp:
    def __init__(self, services: DoorServices, records: DoorRecords, key: CardKey) -> None:
        desk = TaskDesk(services, records)
        self.cards = AgentCards(services, desk, key)
        self._pushes = PushDesk(services, records, desk)
        places = StreamPlaces(services.settings.a2a)
        handler, builder = FabricRequestHandler(desk, self._pushes, places), _ContextBuilder()
        versions: Any = {"context_builder": builder, "enable_v0_3_compat": True}
        self._app = Starlette(
            routes=[
                *create_jsonrpc_routes(handler, RPC, **versions),
                *create_rest_routes(handler, path_prefix=REST, **versions),
            ]
        )
        self._app.router.redirect_slashes = False

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with self._pushes.running():
            yield

    async def serve(self, call: A2aCall, scope: Any, receive: Any, send: Any) -> None:
        await self._app({**scope, CALL_KEY: call}, receive, send)


def build_call(caller: Any, agent: str | None) -> A2aCall:
    return A2aCall(caller, agent)
