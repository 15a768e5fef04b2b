"""The door for browsers: routes of the dashboard, and the API that makes its one-time links.

Every page is asked for with the session's cookie, and changes are POSTs of its own forms. Pages of
other origins, other names for this gateway and frames are refused (`request_checks.py`).
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl

import msgspec
from litestar import Response
from litestar.params import JSONBody
from litestar.response import ServerSentEvent, ServerSentEventMessage

from gatepost.errors import Forbidden, GatepostError, InvalidRequest, NotFound, Unauthorized
from gatepost.events import check_agent_id, check_msg_id
from gatepost.gateway.doors import DoorServices
from gatepost.listening.event_streams import keep_alive
from gatepost.listening.route_decorators import get, post
from gatepost.listening.route_parameters import AnyRequest, PathName
from gatepost.web.action_pages import confirm_page, perform_action
from gatepost.web.api_calls import ApiCalls
from gatepost.web.html import Child, is_local_link
from gatepost.web.layout import Frame, render
from gatepost.web.login_pages import login_page, refusal_page
from gatepost.web.pages import (
    dead_letter_page,
    message_pages,
    operation_pages,
    overview_page,
    room_pages,
    task_pages,
    time_page,
)
from gatepost.web.request_checks import HEADERS, RequestChecks
from gatepost.web.sessions import LINK_MS, SESSION_MS, DashboardSessions, Session
from gatepost.wire.dashboard_views import DashboardLink, NewDashboardLink
from gatepost.wire.gateway_views import Status

Page = tuple[str, list[Child]]
MakePage = Callable[[Frame, ApiCalls], Awaitable[Page]]
Given = Mapping[str, str]

_STATIC: Final = Path(__file__).with_name("static")
_KINDS: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_STATIC_FILES: Final = ("app.css", "app.js", "icon.svg")
_OPEN: Final = {"open": True}
_MAX_FORM_BYTES: Final = 256 * 1024


class WebDoor:
    def __init__(self, services: DoorServices) -> None:
        self._services = services
        self._sessions = DashboardSessions(services.clock)
        self._checks = RequestChecks(services, self._sessions)
        self._files = {name: (_STATIC / name).read_bytes() for name in _STATIC_FILES}

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        yield

    async def serve_connection(
        self, greeting: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        raise InvalidRequest("the dashboard is for browsers")

    # -- links and sessions

    async def create_link(self, wanted: NewDashboardLink) -> DashboardLink:
        code = self._sessions.create_link(read_only=wanted.read_only)
        kind = "read-only" if wanted.read_only else "operator"
        await self._services.operator.audit("dashboard.link", kind)
        return DashboardLink(code, self._services.clock.now() + LINK_MS)

    async def log_in(self, request: AnyRequest) -> Response[bytes]:
        self._checks.check_page(request)
        form = await _read_form(request)
        try:
            session, secret = self._sessions.open_session(form.get("code", "").strip())
        except Unauthorized as error:
            self._services.operator.note_wrong_secret(request)
            return _answer(login_page(error.message), 401)
        kind = "read-only" if session.read_only else "operator"
        await self._services.operator.audit("dashboard.login", session.id, kind)
        cookie = self._checks.cookie_of(request, secret, SESSION_MS // 1000)
        return _redirect("/", {"set-cookie": cookie})

    async def log_out(self, request: AnyRequest) -> Response[bytes]:
        session = self._checks.require_session(request)
        form = await _read_form(request)
        self._checks.check_form(request, session, form.get("form_secret", ""))
        self._sessions.end_session(session)
        await self._services.operator.audit("dashboard.logout", session.id)
        return _redirect("/login", {"set-cookie": self._checks.cookie_of(request, "", 0)})

    # -- pages

    async def serve_page(self, request: AnyRequest, make: MakePage) -> Response[bytes]:
        """The page; without a session the word how to log in, and else what went wrong."""
        try:
            session = self._checks.require_session(request)
        except Unauthorized:
            return _answer(login_page(), 401)
        except GatepostError as error:
            return _answer(refusal_page(error), error.status)
        calls = self._calls(request, session)
        try:
            frame = await self._frame(request, session, calls)
            title, content = await make(frame, calls)
        except GatepostError as error:
            return _answer(refusal_page(error), error.status)
        return _answer(render(frame, title, *content))

    def _calls(self, request: AnyRequest, session: Session) -> ApiCalls:
        return ApiCalls(request.app, self._services.operator, read_only=session.read_only)

    async def _frame(self, request: AnyRequest, session: Session, calls: ApiCalls) -> Frame:
        status = await calls.get("/v1/status", Status)
        notice = ""
        # A live page is asked for again and again: only a page that is opened shows the notice.
        if request.headers.get("x-gatepost-part") is None:
            notice, session.notice = session.notice, ""
        now = self._services.clock.now()
        path = request.scope["path"]
        return Frame(path, status, session.read_only, session.form_secret, now, notice)

    async def act(self, request: AnyRequest, name: str) -> Response[bytes]:
        """Perform a confirmed action, and go back to the page that it was chosen on."""
        try:
            session = self._checks.require_session(request)
            form = await _read_form(request)
            self._checks.check_form(request, session, form.get("form_secret", ""))
            if session.read_only:
                raise Forbidden("this session is read-only")
            done = await perform_action(self._calls(request, session), name, form)
        except GatepostError as error:
            return _answer(refusal_page(error), error.status)
        await self._services.operator.audit(f"dashboard.{name}", done.subject, done.command)
        session.notice = done.text
        back = form.get("back", "/")
        return _redirect(back if is_local_link(back) and not back.startswith("#") else "/")

    async def proof(self, request: AnyRequest, ref: str) -> Response[bytes]:
        session = self._checks.require_session(request)
        path = f"/v1/proofs/{check_msg_id(ref)}"
        found = await self._calls(request, session).ask(path, b"{}")
        headers = {"content-disposition": f'attachment; filename="{ref}.gatepost-proof"'}
        return _answer(found, 200, "application/octet-stream", headers)

    # -- changes

    async def stream(self, session: Session) -> AsyncGenerator[ServerSentEventMessage, None]:
        """Topics that changed. The stream ends with its session, and when the gateway stops."""
        async with aclosing(self._services.operator.listen()) as notices:
            async for notice in notices:
                if not self._sessions.is_live(session):
                    return
                data = msgspec.json.encode(notice).decode()
                yield ServerSentEventMessage(event="change", data=data)

    # -- routes

    def create_routes(self) -> list[Any]:
        return [*self._session_routes(), *self._page_routes(), *self._list_routes()]

    def _session_routes(self) -> list[Any]:
        @post("/v1/dashboard/links", status_code=201, summary="A one-time link to the dashboard")
        async def links(data: JSONBody[NewDashboardLink]) -> DashboardLink:
            return await self.create_link(data)

        @get("/login", opt=_OPEN, include_in_schema=False)
        async def login(request: AnyRequest) -> Response[bytes]:
            self._checks.check_page(request)
            return _answer(login_page())

        @post("/login", opt=_OPEN, include_in_schema=False, status_code=200)
        async def log_in(request: AnyRequest) -> Response[bytes]:
            return await self.log_in(request)

        @post("/logout", opt=_OPEN, include_in_schema=False, status_code=200)
        async def log_out(request: AnyRequest) -> Response[bytes]:
            return await self.log_out(request)

        @get("/static/{name:str}", opt=_OPEN, include_in_schema=False)
        async def static(name: PathName, request: AnyRequest) -> Response[bytes]:
            self._checks.check_page(request)
            content = self._files.get(name)
            if content is None:
                raise NotFound(f"no file {name[:100]}")
            return _answer(content, 200, _KINDS[Path(name).suffix])

        @get("/changes", opt=_OPEN, include_in_schema=False)
        async def changes(request: AnyRequest) -> ServerSentEvent:
            session = self._checks.require_session(request)
            return ServerSentEvent(keep_alive(self.stream(session)), headers=HEADERS)

        return [links, login, log_in, log_out, static, changes]

    def _page_routes(self) -> list[Any]:
        """Pages that need nothing but their path, and those of one thing."""
        plain: dict[str, MakePage] = {
            "/": overview_page.overview_page,
            "/needs": overview_page.needs_page,
            "/mesh": room_pages.mesh_page,
            "/agents": room_pages.agents_page,
            "/write": room_pages.write_page,
            "/capabilities": room_pages.capabilities_page,
            "/objectives": operation_pages.objectives_page,
            "/settings": lambda f, _: operation_pages.settings_page(f, self._services.settings),
            "/audit": operation_pages.audit_page,
            "/more": lambda f, _: operation_pages.more_page(f),
        }

        @get(list(plain), opt=_OPEN, include_in_schema=False)
        async def page(request: AnyRequest) -> Response[bytes]:
            return await self.serve_page(request, plain[request.scope["path"].rstrip("/") or "/"])

        @get("/messages/{ref:str}", opt=_OPEN, include_in_schema=False)
        async def message(ref: PathName, request: AnyRequest) -> Response[bytes]:
            def make(frame: Frame, calls: ApiCalls) -> Awaitable[Page]:
                at = _query_of(request).get("at", "")
                moment = int(at) if at.isdecimal() and len(at) < 16 else None
                return message_pages.message_page(frame, calls, check_msg_id(ref), moment)

            return await self.serve_page(request, make)

        @get("/messages/{ref:str}/proof", opt=_OPEN, include_in_schema=False)
        async def proof(ref: PathName, request: AnyRequest) -> Response[bytes]:
            return await self.proof(request, ref)

        @get("/tasks/{ref:str}", opt=_OPEN, include_in_schema=False)
        async def task(ref: PathName, request: AnyRequest) -> Response[bytes]:
            def make(frame: Frame, calls: ApiCalls) -> Awaitable[Page]:
                return task_pages.task_page(frame, calls, check_msg_id(ref))

            return await self.serve_page(request, make)

        @get("/agents/{name:str}", opt=_OPEN, include_in_schema=False)
        async def agent(name: PathName, request: AnyRequest) -> Response[bytes]:
            def make(frame: Frame, calls: ApiCalls) -> Awaitable[Page]:
                return room_pages.agent_page(frame, calls, check_agent_id(name))

            return await self.serve_page(request, make)

        return [page, message, proof, task, agent]

    def _list_routes(self) -> list[Any]:
        """Pages with a query, and the actions."""
        lists: dict[str, Callable[[Frame, ApiCalls, Given], Awaitable[Page]]] = {
            "/messages": message_pages.messages_page,
            "/tasks": task_pages.tasks_page,
            "/dead-letters": dead_letter_page.dead_letters_page,
            "/incidents": operation_pages.incidents_page,
            "/room": room_pages.room_page,
            "/time": time_page.time_page,
        }

        @get(list(lists), opt=_OPEN, include_in_schema=False)
        async def listing(request: AnyRequest) -> Response[bytes]:
            make = lists[request.scope["path"].rstrip("/")]
            given = _query_of(request)
            return await self.serve_page(request, lambda f, calls: make(f, calls, given))

        @get("/do/{action:str}", opt=_OPEN, include_in_schema=False)
        async def confirm(action: PathName, request: AnyRequest) -> Response[bytes]:
            given = _query_of(request)
            return await self.serve_page(
                request, lambda f, calls: confirm_page(f, calls, action, given)
            )

        @post("/do/{action:str}", opt=_OPEN, include_in_schema=False, status_code=200)
        async def act(action: PathName, request: AnyRequest) -> Response[bytes]:
            return await self.act(request, action)

        return [listing, confirm, act]


def _query_of(request: AnyRequest) -> dict[str, str]:
    return _parse_form(request.scope["query_string"])


async def _read_form(request: AnyRequest) -> dict[str, str]:
    body = await request.body()
    if len(body) > _MAX_FORM_BYTES:
        raise InvalidRequest("the form is too long")
    return _parse_form(body)


def _parse_form(body: bytes) -> dict[str, str]:
    try:
        found = parse_qsl(body.decode("ascii"), keep_blank_values=True, max_num_fields=100)
        return dict(found)
    except ValueError:
        raise InvalidRequest("the form cannot be read") from None


def _answer(
    content: bytes,
    status: int = 200,
    kind: str = "text/html; charset=utf-8",
    headers: Mapping[str, str] | None = None,
) -> Response[bytes]:
    given = {**HEADERS, **(headers or {})}
    return Response(content, status_code=status, media_type=kind, headers=given)


def _redirect(path: str, headers: Mapping[str, str] | None = None) -> Response[bytes]:
    return _answer(b"", 303, headers={"location": path, **(headers or {})})


def open_door(services: DoorServices) -> WebDoor:
    return WebDoor(services)
