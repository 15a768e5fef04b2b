"""Callers of the hub's API: the operator with the local token, or a session with its token."""

from collections.abc import Container

from msgspec import Struct

from gatepost.access.tokens import TokenKind
from gatepost.core.gateway_core import Core
from gatepost.errors import Forbidden, InvalidToken, Revoked, Unauthorized
from gatepost.events.reserved_names import OPERATOR
from gatepost.journal import Tx
from gatepost.listening.connection_guard import AnyConnection
from gatepost.listening.connection_pool import identify_connection
from gatepost.listening.local_auth import parse_bearer_token
from gatepost.listening.operator_access import OperatorAccess
from gatepost.tasks.policy import Operator, PolicyPrincipal
from gatepost.tasks.task_table import Task
from gatepost.tasks.task_tokens import (
    TaskToken,
    authenticate_task_token,
    is_imported_bearer,
    require_live_token,
)


class HubCaller(Struct, frozen=True):
    """`token` is None for the operator, whom only the policy limits."""

    token: TaskToken | None = None

    @property
    def name(self) -> str:
        return OPERATOR if self.token is None else self.token.agent_name

    def require_operator(self) -> None:
        if self.token is not None:
            raise Forbidden("this is for the operator: use the token in the state directory")

    def require_session(self) -> TaskToken:
        if self.token is None:
            raise Forbidden("this is for a session: use the token of its task")
        return self.token

    def require_own(self, task: Task) -> None:
        """Refuse a session access to tasks other than its own and those its agent requested."""
        if self.token is None or task.id == self.token.task_id:
            return
        if task.requester != self.token.agent_name or task.requester_node is not None:
            raise Forbidden("a session sees its own task, and those its agent requested")


class HubAuth:
    def __init__(self, core: Core, access: OperatorAccess, unrecorded_ends: Container[str]) -> None:
        """`unrecorded_ends` are tasks whose session is gone, perhaps unknown to the journal."""
        self._core = core
        self._access = access
        self._unrecorded_ends = unrecorded_ends

    async def authenticate(self, connection: AnyConnection) -> HubCaller:
        """The caller of a request; an error of 401 or 403 if it has no valid token."""
        authorization = connection.headers.get("authorization")
        bearer = (parse_bearer_token(authorization) or "").strip()
        if not bearer:
            raise Unauthorized("send `Authorization: Bearer` with a token")
        if bearer.startswith(f"{TokenKind.TASK}.") or is_imported_bearer(bearer):
            return HubCaller(await self._authenticate_session(connection, bearer))
        self._access.require_operator(connection)
        return HubCaller()

    async def _authenticate_session(self, connection: AnyConnection, bearer: str) -> TaskToken:
        try:
            token = await self._core.read(lambda tx: authenticate_task_token(tx, bearer))
        except InvalidToken:
            self._access.guesses.note_wrong_token(connection)
            raise
        self._require_session(token)
        identify_connection(connection, f"task:{token.token_id}")
        return token

    def require_live(self, tx: Tx, caller: HubCaller) -> None:
        """Revoked if the session of a caller has ended since its request began."""
        if caller.token is not None:
            self._require_session(caller.token)
            require_live_token(tx, caller.token)

    def _require_session(self, token: TaskToken) -> None:
        if token.task_id in self._unrecorded_ends:
            raise Revoked("the session of this token has ended")

    def describe(self, tx: Tx, caller: HubCaller) -> PolicyPrincipal:
        """The caller as the policy sees it."""
        if caller.token is None:
            return Operator()
        return self._core.tasks.parts.describe_agent(tx, caller.token.agent_name)
