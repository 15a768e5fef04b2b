"""Scopes of external agents' sessions: operation -> required scope. Unlisted operations fail."""

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Any, Protocol

from gatepost.errors import Forbidden, InsufficientScope, InvalidRequest
from gatepost.wire.frame_types import Op
from gatepost.wire.operations import (
    Ack,
    Await,
    Dequeue,
    Enqueue,
    Extend,
    Nack,
    Peek,
    PeekDeadLetter,
    Purge,
    PurgeDeadLetter,
    Register,
    Send,
    Subscribe,
    Unsubscribe,
)
from gatepost.wire.tasks import TaskAwait, TaskCancel, TaskCreate, TaskReports


class Scope(StrEnum):
    MESSAGE_READ = "ansible.message.read"
    MESSAGE_SEND = "ansible.message.send"
    TASK_READ = "ansible.task.read"
    TASK_CLAIM = "ansible.task.claim"
    TASK_UPDATE = "ansible.task.update"
    TASK_COMPLETE = "ansible.task.complete"
    STATUS_READ = "ansible.status.read"
    ADMIN_ACCESS = "ansible.admin.access"
    ADMIN_MAILBOX = "ansible.admin.mailbox"
    ADMIN_FEEDBACK = "ansible.admin.feedback"
    ADMIN_ALL = "ansible.admin.*"


# What an agent needs to exchange messages and tasks, and no more.
AGENT_SCOPES = tuple(scope for scope in Scope if not scope.startswith("ansible.admin."))


class AgentEndpoint(StrEnum):
    """The endpoints for external agents, below /ansible/agent."""

    INVITES = "invites"
    EXCHANGE = "auth/exchange"
    REFRESH = "auth/refresh"
    INVOKE = "invoke"
    CONTEXT_TOKEN = "context-token"
    BLOBS = "blobs"
    UPLOADS = "uploads"


class EndpointAuthority(StrEnum):
    """The authority an endpoint requires instead of a scope."""

    OWN_TOKEN = "the token in the body is the authority"
    ANY_SESSION = "any live session"
    ITS_OPERATION = "a session with the scope of the operation invoked"


ENDPOINT_AUTHORITY: Mapping[AgentEndpoint, Scope | EndpointAuthority] = {
    AgentEndpoint.INVITES: Scope.ADMIN_ACCESS,
    AgentEndpoint.EXCHANGE: EndpointAuthority.OWN_TOKEN,
    AgentEndpoint.REFRESH: EndpointAuthority.OWN_TOKEN,
    AgentEndpoint.INVOKE: EndpointAuthority.ITS_OPERATION,
    AgentEndpoint.CONTEXT_TOKEN: EndpointAuthority.ANY_SESSION,
    AgentEndpoint.BLOBS: Scope.MESSAGE_READ,
    AgentEndpoint.UPLOADS: Scope.MESSAGE_SEND,
}

# Keys are the operation names on the wire.
OPERATION_SCOPES: Mapping[str, Scope] = {
    "enqueue": Scope.MESSAGE_SEND,
    "send": Scope.MESSAGE_SEND,
    "dequeue": Scope.MESSAGE_READ,
    "subscribe": Scope.MESSAGE_READ,
    "unsubscribe": Scope.MESSAGE_READ,
    "ack": Scope.MESSAGE_READ,
    "nack": Scope.MESSAGE_READ,
    "extend": Scope.MESSAGE_READ,
    "peek": Scope.MESSAGE_READ,
    "peek_dead_letter": Scope.MESSAGE_READ,
    "await": Scope.MESSAGE_READ,
    "register": Scope.MESSAGE_READ,
    "purge": Scope.ADMIN_MAILBOX,
    "purge_dead_letter": Scope.ADMIN_MAILBOX,
    "status": Scope.STATUS_READ,
    "task_create": Scope.MESSAGE_SEND,
    "task_cancel": Scope.MESSAGE_SEND,
    "task_await": Scope.TASK_READ,
    "task_report": Scope.TASK_READ,
}

# The scopes that the reports of a task require in addition.
REPORT_SCOPES: Mapping[str, Scope] = {
    "accept": Scope.TASK_CLAIM,
    "update": Scope.TASK_UPDATE,
    "complete": Scope.TASK_COMPLETE,
    "fail": Scope.TASK_COMPLETE,
}

_MAILBOX_OPS: tuple[type[Op], ...] = (
    Dequeue,
    Subscribe,
    Unsubscribe,
    Ack,
    Nack,
    Extend,
    Peek,
    PeekDeadLetter,
    Purge,
    PurgeDeadLetter,
)
# The agents an operation acts as. `await` and others name an event or a task, and only the journal
# knows whose it is.
_ACTING_AGENTS: Mapping[type[Op], Callable[[Any], Iterable[str]]] = {
    Enqueue: lambda op: (message.from_ for message in op.messages),
    Send: lambda op: (message.from_agent for message in op.messages),
    Register: lambda op: (op.agent,),
    Await: lambda op: (),
    TaskCreate: lambda op: (new.from_agent for new in op.tasks),
    TaskReports: lambda op: (report.agent for report in op.reports),
    TaskAwait: lambda op: (),
    TaskCancel: lambda op: (),
    **dict.fromkeys(_MAILBOX_OPS, lambda op: (op.mailbox,)),
}


class ScopeHolder(Protocol):
    """A session that acts under scopes."""

    @property
    def agent_id(self) -> str: ...

    @property
    def scopes(self) -> tuple[str, ...]: ...


def scopes_cover(granted: Iterable[str], wanted: str) -> bool:
    """Whether the granted scopes include `wanted`. Only `ansible.admin.*` covers other scopes."""
    held = set(granted)
    is_admin = wanted.startswith("ansible.admin.")
    return wanted in held or (is_admin and Scope.ADMIN_ALL in held)


def check_grantable(scopes: Iterable[str], granted: Iterable[str] | None) -> tuple[str, ...]:
    """Return the sorted scopes if all exist and the grantor holds them (None: the operator)."""
    wanted = sorted(set(scopes))
    if unknown := [scope for scope in wanted if scope not in set(Scope)]:
        raise InvalidRequest(f"unknown scopes {', '.join(unknown)}; known: {', '.join(Scope)}")
    if granted is not None and (beyond := [s for s in wanted if not scopes_cover(granted, s)]):
        raise InsufficientScope(f"a session cannot grant what it lacks: {', '.join(beyond)}")
    return tuple(wanted)


def require_scope(holder: ScopeHolder, scope: str) -> None:
    if not scopes_cover(holder.scopes, scope):
        raise InsufficientScope(f"this needs the scope {scope}; ask for an invite that has it")


def authorize_op(holder: ScopeHolder, op: Op) -> None:
    """Raise unless the session has the scopes for `op` and acts as its own agent."""
    for scope in required_scopes(op):
        require_scope(holder, scope)
    if any(actor != holder.agent_id for actor in _ACTING_AGENTS[type(op)](op)):
        raise Forbidden(f"this session acts only as {holder.agent_id}")


def authorize_operation_name(holder: ScopeHolder, operation: str) -> None:
    """Raise unless the session may do the named operation. Unlisted operations are refused."""
    scope = OPERATION_SCOPES.get(operation)
    if scope is None:
        raise Forbidden("no session may do this; see the list of operations")
    require_scope(holder, scope)


def required_scopes(op: Op) -> list[Scope]:
    """The scopes an operation requires. An ack with replies also sends, a report also works."""
    tag = op.__struct_config__.tag
    needed = [OPERATION_SCOPES[str(tag)]]
    if isinstance(op, Ack) and (op.replies or op.reply_refs):
        needed.append(Scope.MESSAGE_SEND)
    if isinstance(op, TaskReports):
        needed += sorted({REPORT_SCOPES[report.action] for report in op.reports})
    return needed
