"""External agents: invites, sessions, and the operations of a session. They never see the room."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
from litestar import Response
from litestar.params import JSONBody
from litestar.response import Stream
from msgspec import Struct
from msgspec.structs import astuple

from gatepost.access import (
    AccessPolicy,
    AgentSession,
    AgentSessions,
    RefreshTokenReuse,
    Scope,
    agent_invites,
    authorize_op,
    authorize_operation_name,
    require_scope,
)
from gatepost.access.agent_invites import IssuedAgentInvite
from gatepost.access.auth_messages import AgentInviteRequest, ContextToken, ContextTokenRequest
from gatepost.access.grants import live_session_end
from gatepost.access.scopes import AGENT_SCOPES, ENDPOINT_AUTHORITY, AgentEndpoint
from gatepost.errors import (
    ExpiredToken,
    GatepostError,
    InvalidToken,
    Revoked,
    Unauthorized,
)
from gatepost.events import check_agent_id
from gatepost.events.reserved_names import require_agent_name
from gatepost.gateway.admin.agent_blobs import AgentBlobs
from gatepost.gateway.admin.agent_session_authority import AgentSessionAuthority, AgentSessionRules
from gatepost.gateway.admin.agent_session_calls import AgentSessionCalls
from gatepost.gateway.admin.status import gateway_status
from gatepost.gateway.api.frame_channel import FrameChannel
from gatepost.gateway.api.http_routes import decode_operation
from gatepost.gateway.api.operations import Operations
from gatepost.gateway.api.websocket_transport import WebSocketTransport
from gatepost.journal import Tx
from gatepost.listening.connected_requests import while_connected
from gatepost.listening.connection_guard import AnyConnection, ConnectionGuard
from gatepost.listening.connection_pool import identify_connection
from gatepost.listening.json_input import decode_json
from gatepost.listening.local_auth import is_session_token, parse_bearer_token
from gatepost.listening.operator_access import OperatorAccess
from gatepost.listening.route_decorators import get, post
from gatepost.listening.route_parameters import AnyRequest, AnyWebSocket, PathName
from gatepost.mailbox.enqueue import find_mailbox
from gatepost.wire.agent_tokens import AgentExchangeRequest, AgentRefreshRequest, AgentTokens
from gatepost.wire.frame_types import Op
from gatepost.wire.gateway_views import StoredBlob
from gatepost.wire.operations import Enqueue
from gatepost.wire.room_views import (
    AgentInviteResult,
    AgentInviteView,
    AgentSessionView,
    EndedSessions,
    ExternalAgentList,
)

INVOKE_PATH = "/ansible/agent/invoke"
UPLOADS_PATH = "/ansible/agent/uploads"
_BASE_PATH = "/ansible/agent"
_NO_LOCAL_TOKEN = {"open": True}
_MAX_BODY_BYTES = 16 * 1024
_TOUCH_EVERY_MS = 60_000
# Ids of sessions of this machine's account begin so; no other id has a colon.
_LOCAL = "local:"
# Application close codes: the equivalent HTTP status plus 4000.
_CLOSE_CODE_BASE = 4000


class _OperationName(Struct):
    op: str


_name_decoder = msgspec.json.Decoder(_OperationName)


class ExternalAgents:
    def __init__(
        self,
        operations: Operations,
        access: OperatorAccess,
        guard: ConnectionGuard,
        policy: AccessPolicy,
        tls_pin: Callable[[], str | None] = lambda: None,
    ) -> None:
        """`tls_pin` returns the pin that invites carry, if this gateway made its certificate."""
        self.guard = guard
        self._tls_pin = tls_pin
        self._operations = operations
        self._core = operations.core
        self._access = access
        self._sessions = AgentSessions(self._core.clock, policy)
        self._blobs = AgentBlobs(operations)
        self._rules = AgentSessionRules(operations, self._blobs)
        self._calls = AgentSessionCalls()

    # -- invites and sessions

    async def invite_agent(
        self, request: AnyRequest, wanted: AgentInviteRequest
    ) -> AgentInviteResult:
        """Issue an invite for the operator, or for a session that may grant these scopes."""
        grantor = await self._find_grantor(request)
        actor = "operator" if grantor is None else grantor.agent_id
        clock = self._core.clock

        def issue(tx: Tx) -> IssuedAgentInvite:
            is_known = self._is_known(tx, wanted.agent_id)
            return agent_invites.issue_agent_invite(
                tx, clock, wanted, actor, grantor, self._tls_pin(), is_known
            )

        issued = await self._core.commit(issue)
        kept = issued.invite
        return AgentInviteResult(issued.token, kept.id, kept.agent_id, kept.scopes, kept.expires_at)

    async def _find_grantor(self, request: AnyRequest) -> AgentSession | None:
        if not has_session_token(request) and self._access.identify_operator(request):
            return None
        return await self.authenticate_session(request)

    def _is_known(self, tx: Tx, agent: str) -> bool:
        """Whether the agent lives here or elsewhere in the room, or there is mail for it."""
        if self._core.agents.is_registered(tx, agent) or find_mailbox(tx, agent):
            return True
        return agent in self._core.delivery.routes.directory.agents

    async def exchange_invite(self, token: str) -> AgentTokens:
        return await self._core.commit(lambda tx: self._sessions.exchange_invite(tx, token))

    async def refresh_session(self, token: str, attempt: str | None) -> AgentTokens:
        found = await self._core.commit(
            lambda tx: self._sessions.refresh_tokens(tx, token, attempt)
        )
        if isinstance(found, RefreshTokenReuse):
            self._calls.end_calls(found.ended)
            raise found.as_error()
        return found

    async def authenticate_session(self, connection: AnyConnection) -> AgentSession:
        token = parse_bearer_token(connection.headers.get("authorization"))
        if token is None:
            raise Unauthorized("send `Authorization: Bearer` with an access or context token")
        try:
            session = await self._core.read(
                lambda tx: self._sessions.authenticate_token(tx, token.strip())
            )
        except InvalidToken:
            self._access.guesses.note_wrong_token(connection)
            raise
        identify_connection(connection, f"session:{session.id}")
        self._rules.take_call(session)
        if not session.is_token_used:
            # Before any use: from then on its refresh token cannot be requested again.
            await self._core.commit(lambda tx: self._sessions.mark_token_used(tx, session.token_id))
        if self._core.clock.now() >= session.seen_at + _TOUCH_EVERY_MS:
            self._core.submit(lambda tx: self._sessions.touch_session(tx, session.id))
        return session

    async def issue_context_token(
        self, request: AnyRequest, wanted: ContextTokenRequest
    ) -> ContextToken:
        session = await self.authenticate_session(request)
        return await self._core.commit(
            lambda tx: self._sessions.issue_context_token(tx, session, wanted)
        )

    # -- operations

    async def invoke_operation(self, request: AnyRequest) -> Any:
        """Run an operation; refuse it unless one of the session's scopes lists it."""
        session = await self.authenticate_session(request)
        body = await request.body()
        name = decode_json(_name_decoder, body).op
        authorize_operation_name(session, name)
        if name == "status":
            return await gateway_status(self._operations)
        op = decode_operation(body)
        return await while_connected(request, self.perform_as(session, op))

    async def perform_as(self, session: AgentSession, op: Op) -> Any:
        """Run an operation with the authority of a session; Revoked if that ends meanwhile."""
        authorize_op(session, op)
        self._rules.admit(session, op)
        return await self._calls.run_call(session.id, self._perform(session, op))

    def local_session(self, agent: str) -> AgentSession:
        """The authority of an agent on this machine, which runs under the operator's account."""
        name, now = require_agent_name(check_agent_id(agent)), self._core.clock.now()
        id = f"{_LOCAL}{name}"
        return AgentSession(id, name, AGENT_SCOPES, "access", "", 2**53, now, "", True)

    async def is_session_live(self, session: str) -> bool:
        """Whether a session can still act. One of this machine's account always can."""
        if session.startswith(_LOCAL):
            return True
        try:
            await self._core.read(lambda tx: live_session_end(tx, session))
        except Revoked:
            return False
        return True

    async def _perform(self, session: AgentSession, op: Op) -> Any:
        await self._rules.check_subject(session, op)
        if isinstance(op, Enqueue) and (plan := self._operations.plan_transaction(op)):
            return await self._core.commit(self._rules.restrict_plan(op, plan))
        return await self._operations.perform(op)

    async def serve_socket(self, socket: AnyWebSocket, session: AgentSession) -> None:
        """Carry the frames of a session until its token expires or it is ended."""
        limits = self._operations.core.settings.limits
        life = (session.expires_at - self._core.clock.now()) / 1000
        carrier = WebSocketTransport(socket, limits.max_body_bytes)
        authority = AgentSessionAuthority(self._rules, session)
        work = carrier.run(FrameChannel(self._operations, carrier.wake, authority))
        try:
            async with asyncio.timeout(life):
                await self._calls.run_call(session.id, work)
        except TimeoutError:
            await _close_socket(socket, ExpiredToken("this token has expired; refresh it"))
        except GatepostError as error:
            await _close_socket(socket, error)

    async def read_blob(self, request: AnyRequest, digest: str) -> AsyncIterator[bytes]:
        """The payload of a message or reply of the session's own agent, piece by piece."""
        return await self.read_blob_as(await self._authorize(request, AgentEndpoint.BLOBS), digest)

    async def read_blob_as(self, session: AgentSession, digest: str) -> AsyncIterator[bytes]:
        key = await self._blobs.find_key(session, digest)
        return self._calls.stream_pieces(session.id, self._core.blobs.read_payload(digest, key))

    async def store_upload(self, request: AnyRequest) -> StoredBlob:
        """Store a large payload, which the session's own agent may then send."""
        session = await self._authorize(request, AgentEndpoint.UPLOADS)
        work = self._blobs.store_upload(session, request.stream())
        return await self._calls.run_call(session.id, work)

    async def _authorize(self, request: AnyRequest, endpoint: AgentEndpoint) -> AgentSession:
        session = await self.authenticate_session(request)
        scope = ENDPOINT_AUTHORITY[endpoint]
        assert isinstance(scope, Scope), "this endpoint needs no scope"
        require_scope(session, scope)
        return session

    # -- for the operator

    async def list_access(self) -> ExternalAgentList:
        def read(tx: Tx) -> ExternalAgentList:
            invites = [
                AgentInviteView(*astuple(each)) for each in agent_invites.list_agent_invites(tx)
            ]
            sessions = [
                AgentSessionView(*astuple(each)) for each in self._sessions.list_sessions(tx)
            ]
            return ExternalAgentList(invites, sessions)

        return await self._core.read(read)

    async def revoke_agent(self, agent: str) -> EndedSessions:
        """End an agent's sessions and open invites, and cancel its running calls."""
        ended = await self._core.commit(
            lambda tx: self._sessions.revoke_agent(tx, agent, "operator")
        )
        self._calls.end_calls(ended)
        return EndedSessions(agent, len(ended))


def has_session_token(connection: AnyConnection) -> bool:
    """Whether the bearer token is one of a session, and not the local token."""
    return is_session_token(connection.headers.get("authorization"))


async def _close_socket(socket: AnyWebSocket, error: GatepostError) -> None:
    with contextlib.suppress(Exception):
        await socket.close(_CLOSE_CODE_BASE + error.status, error.code)


def create_routes(agents: ExternalAgents) -> list[Any]:
    return [*_entry_routes(agents), *_session_routes(agents), *_operator_routes(agents)]


def _entry_routes(agents: ExternalAgents) -> list[Any]:
    limited: dict[str, Any] = {
        "status_code": 200,
        "request_max_body_size": _MAX_BODY_BYTES,
        "opt": _NO_LOCAL_TOKEN,
    }

    @post(f"{_BASE_PATH}/{AgentEndpoint.INVITES}", summary="Invite an external agent", **limited)
    async def invite(data: JSONBody[AgentInviteRequest], request: AnyRequest) -> AgentInviteResult:
        agents.guard.require_tls(request)
        return await agents.invite_agent(request, data)

    @post(
        f"{_BASE_PATH}/{AgentEndpoint.EXCHANGE}",
        summary="Exchange an invite for a session",
        **limited,
    )
    async def exchange(data: JSONBody[AgentExchangeRequest], request: AnyRequest) -> AgentTokens:
        agents.guard.check_attempt(request)
        return await agents.exchange_invite(data.invite_token)

    @post(
        f"{_BASE_PATH}/{AgentEndpoint.REFRESH}",
        summary="Exchange a refresh token for new ones",
        **limited,
    )
    async def refresh(data: JSONBody[AgentRefreshRequest], request: AnyRequest) -> AgentTokens:
        agents.guard.check_attempt(request)
        return await agents.refresh_session(data.refresh_token, data.attempt)

    return [invite, exchange, refresh]


def _session_routes(agents: ExternalAgents) -> list[Any]:
    @post(
        INVOKE_PATH, status_code=200, summary="Do an operation as this agent", opt=_NO_LOCAL_TOKEN
    )
    async def invoke(request: AnyRequest) -> Response[bytes]:
        agents.guard.require_tls(request)
        answer = await agents.invoke_operation(request)
        return Response(msgspec.json.encode(answer), media_type="application/json")

    @post(
        f"{_BASE_PATH}/{AgentEndpoint.CONTEXT_TOKEN}",
        status_code=200,
        request_max_body_size=_MAX_BODY_BYTES,
        summary="Issue a narrower token to pass on",
        opt=_NO_LOCAL_TOKEN,
    )
    async def context_token(
        data: JSONBody[ContextTokenRequest], request: AnyRequest
    ) -> ContextToken:
        agents.guard.require_tls(request)
        return await agents.issue_context_token(request, data)

    @get(
        f"{_BASE_PATH}/{AgentEndpoint.BLOBS}/{{digest:str}}",
        media_type="application/octet-stream",
        summary="Fetch a payload of this agent's mail",
        opt=_NO_LOCAL_TOKEN,
    )
    async def blob(digest: PathName, request: AnyRequest) -> Stream:
        agents.guard.require_tls(request)
        pieces = await agents.read_blob(request, digest)
        return Stream(pieces, media_type="application/octet-stream")

    @post(
        UPLOADS_PATH,
        status_code=201,
        request_max_body_size=None,
        summary="Store a large payload of this agent",
        opt=_NO_LOCAL_TOKEN,
    )
    async def upload(request: AnyRequest) -> StoredBlob:
        agents.guard.require_tls(request)
        return await agents.store_upload(request)

    return [invoke, context_token, blob, upload]


def _operator_routes(agents: ExternalAgents) -> list[Any]:
    @get("/v1/external-agents", summary="Invites and sessions of external agents")
    async def listed() -> ExternalAgentList:
        return await agents.list_access()

    @post(
        "/v1/external-agents/{agent:str}/revoke",
        status_code=200,
        summary="End an external agent's sessions",
    )
    async def revoke(agent: PathName) -> EndedSessions:
        return await agents.revoke_agent(check_agent_id(agent))

    return [listed, revoke]
