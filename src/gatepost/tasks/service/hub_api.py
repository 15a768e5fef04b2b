"""HTTP routes of the hub: agents, tasks, messages, tokens and state, and a stream of events."""

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from functools import partial
from typing import Annotated, Any

import msgspec
from litestar import Router
from litestar.handlers import BaseRouteHandler
from litestar.params import FromQuery, JSONBody, QueryParameter
from litestar.response import ServerSentEvent, ServerSentEventMessage
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from gatepost.delivery.blob_records import find_key_for_agent
from gatepost.errors import InvalidRequest, NotFound, Unavailable
from gatepost.events import AgentId, Digest, EventId, MsgId, parse_event_id
from gatepost.journal import Tx
from gatepost.listening.connected_requests import while_connected
from gatepost.listening.connection_guard import AnyConnection
from gatepost.listening.event_streams import keep_alive
from gatepost.listening.route_decorators import delete, get, post
from gatepost.listening.route_parameters import (
    AnyRequest,
    OptionalText,
    PageSize,
    PathName,
    WaitSecs,
)
from gatepost.tasks import sessions, task_table
from gatepost.tasks.service.hub_auth import HubAuth, HubCaller
from gatepost.tasks.service.hub_messages import HubMessageService, NewHubMessage
from gatepost.tasks.service.hub_service import HubService
from gatepost.tasks.service.hub_state import (
    HubState,
    HubStateImport,
    ImportResult,
    export_state,
)
from gatepost.tasks.service.remote_logs import RemoteLogs
from gatepost.tasks.service.task_views import (
    complete_view,
    present_agent,
    summarize_task,
    view_agent,
    view_session,
)
from gatepost.tasks.service.task_watchers import TaskChange
from gatepost.tasks.session_states import SessionState
from gatepost.tasks.task_states import TaskState
from gatepost.tasks.task_table import Task, TaskFilter
from gatepost.tasks.task_tokens import (
    TaskToken,
    list_task_tokens,
    renew_task_token,
    revoke_token,
)
from gatepost.wire.hub_views import (
    HubAgents,
    HubMessages,
    HubSessions,
    HubTask,
    LogView,
    MessageLog,
    MessageResult,
    RegistryProblemView,
    TaskList,
    TaskTokens,
    TaskTokenView,
)
from gatepost.wire.operations import Count, Reason
from gatepost.wire.tasks import (
    Description,
    NewTask,
    RequiredCapabilities,
    TaskAgents,
    TaskTtl,
    TaskView,
)

BASE = "/hub"
# The id of a task in another hub. Ids of version 7 are this gateway's own.
_FOREIGN_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_CALLER = "gatepost.hub_caller"
_DELEGATE = "create_tasks"
# The most sessions that are searched for one state.
_MAX_SESSIONS = 10_000
_LOG_BYTES = 64 * 1024

WantedSessionState = Annotated[SessionState | None, QueryParameter(name="state")]
LogOffset = Annotated[int, QueryParameter(ge=-(2**53), le=2**53)]


class NewTaskBody(Struct, forbid_unknown_fields=True):
    """A task: for `agent_name`, for several agents, or for one that has the capabilities."""

    description: Description = ""
    agent_name: AgentId | UnsetType = UNSET
    to_agents: TaskAgents | UnsetType = UNSET
    required_capabilities: RequiredCapabilities | UnsetType = UNSET
    input: Raw | UnsetType = UNSET
    input_ref: Digest | UnsetType = UNSET
    task_id: EventId | UnsetType = UNSET
    idempotency_key: MsgId | UnsetType = UNSET
    from_agent: AgentId | UnsetType = UNSET
    task_type: Annotated[str, Meta(max_length=256)] = ""
    ttl_secs: TaskTtl | UnsetType = UNSET
    may_wait: bool = False


class CancelBody(Struct, forbid_unknown_fields=True):
    reason: Reason = ""


class HubNackBody(Struct, forbid_unknown_fields=True):
    reason: Reason = ""


class HubApi:
    def __init__(self, service: HubService, auth: HubAuth, remote: RemoteLogs | None) -> None:
        """`remote` reads the logs of other gateways, if there are any."""
        self._remote = remote
        self.service = service
        self.core = service.core
        self.auth = auth
        self.tasks = service.operations.tasks
        self.messages = HubMessageService(
            self.core, auth, service.operations.mailboxes.perform_dequeue
        )

    async def authenticate(self, connection: AnyConnection) -> None:
        """Authenticate a caller before anything else of the request is read."""
        scope: Any = connection.scope
        scope[_CALLER] = await self.auth.authenticate(connection)
        self.service.operations.bucket.take_tokens(1)

    # -- tasks

    async def create_tasks(self, request: AnyRequest, body: NewTaskBody) -> list[TaskView]:
        caller = caller_of(request)
        new = _new_task(caller, body)
        principal = await self.core.read(lambda tx: self.auth.describe(tx, caller))
        if caller.token is not None:
            granted = caller.token.capabilities
            self.core.policy.evaluate_capability(principal, _DELEGATE, granted).require_allowed()
            await self._require_own_blob(caller.token.agent_name, new.input_ref)
        require = partial(self.auth.require_live, caller=caller)
        return await self.tasks.create_tasks(new, principal, require)

    async def _require_own_blob(self, agent: str, digest: str | UnsetType) -> None:
        """Refuse a blob that belongs to no mail or message of a session's agent."""
        if not isinstance(digest, UnsetType):
            await self.core.read(lambda tx: find_key_for_agent(tx, digest, agent))

    async def list_tasks(self, request: AnyRequest, wanted: TaskFilter, limit: int) -> TaskList:
        caller = caller_of(request)
        if caller.token is not None:
            session = (caller.token.task_id, caller.token.agent_name)
            wanted = msgspec.structs.replace(wanted, session=session)
        found = await self.core.read(lambda tx: task_table.list_tasks(tx, wanted, limit))
        return TaskList([summarize_task(task) for task in found])

    async def load_own_task(self, request: AnyRequest, id: str) -> Task:
        """The task with this id, which may be its id in the hub that it was imported from."""
        caller = caller_of(request)
        if _FOREIGN_ID.fullmatch(id):
            id = task_table.own_task_id(id)
        parse_event_id(id)
        task = await self.core.read(lambda tx: task_table.load_task(tx, id))
        caller.require_own(task)
        return task

    async def read_log(self, id: str, offset: int, wait_secs: float) -> LogView:
        """A piece of the log; waits for output while more may follow."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(wait_secs, self.core.settings.limits.long_poll_max_secs)
        while True:
            session = await self.core.read(lambda tx: sessions.find_session(tx, id))
            task = await self.core.read(lambda tx: task_table.load_task(tx, id))
            if task.executor == "remote" and self._remote is not None:
                return await self._remote.read_log(task, offset, deadline - loop.time())
            if session is None:
                _require_log(task)
                if task.has_ended or loop.time() >= deadline:
                    return LogView(0, 0, "", task.has_ended)
                await self.tasks.show_task(id, deadline - loop.time(), task.updated_at)
                continue
            read = self.service.sessions.read_log
            piece = await asyncio.to_thread(read, session, offset, _LOG_BYTES)
            is_ended = session.ended_at is not None
            if piece.data or is_ended or loop.time() >= deadline:
                text = piece.data.decode(errors="replace")
                done = is_ended and len(piece.data) < _LOG_BYTES
                state = self.tasks.session_states.get(id) or session.state
                return LogView(piece.offset, piece.end, text, done, state)
            await self.service.wait_for_output(session.name, deadline - loop.time())

    # -- agents

    def list_agents(self, request: AnyRequest) -> HubAgents:
        """All agents and problems for the operator; for a session, the agents that concern it.

        These are its own agent, and those that it may give tasks to.
        """
        token, registry = caller_of(request).token, self.core.registry
        agents = [each for _, each in sorted(registry.agents.items())]
        if token is None:
            problems = [RegistryProblemView(p.file, p.line, p.reason) for p in registry.problems]
            return HubAgents([view_agent(each) for each in agents], problems)
        own = [view_agent(each) for each in agents if each.name == token.agent_name]
        if _DELEGATE not in token.capabilities:
            return HubAgents(own)
        others = [present_agent(each) for each in agents if each.name != token.agent_name]
        return HubAgents(own + others)

    # -- sessions

    async def list_sessions(
        self, request: AnyRequest, state: SessionState | None, limit: int
    ) -> HubSessions:
        """Sessions, newest first. A session sees its own task's."""
        caller = caller_of(request)
        task = None if caller.token is None else caller.token.task_id
        known = self.tasks.session_states

        def read(tx: Tx) -> HubSessions:
            # Only the latest session of a task is followed, and has a state in memory.
            count = limit if state is None else _MAX_SESSIONS
            found = sessions.list_sessions(tx, count, task)
            views = [
                view_session(each, None if each.ended_at else known.get(each.task_id))
                for each in found
            ]
            return HubSessions([v for v in views if state in (None, v.state)][:limit])

        return await self.core.read(read)

    # -- tokens

    async def renew_token(self, request: AnyRequest) -> TaskTokenView:
        token = caller_of(request).require_session()
        ttl = int(self.core.settings.hub.token_ttl_secs * 1000)

        def renew(tx: Tx) -> TaskToken:
            self.core.tasks.session_tasks.admit_report(tx, token)
            return renew_task_token(tx, token, ttl)

        renewed = await self.core.commit(renew)
        return TaskTokenView(*msgspec.structs.astuple(renewed))

    async def list_tokens(self, request: AnyRequest) -> TaskTokens:
        caller_of(request).require_operator()
        found = await self.core.read(list_task_tokens)
        return TaskTokens([TaskTokenView(*msgspec.structs.astuple(each)) for each in found])

    # -- events

    async def stream_events(self, request: AnyRequest) -> AsyncIterator[ServerSentEventMessage]:
        caller_of(request).require_operator()
        if self.service.watchers.is_full:
            raise Unavailable("too many watch the events already", retry_after=5.0)
        return keep_alive(self._stream())

    async def _stream(self) -> AsyncGenerator[ServerSentEventMessage, None]:
        async with aclosing(self.service.watchers.stream_changes()) as changes:
            async for change in changes:
                yield _task_event(change)


def _require_log(task: Task) -> None:
    """Raise NotFound for a task that no session of this gateway executes."""
    if task.executor == "remote":
        raise NotFound(f"{task.executor_node} executes task {task.id}: its log is there")
    if task.executor == "agent":
        raise NotFound(f"{task.agent} runs by itself, so task {task.id} has no log here")


def _task_event(change: TaskChange) -> ServerSentEventMessage:
    data = msgspec.json.encode(summarize_task(change.task)).decode()
    return ServerSentEventMessage(event=f"task.{change.what}", id=change.task.id, data=data)


def _new_task(caller: HubCaller, body: NewTaskBody) -> NewTask:
    targets = body.to_agents
    if not isinstance(body.agent_name, UnsetType):
        if not isinstance(targets, UnsetType):
            raise InvalidRequest("a task has an `agent_name` or `to_agents`, not both")
        targets = [body.agent_name]
    sender = caller.name
    if caller.token is None and not isinstance(body.from_agent, UnsetType):
        sender = body.from_agent
    return NewTask(
        sender,
        body.description,
        targets,
        body.required_capabilities,
        body.input,
        body.input_ref,
        body.task_id,
        body.idempotency_key,
        body.task_type,
        body.ttl_secs,
        may_wait=body.may_wait,
    )


def caller_of(request: AnyRequest) -> HubCaller:
    """The caller that the guard has authenticated."""
    scope: Any = request.scope
    caller: HubCaller = scope[_CALLER]
    return caller


def create_router(api: HubApi) -> Router:
    # A function, because Litestar copies routers, with all that a bound method belongs to.
    async def guard(connection: AnyConnection, _: BaseRouteHandler) -> None:
        await api.authenticate(connection)

    handlers = [*_task_routes(api), *_session_routes(api)]
    handlers += [*_message_routes(api), *_operator_routes(api)]
    # The hub checks tokens itself: it knows two kinds of them.
    return Router("/api", route_handlers=handlers, guards=[guard], opt={"open": True})


def _task_routes(api: HubApi) -> list[Any]:
    @post(f"{BASE}/tasks", summary="Create tasks")
    async def create(data: JSONBody[NewTaskBody], request: AnyRequest) -> HubTask | TaskList:
        made = await api.create_tasks(request, data)
        if data.agent_name is UNSET:
            return TaskList(made)
        return complete_view(made[0])

    @get(f"{BASE}/tasks", summary="List tasks, newest first")
    async def list_tasks(
        request: AnyRequest,
        status: FromQuery[TaskState | None] = None,
        agent: OptionalText = None,
        after: OptionalText = None,
        limit: PageSize = 100,
    ) -> TaskList:
        wanted = TaskFilter(state=status, agent=agent, after=after)
        return await api.list_tasks(request, wanted, limit)

    @get(f"{BASE}/tasks/{{task_id:str}}", summary="Show a task, or wait for its end")
    async def show(
        task_id: PathName,
        request: AnyRequest,
        wait_secs: WaitSecs = 0.0,
        known: Annotated[int, QueryParameter(ge=0, le=2**53)] = 0,
    ) -> HubTask:
        task = await api.load_own_task(request, task_id)
        shown = api.tasks.show_task(task.id, wait_secs, known)
        return complete_view(await while_connected(request, shown))

    @post(f"{BASE}/tasks/{{task_id:str}}/cancel", summary="Cancel a task", status_code=200)
    async def cancel(task_id: PathName, data: JSONBody[CancelBody], request: AnyRequest) -> HubTask:
        task, caller = await api.load_own_task(request, task_id), caller_of(request)
        require = partial(api.auth.require_live, caller=caller)
        return complete_view(await api.tasks.cancel_task(task.id, data.reason, require))

    @get(f"{BASE}/tasks/{{task_id:str}}/log", summary="Read the log of a task's session")
    async def read_log(
        task_id: PathName, request: AnyRequest, offset: LogOffset = 0, wait_secs: WaitSecs = 0.0
    ) -> LogView:
        task = await api.load_own_task(request, task_id)
        return await while_connected(request, api.read_log(task.id, offset, wait_secs))

    return [create, list_tasks, show, cancel, read_log]


def _message_routes(api: HubApi) -> list[Any]:
    @post(f"{BASE}/messages", summary="Send a message", status_code=200)
    async def send(data: JSONBody[NewHubMessage], request: AnyRequest) -> MessageResult:
        return await api.messages.send(caller_of(request), data)

    @get(f"{BASE}/messages", summary="Take messages of a session's agent")
    async def receive(
        request: AnyRequest, limit: PageSize = 10, wait_secs: WaitSecs = 0.0
    ) -> HubMessages:
        token = caller_of(request).require_session()
        return await while_connected(request, api.messages.receive(token, limit, wait_secs))

    @post(f"{BASE}/messages/ack", summary="Ack the messages taken last", status_code=200)
    async def ack(request: AnyRequest) -> Count:
        token = caller_of(request).require_session()
        return Count(count=await api.messages.settle(token, "ack"))

    @post(f"{BASE}/messages/nack", summary="Nack the messages taken last", status_code=200)
    async def nack(data: JSONBody[HubNackBody], request: AnyRequest) -> Count:
        token = caller_of(request).require_session()
        return Count(count=await api.messages.settle(token, "nack", data.reason))

    @get(f"{BASE}/message-log", summary="List delivered and rejected messages")
    async def message_log(request: AnyRequest, limit: PageSize = 100) -> MessageLog:
        caller_of(request).require_operator()
        return await api.messages.read_log(limit)

    return [send, receive, ack, nack, message_log]


def _session_routes(api: HubApi) -> list[Any]:
    @get(f"{BASE}/sessions", summary="List sessions, newest first")
    async def list_sessions(
        request: AnyRequest, wanted: WantedSessionState = None, limit: PageSize = 100
    ) -> HubSessions:
        return await api.list_sessions(request, wanted, limit)

    return [list_sessions]


def _operator_routes(api: HubApi) -> list[Any]:
    core = api.core

    @get(f"{BASE}/agents", summary="List the agents that this hub runs")
    async def agents(request: AnyRequest) -> HubAgents:
        return api.list_agents(request)

    @get(f"{BASE}/tokens", summary="List the tokens of running tasks")
    async def tokens(request: AnyRequest) -> TaskTokens:
        return await api.list_tokens(request)

    @post(f"{BASE}/tokens/renew", summary="Renew a session's token", status_code=200)
    async def renew(request: AnyRequest) -> TaskTokenView:
        return await api.renew_token(request)

    @delete(f"{BASE}/tokens/{{token_id:str}}", summary="Revoke a token", status_code=200)
    async def revoke(token_id: PathName, request: AnyRequest) -> Count:
        caller_of(request).require_operator()
        return Count(count=await core.commit(lambda tx: revoke_token(tx, token_id)))

    @get(f"{BASE}/state", summary="Export the hub's state")
    async def export(request: AnyRequest) -> HubState:
        caller_of(request).require_operator()
        return await core.read(lambda tx: export_state(tx, core.agents.hub_run))

    @post(f"{BASE}/state", summary="Import the hub's state", status_code=200)
    async def import_(data: JSONBody[HubState], request: AnyRequest) -> ImportResult:
        caller_of(request).require_operator()
        return await core.commit(HubStateImport(core, api.tasks.encode_inline, data).run)

    @get("/events", include_in_schema=False)
    async def events(request: AnyRequest) -> ServerSentEvent:
        return ServerSentEvent(await api.stream_events(request))

    return [agents, tokens, renew, revoke, export, import_, events]
