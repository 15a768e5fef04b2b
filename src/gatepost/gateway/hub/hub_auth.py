"""Callers of the hub's API: the operator with the local token, or a session with its own."""

from msgspec import Struct

from gatepost.access.tokens import TokenKind
from gatepost.errors import Forbidden, InvalidToken, Unauthorized
from gatepost.gateway.api.local_auth import parse_bearer_token
from gatepost.gateway.api.operator_access import OperatorAccess
from gatepost.gateway.core import Core
from gatepost.gateway.listening.connection_guard import AnyConnection
from gatepost.gateway.listening.connection_pool import identify_connection
from gatepost.hub.policy import Operator, PolicyPrincipal
from gatepost.hub.task_tokens import TaskToken, authenticate_task_token
from gatepost.hub.tasks import Task
from gatepost.journal import Tx

OPERATOR_NAME = "operator"


class HubCaller(Struct, frozen=True):
    """`token` is None for the operator, who may do everything that the policy permits."""

    token: TaskToken | None = None

    @property
    def name(self) -> str:
        return OPERATOR_NAME if self.token is None else self.token.agent_name

    def require_operator(self) -> None:
        if self.token is not None:
            raise Forbidden("this is for the operator: use the token in the state directory")

    def require_session(self) -> TaskToken:
        if self.token is None:
            raise Forbidden("this is for a session: use the token of its task")
        return self.token

    def require_own(self, task: Task) -> None:
        """A session sees its own task, and those its agent requested."""
        if self.token is None or task.id == self.token.task_id:
            return
        if task.requester != self.token.agent_name or task.requester_node is not None:
            raise Forbidden("a session sees its own task, and those its agent requested")


class HubAuth:
    def __init__(self, core: Core, access: OperatorAccess) -> None:
        self._core = core
        self._access = access

    async def authenticate(self, connection: AnyConnection) -> HubCaller:
        """The caller of a request; an error of 401 or 403 if it has no valid token."""
        authorization = connection.headers.get("authorization")
        bearer = (parse_bearer_token(authorization) or "").strip()
        if not bearer:
            raise Unauthorized("send `Authorization: Bearer` with a token")
        if bearer.startswith(f"{TokenKind.TASK}."):
            return HubCaller(await self._authenticate_session(connection, bearer))
        self._access.require_operator(connection)
        return HubCaller()

    async def _authenticate_session(self, connection: AnyConnection, bearer: str) -> TaskToken:
        try:
            token = await self._core.read(lambda tx: authenticate_task_token(tx, bearer))
        except InvalidToken:
            self._access.guesses.note_wrong_token(connection)
            raise
        identify_connection(connection, f"task:{token.token_id}")
        return token

    def describe(self, tx: Tx, caller: HubCaller) -> PolicyPrincipal:
        """The caller as the policy sees it."""
        if caller.token is None:
            return Operator()
        return self._core.tasks.parts.describe_agent(tx, caller.token.agent_name)
