"""MCP over streamable HTTP. Every request stands alone: a restart of the gateway goes unnoticed."""

import asyncio
from typing import Any

from litestar import Request, asgi
from litestar.types import Receive, Scope, Send

from gatepost.errors import ExtraMissing, Unavailable
from gatepost.gateway.doors import DoorCaller, DoorServices
from gatepost.listening.page_check import check_page
from gatepost.mcp.server.sdk import ADVICE, Sdk

PATH = "/mcp"
# The name under which the operator acts; an agent's token fixes its name.
AGENT_HEADER = "gatepost-agent"
CALLER_KEY = "gatepost.mcp.caller"


class HttpEndpoint:
    def __init__(self, services: DoorServices, sdk: Sdk) -> None:
        self._services = services
        self._sdk = sdk
        # Set once the SDK's session manager runs, in `running`.
        self.serve: Any = None
        self.is_wanted = asyncio.Event()
        self.is_ready = asyncio.Event()

    def create_routes(self) -> list[Any]:
        # The token is checked here, because an agent's token is not the local one.
        @asgi(PATH, copy_scope=True, opt={"open": True})
        async def mcp(scope: Scope, receive: Receive, send: Send) -> None:
            await self._answer(scope, receive, send)

        return [mcp]

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        request: Request[Any, Any, Any] = Request(scope)
        check_page(request, self._services.settings)
        caller = await self._services.authenticate(request, request.headers.get(AGENT_HEADER))
        if not self._sdk.is_installed:
            raise ExtraMissing(ADVICE)
        self.is_wanted.set()
        await self.is_ready.wait()
        if self.serve is None:
            raise Unavailable("the gateway is stopping; try again shortly", retry_after=1.0)
        passed: dict[str, Any] = {**scope, CALLER_KEY: caller, "path": PATH, "root_path": ""}
        await self.serve(passed, receive, send)


def caller_of_request(request: Any) -> DoorCaller:
    caller = request.scope[CALLER_KEY]
    assert isinstance(caller, DoorCaller), "the endpoint has put it there"
    return caller
