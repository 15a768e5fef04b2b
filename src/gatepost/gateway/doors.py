"""Doors: foreign protocols that are translated to operations of this gateway.

A door is a package above the gateway, with its own dependencies. The gateway knows it by name,
hands it `DoorServices`, and works without it. A door never sees the journal: whatever it does is an
operation, with the authority of its caller.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from importlib import import_module
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from gatepost.access import AgentSession
from gatepost.clock import Clock
from gatepost.config import Settings
from gatepost.core.gateway_core import Core
from gatepost.core.wait_registry import WaitRegistry
from gatepost.errors import Forbidden, InvalidRequest, UnknownMessage
from gatepost.events import check_agent_id
from gatepost.gateway.admin.external_agents import ExternalAgents, has_session_token
from gatepost.gateway.admin.feedback import Feedback
from gatepost.gateway.admin.trace_api import JourneyTracer
from gatepost.gateway.api.operations import Operations
from gatepost.gateway.overview.change_stream import ChangeStream
from gatepost.journal.audit import record_audit_entry
from gatepost.listening.connection_guard import AnyConnection
from gatepost.listening.connection_pool import OPERATOR, identify_connection
from gatepost.listening.operator_access import OperatorAccess
from gatepost.mailbox import browse
from gatepost.mailbox.dead_letters import DeadLetterFilter
from gatepost.tasks.service.capability_service import CapabilityService
from gatepost.wire.capabilities import CapabilityView
from gatepost.wire.frame_types import Op
from gatepost.wire.gateway_views import MailboxCounts
from gatepost.wire.operations import DeadLetter, EnqueueAck, Register, Registered
from gatepost.wire.overview_views import ChangeNotice
from gatepost.wire.report_views import IncidentPage, Journey

# Names, not imports: a door imports the gateway.
_DOORS: Mapping[str, str] = {
    "mcp": "gatepost.mcp.server.door",
    "web": "gatepost.web.door",
    "a2a": "gatepost.a2a.door",
}


class DoorCaller(Struct, frozen=True):
    """The caller: an agent with the authority of its session, the operator, or both in one.

    `is_local`: the operator's account speaks for the agent, which may see the room.
    """

    session: AgentSession | None
    is_operator: bool = False
    is_local: bool = False

    @property
    def agent(self) -> str | None:
        return None if self.session is None else self.session.agent_id


class KnownAgent(Struct, frozen=True):
    """An agent that mail can be sent to. `node` is the gateway it lives behind."""

    id: str
    node: str
    is_online: bool


class OperatorDoor:
    """Services for a door whose operators do not have the local token.

    Such a door opens its own sessions, and calls the operator's API within the process.
    """

    def __init__(self, core: Core, access: OperatorAccess, changes: ChangeStream) -> None:
        self._core = core
        self._access = access
        self._changes = changes

    def require_operator(self, connection: AnyConnection) -> None:
        self._access.require_operator(connection)

    def require_tls(self, connection: AnyConnection) -> None:
        self._access.require_tls(connection)

    def note_wrong_secret(self, connection: AnyConnection) -> None:
        """Raise RateLimited if the address has shown too many wrong secrets."""
        self._access.guesses.note_wrong_token(connection)

    def identify(self, connection: AnyConnection) -> None:
        """Mark a connection as an operator's, so that it uses the places reserved for operators."""
        identify_connection(connection, OPERATOR)

    @property
    def authorization(self) -> str:
        """The header with which a door calls the operator's API."""
        return f"Bearer {self._access.own_calls}"

    def listen(self) -> AsyncGenerator[ChangeNotice, None]:
        return self._changes.listen()

    async def audit(self, action: str, subject: str, detail: str = "") -> None:
        entry = (OPERATOR, action, subject, detail)
        await self._core.commit(lambda tx: record_audit_entry(tx, *entry))


class DoorServices:
    """The interface of the gateway for doors."""

    def __init__(
        self,
        operations: Operations,
        access: OperatorAccess,
        external: ExternalAgents,
        tracer: JourneyTracer,
        feedback: Feedback,
        capabilities: CapabilityService,
        changes: ChangeStream,
    ) -> None:
        self._operations = operations
        self._core = operations.core
        self._access = access
        self._external = external
        self._tracer = tracer
        self._feedback = feedback
        self._capabilities = capabilities
        self._changes = changes
        self.operator = OperatorDoor(self._core, access, changes)

    @property
    def settings(self) -> Settings:
        return self._core.settings

    @property
    def clock(self) -> Clock:
        return self._core.clock

    @property
    def node_id(self) -> str:
        return self._core.node.id

    @property
    def waits(self) -> WaitRegistry:
        return self._operations.waits

    # -- who calls

    async def authenticate(self, connection: AnyConnection, agent: str | None) -> DoorCaller:
        """The caller with this request's token. Only the operator may choose its `agent`."""
        if has_session_token(connection):
            self._external.guard.require_tls(connection)
            session = await self._external.authenticate_session(connection)
            if agent not in (None, session.agent_id):
                raise Forbidden(f"this token acts only as {session.agent_id}")
            return DoorCaller(session)
        self._access.require_operator(connection)
        self._operations.bucket.take_tokens(1)
        return self.local_caller(agent, is_operator=True)

    def local_caller(self, agent: str | None, *, is_operator: bool) -> DoorCaller:
        """The caller behind a connection that only the operator's account can open."""
        session = None if agent is None else self._external.local_session(agent)
        return DoorCaller(session, is_operator, is_local=True)

    async def is_session_live(self, session: str) -> bool:
        """Whether a session that was seen before still has its authority."""
        return await self._external.is_session_live(session)

    # -- operations

    async def perform(self, caller: DoorCaller, op: Op) -> Any:
        """Run an operation as the caller's agent, within its scopes, its rate and its own mail."""
        if caller.session is None:
            raise Forbidden("this needs an agent: say as which one you connect")
        return await self._external.perform_as(caller.session, op)

    async def register(self, caller: DoorCaller) -> str:
        """Register the caller's agent; return why its mail goes elsewhere, or an empty text."""
        reply: Registered = await self.perform(caller, Register(agent=caller.agent or ""))
        return reply.problem

    def watching_mail(self, caller: DoorCaller) -> AbstractAsyncContextManager[asyncio.Event]:
        """Within this, an event is set when mail for the caller's agent may have come."""
        assert caller.agent is not None, "only an agent has mail"
        return self._core.watching_mail(caller.agent)

    async def read_blob(self, caller: DoorCaller, digest: str) -> AsyncIterator[bytes]:
        if caller.session is None:
            raise Forbidden("this needs an agent: say as which one you connect")
        return await self._external.read_blob_as(caller.session, digest)

    # -- public

    async def list_agents(self) -> list[KnownAgent]:
        """The agents of the room and of this gateway."""
        here = await self._core.read(self._core.agents.list)
        directory = self._core.delivery.routes.directory
        homes = {agent.id: self.node_id for agent in here if not agent.standby}
        homes |= {id: home.owner for id, home in directory.agents.items() if home.owner is not None}
        return [
            KnownAgent(id, node, node == self.node_id or directory.is_online(node))
            for id, node in sorted(homes.items())
        ]

    def find_home(self, agent: str) -> str:
        """The gateway that an agent lives behind, as the room says it; empty if it does not."""
        home = self._core.delivery.routes.directory.agents.get(agent)
        return "" if home is None or home.owner is None else home.owner

    def list_capabilities(self) -> list[CapabilityView]:
        return self._capabilities.list_capabilities()

    async def trace(self, caller: DoorCaller, ref: str) -> Journey:
        """The journey of an event or conversation; of an agent only the events it is a party of."""
        journey = await self._tracer.trace_journey(ref, whole=False)
        if caller.is_operator:
            return journey
        agent = caller.agent
        own = {step.event_id for step in journey.steps if agent in (step.agent, step.to_agent)}
        if not own:
            raise UnknownMessage(f"no event and no conversation {ref} of {agent}")
        steps = [step for step in journey.steps if step.event_id in own]
        return msgspec.structs.replace(journey, event_ids=sorted(own), steps=steps)

    # -- for the operator

    async def list_mailboxes(self, caller: DoorCaller) -> list[MailboxCounts]:
        _require_operator(caller)
        rows = await self._core.read(browse.mailbox_counts)
        return [MailboxCounts(*row) for row in rows]

    async def list_dead_letters(
        self, caller: DoorCaller, mailbox: str, limit: int, after: str
    ) -> list[DeadLetter]:
        _require_operator(caller)
        wanted = DeadLetterFilter(replayed=False)
        find = self._operations.dead_letters.find
        return await find(check_agent_id(mailbox), wanted, limit, after)

    async def replay_dead_letters(
        self, caller: DoorCaller, mailbox: str, msg_ids: list[str] | None, limit: int
    ) -> list[EnqueueAck]:
        _require_operator(caller)
        replay = self._operations.dead_letters.replay
        wanted = DeadLetterFilter(msg_ids=msg_ids)
        return await replay(check_agent_id(mailbox), wanted, limit, None, "operator")

    async def list_incidents(self, caller: DoorCaller, since: int, limit: int) -> IncidentPage:
        _require_operator(caller)
        return await self._feedback.find_incidents(since, None, limit)


def _require_operator(caller: DoorCaller) -> None:
    if not caller.is_operator:
        raise Forbidden("this is the operator's: connect with the local token")


class Door(Protocol):
    """One protocol. It serves HTTP routes, and connections of the Unix socket that greet it."""

    def create_routes(self) -> list[Any]: ...

    def running(self) -> AbstractAsyncContextManager[None]: ...

    async def serve_connection(
        self, greeting: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None: ...


class _Greeting(Struct):
    door: str


class Doors:
    """All doors of a gateway."""

    def __init__(self, services: DoorServices) -> None:
        self._doors: dict[str, Door] = {
            name: import_module(module).open_door(services) for name, module in _DOORS.items()
        }

    def create_routes(self) -> list[Any]:
        return [route for door in self._doors.values() for route in door.create_routes()]

    def list_doors(self) -> list[Door]:
        return list(self._doors.values())

    async def serve_connection(
        self, greeting: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Serve a connection of the Unix socket for as long as it lasts."""
        try:
            name = msgspec.json.decode(greeting, type=_Greeting).door
        except msgspec.MsgspecError as error:
            raise InvalidRequest(f"the greeting of a door cannot be read: {error}") from None
        door = self._doors.get(name)
        if door is None:
            raise InvalidRequest(f"this gateway has no door {name!r}")
        await door.serve_connection(greeting, reader, writer)
