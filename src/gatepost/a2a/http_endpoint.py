"""The door over HTTP: cards, keys, and the bindings of the SDK behind a bound and a token."""

import asyncio
from typing import Any

import msgspec
from litestar import Request, asgi
from litestar.types import Receive, Scope, Send

from gatepost.a2a.callers import identify_caller
from gatepost.a2a.card_key import CardKey
from gatepost.a2a.paths import BASE, CARD, KEYS_PATH, DoorPath, parse_path
from gatepost.a2a.sdk import ADVICE, Sdk
from gatepost.errors import ExtraMissing, NotFound, PayloadTooLarge, Unavailable
from gatepost.gateway.doors import DoorServices
from gatepost.listening.page_check import check_page

_MAX_BODY_BYTES = 1024 * 1024
_CARD_SECS = 60
AnyHttpRequest = Request[Any, Any, Any]


class HttpEndpoint:
    def __init__(self, services: DoorServices, sdk: Sdk, key: CardKey) -> None:
        self._services = services
        self._sdk = sdk
        self._key = key
        # Set once the SDK runs.
        self.app: Any = None
        self.is_wanted = asyncio.Event()
        self.is_ready = asyncio.Event()

    def create_routes(self) -> list[Any]:
        # The token is checked here, because an agent's token is not the local one.
        @asgi(BASE, is_mount=True, copy_scope=True, opt={"open": True})
        async def a2a(scope: Scope, receive: Receive, send: Send) -> None:
            # A mount strips its path.
            await self._answer(BASE + scope["path"].rstrip("/"), scope, receive, send)

        @asgi(CARD, copy_scope=True, opt={"open": True})
        async def card(scope: Scope, receive: Receive, send: Send) -> None:
            await self._answer(BASE + CARD, scope, receive, send)

        return [a2a, card]

    async def _answer(self, path: str, scope: Any, receive: Any, send: Any) -> None:
        request: AnyHttpRequest = Request(scope)
        check_page(request, self._services.settings)
        found = parse_path(path)
        if not self._sdk.is_installed:
            raise ExtraMissing(ADVICE)
        if path == KEYS_PATH and request.method == "GET":
            await self._send_json(send, 200, msgspec.json.encode(self._key.describe()), {})
        elif found is None:
            raise NotFound("nothing of A2A is here")
        elif found.rest == CARD:
            await self._send_card(found, request, send)
        else:
            await self._call(found, request, scope, receive, send)

    async def _start(self) -> Any:
        self.is_wanted.set()
        await self.is_ready.wait()
        if self.app is None:
            raise Unavailable("the gateway is stopping; try again shortly", retry_after=1.0)
        return self.app

    # -- cards

    async def _send_card(self, found: DoorPath, request: AnyHttpRequest, send: Any) -> None:
        if not self._services.settings.a2a.public_cards:
            await identify_caller(self._services, request)
        if request.method != "GET":
            raise NotFound("a card is read with GET")
        app = await self._start()
        card = app.cards.serve(found.agent, self._origin(request))
        headers = {
            "etag": card.etag,
            "last-modified": card.changed,
            "cache-control": f"public, max-age={_CARD_SECS}",
        }
        asked = request.headers.get("if-none-match", "")
        is_known = card.etag in asked or asked.strip() == "*"
        await self._send_json(
            send, 304 if is_known else 200, b"" if is_known else card.body, headers
        )

    def _origin(self, request: AnyHttpRequest) -> str:
        """The address of this gateway for whoever asks; its name was checked before."""
        public = self._services.settings.room.public_url
        return public.rstrip("/") if public else f"{request.scope['scheme']}://{request.url.netloc}"

    async def _send_json(
        self, send: Any, status: int, body: bytes, headers: dict[str, str]
    ) -> None:
        told = {"content-type": "application/json", **headers} if body else headers
        fields = [(name.encode(), value.encode()) for name, value in told.items()]
        length = (b"content-length", str(len(body)).encode())
        start = {"type": "http.response.start", "status": status, "headers": [*fields, length]}
        await send(start)
        await send({"type": "http.response.body", "body": body, "more_body": False})

    # -- calls

    async def _call(
        self, found: DoorPath, request: AnyHttpRequest, scope: Any, receive: Any, send: Any
    ) -> None:
        caller = await identify_caller(self._services, request)
        body = await _read_body(receive)
        app = await self._start()
        sdk = await self._sdk.load()
        call = sdk.app.build_call(caller, found.agent)
        path = found.rest
        passed = {**scope, "path": path, "raw_path": path.encode(), "root_path": ""}
        await _while_connected(app, call, passed, body, receive, send)


async def _read_body(receive: Any) -> bytes:
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Unavailable("the client hung up before its request was whole")
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) > _MAX_BODY_BYTES:
            raise PayloadTooLarge(f"a request of A2A has at most {_MAX_BODY_BYTES} bytes")
    return body


async def _while_connected(
    app: Any, call: Any, scope: Any, body: bytes, receive: Any, send: Any
) -> None:
    """Serve a call, but end it when its client hangs up."""
    gone = asyncio.create_task(_await_disconnect(receive))
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> Any:
        if messages:
            return messages.pop()
        await asyncio.shield(gone)
        return {"type": "http.disconnect"}

    work = asyncio.create_task(app.serve(call, scope, receive_again, send))
    try:
        await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            await work
    finally:
        for task in (work, gone):
            task.cancel()
        await asyncio.gather(work, gone, return_exceptions=True)


async def _await_disconnect(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
