"""The hub's state as one document, for other tools. The journal is the truth.

An export has no secrets: the tokens of this gateway cannot be used with it. It has the mail that
waits for the agents of the hub, under the id of their token, or under their name if they have none.

An import takes a document of this or another hub, by the rules of the latter:

- Tasks that ended are dropped, and so is the log.
- A pending task is pending here, and is executed as any other.
- A token that has not expired stays valid until then, for a task that runs: whoever worked on the
  task goes on by reporting here. It needs a secret: in other hubs, `token_id` is the bearer value.
- A running task without such a token has failed: what worked on it is not here.
- Messages are taken for tokens that have not expired.

The result names entries that are not taken or are changed.
"""

from collections.abc import Callable, Collection
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field

from gatepost.core.gateway_core import Core
from gatepost.errors import GatepostError, WrongState
from gatepost.events import AgentId, check_agent_id, check_msg_id
from gatepost.events.envelope import EpochMs, Label
from gatepost.journal import Tx
from gatepost.mailbox.browse import UnsettledMail, list_unsettled_mail
from gatepost.mailbox.enqueue import NewMail
from gatepost.tasks import task_table
from gatepost.tasks.policy import Operator
from gatepost.tasks.service.hub_messages import brings_task, decode_content, encode_content
from gatepost.tasks.sessions import open_sessions
from gatepost.tasks.task_request import RequestContent, decode_request
from gatepost.tasks.task_states import TERMINAL_STATES, TaskState
from gatepost.tasks.task_table import EXECUTOR_LOST, Task, TaskFilter, TaskPayload, own_task_id
from gatepost.tasks.task_tokens import (
    TaskToken,
    import_task_token,
    imported_token_id,
    is_imported_bearer,
    list_task_tokens,
)
from gatepost.wire.tasks import Description, NewTask, TaskStatus

_MAX_TASKS = 10_000
_MAX_TOKENS = 10_000
_MAX_MESSAGES = 10_000
_MAX_EXPORTED_BYTES = 64 * 1024 * 1024
# Tasks, tokens and messages that a result names; it counts all.
_MAX_ITEMS = 1000

ShortText = Annotated[str, Meta(max_length=256)]
EncodeRequest = Callable[[NewTask], RequestContent | None]
_SELECT_LOG = """
SELECT id, at, sender, recipient, type, status, reason FROM hub_message ORDER BY number
"""


class StateToken(Struct, omit_defaults=True):
    token_id: ShortText
    agent_name: ShortText = ""
    task_id: ShortText = ""
    capabilities: tuple[ShortText, ...] = ()
    issued: EpochMs = 0
    expiry: EpochMs = 0


class StateTask(Struct, omit_defaults=True):
    """A task; one that is pending has its input, or the digest of a blob with its request."""

    id: ShortText
    agent_name: AgentId
    status: TaskStatus
    description: Description = ""
    requester: AgentId = "operator"
    token_id: ShortText | None = None
    session_name: ShortText | None = None
    error: str | None = None
    created_at: EpochMs = 0
    task_type: Label = ""
    input: Raw | UnsetType = UNSET
    request_ref: ShortText | None = None


class StateMessage(Struct, omit_defaults=True):
    id: str
    timestamp: EpochMs = 0
    sender: str = ""
    recipient: str = ""
    type: str = ""
    status: str = ""
    reason: str | None = None


class PendingMessage(Struct, omit_defaults=True):
    id: ShortText
    timestamp: EpochMs = 0
    sender: ShortText = ""
    recipient: ShortText = ""
    type: ShortText = ""
    payload: Raw | UnsetType = UNSET


PendingMessages = tuple[ShortText, Annotated[list[PendingMessage], Meta(max_length=_MAX_MESSAGES)]]


class RegistryState(Struct):
    tokens: Annotated[list[tuple[str, StateToken]], Meta(max_length=_MAX_TOKENS)] = field(
        default_factory=list
    )


class RouterState(Struct):
    tasks: Annotated[list[tuple[str, StateTask]], Meta(max_length=_MAX_TASKS)] = field(
        default_factory=list
    )


class MessagesState(Struct):
    """`left_out` counts the pending messages that did not fit."""

    pending: Annotated[list[PendingMessages], Meta(max_length=_MAX_TOKENS)] = field(
        default_factory=list
    )
    log: list[StateMessage] = field(default_factory=list)
    left_out: int = 0


class HubState(Struct):
    flushed_at: int = 0
    registry: RegistryState = field(default_factory=RegistryState)
    router: RouterState = field(default_factory=RouterState)
    messages: MessagesState = field(default_factory=MessagesState)


class ImportedItem(Struct, omit_defaults=True):
    """An entry that was changed or dropped by the import, and why."""

    kind: Literal["task", "token", "message"]
    id: str
    outcome: Literal["renamed", "failed", "dropped"]
    reason: str
    new_id: str | None = None


class ImportCounts(Struct):
    """`known` was here already."""

    kept: int = 0
    known: int = 0
    failed: int = 0
    dropped: int = 0


class ImportResult(Struct):
    """`items` names the first that were renamed, failed or dropped; `more` counts the rest."""

    tasks: ImportCounts = field(default_factory=ImportCounts)
    tokens: ImportCounts = field(default_factory=ImportCounts)
    messages: ImportCounts = field(default_factory=ImportCounts)
    log_dropped: int = 0
    items: list[ImportedItem] = field(default_factory=list)
    more: int = 0


# -- export


def export_state(tx: Tx, hub_run: Collection[str] = ()) -> HubState:
    """`hub_run` are the agents that the hub runs: their mail is exported, token or not."""
    tokens = [_export_token(each) for each in list_task_tokens(tx)]
    token_ids = {each.task_id: each.token_id for each in tokens}
    names = {each.task_id: each.name for each in open_sessions(tx) if each.handle}
    found = [
        _export_task(tx, task, token_ids.get(task.id), names.get(task.id))
        for task in task_table.list_tasks(tx, TaskFilter(), _MAX_TASKS)
    ]
    keys = {name: name for name in hub_run} | {each.agent_name: each.token_id for each in tokens}
    log = [StateMessage(*row) for row in tx.fetch_all(_SELECT_LOG)]
    return HubState(
        tx.now,
        RegistryState([(each.token_id, each) for each in tokens]),
        RouterState([(task.id, task) for task in found]),
        _export_mail(tx, keys, log),
    )


def _export_mail(tx: Tx, keys: dict[str, str], log: list[StateMessage]) -> MessagesState:
    """`keys` maps agents to the names under which their messages are filed."""
    state, messages, size = MessagesState(log=log), 0, 0
    for agent, key in sorted(keys.items()):
        found = list_unsettled_mail(tx, agent, _MAX_MESSAGES + 1)
        kept: list[PendingMessage] = []
        for mail in found:
            if mail.meta is not None and brings_task(mail.meta):
                continue
            size += len(mail.payload)
            if messages == _MAX_MESSAGES or size > _MAX_EXPORTED_BYTES:
                state.left_out += 1
                continue
            messages += 1
            kept.append(_export_message(agent, mail))
        if kept:
            state.pending.append((key, kept))
    return state


def _export_message(agent: str, mail: UnsettledMail) -> PendingMessage:
    type, payload = decode_content(mail.payload)
    return PendingMessage(mail.msg_id, mail.created_at, mail.sender, agent, type, payload)


def _export_task(tx: Tx, task: Task, token_id: str | None, session_name: str | None) -> StateTask:
    status: TaskStatus = task.status  # type: ignore[assignment]
    head = (task.id, task.agent, status, task.description, task.requester)
    exported = StateTask(*head, token_id, session_name, task.error, task.created_at)
    if task.state is TaskState.PENDING:
        payload = task_table.load_payload(tx, task.id)
        exported.request_ref = payload.request_ref
        if payload.request is not None:
            request = decode_request(payload.request)
            exported.input, exported.task_type = request.input, request.task_type
    return exported


def _export_token(token: TaskToken) -> StateToken:
    return StateToken(*msgspec.structs.astuple(token))


# -- import


class HubStateImport:
    """Takes one document. `encode` makes the request of a task."""

    def __init__(self, core: Core, encode: EncodeRequest, state: HubState) -> None:
        self._core = core
        self._encode = encode
        self._state = state
        self._result = ImportResult(log_dropped=len(state.messages.log))

    def run(self, tx: Tx) -> ImportResult:
        bearers = {
            own_task_id(token.task_id): token.token_id
            for _, token in self._state.registry.tokens
            if token.expiry > tx.now and is_imported_bearer(token.token_id)
        }
        for _, task in self._state.router.tasks:
            self._take_task(tx, task, own_task_id(task.id) in bearers)
        for _, token in self._state.registry.tokens:
            self._take_token(tx, token)
        agents = self._find_receivers(tx)
        for key, messages in self._state.messages.pending:
            for message in messages:
                self._take_message(tx, message, agents.get(key))
        return self._result

    def _note(self, kind: Literal["task", "token", "message"], item: ImportedItem) -> None:
        counts: ImportCounts = getattr(self._result, f"{kind}s")
        if item.outcome == "failed":
            counts.failed += 1
        elif item.outcome == "dropped":
            counts.dropped += 1
        if len(self._result.items) < _MAX_ITEMS:
            self._result.items.append(item)
        else:
            self._result.more += 1

    # -- tasks

    def _take_task(self, tx: Tx, exported: StateTask, has_token: bool) -> None:
        id = own_task_id(exported.id)
        if exported.status in TERMINAL_STATES:
            reason = f"it has ended: {exported.status}"
            self._note("task", ImportedItem("task", exported.id, "dropped", reason))
            return
        if task_table.find_task(tx, id) is not None:
            self._result.tasks.known += 1
            return
        mark = tx.begin_operation()
        try:
            if exported.status == "pending":
                self._create_task(tx, id, exported)
            elif has_token:
                self._adopt_task(tx, id, exported)
            else:
                self._fail_task(tx, id, exported)
        except GatepostError as error:
            tx.undo_operation(mark)
            self._note("task", ImportedItem("task", exported.id, "dropped", error.message))
            return
        tx.keep_operation()
        if id != exported.id:
            reason = "ids of tasks are UUIDs of version 7 here; requests with the old one find it"
            self._note("task", ImportedItem("task", exported.id, "renamed", reason, id))

    def _create_task(self, tx: Tx, id: str, exported: StateTask) -> None:
        """A task that never ran: it waits for its agent here."""
        new = NewTask(
            "imported",
            exported.description,
            [exported.agent_name],
            input=exported.input,
            task_id=id,
            task_type=exported.task_type,
        )
        content = self._encode(new) if exported.request_ref is None else None
        if content is None:
            raise WrongState("its input is too large for the document: create it again")
        new = msgspec.structs.replace(new, from_agent=exported.requester)
        self._core.tasks.requested.create_tasks(tx, new, content, Operator())
        self._result.tasks.kept += 1

    def _adopt_task(self, tx: Tx, id: str, exported: StateTask) -> None:
        """A task that runs elsewhere continues there, and is reported with its token."""
        self._require_agent(tx, exported.agent_name)
        task = self._build_task(tx, id, exported, TaskState.RUNNING)
        task_table.add_task(tx, task, TaskPayload(b"{}"))
        self._core.tasks.parts.changes.note_change(tx, task)
        self._result.tasks.kept += 1

    def _fail_task(self, tx: Tx, id: str, exported: StateTask) -> None:
        reason = "it ran elsewhere, and the document has no token with which it could be reported"
        task = self._build_task(tx, id, exported, TaskState.FAILED)
        task.error_code, task.error, task.ended_at = EXECUTOR_LOST, reason, tx.now
        task_table.add_task(tx, task, TaskPayload(b"{}"))
        self._note("task", ImportedItem("task", exported.id, "failed", reason))

    def _build_task(self, tx: Tx, id: str, exported: StateTask, state: TaskState) -> Task:
        return Task(
            id=id,
            agent=exported.agent_name,
            requester=exported.requester,
            executor="agent",
            state=state,
            description=exported.description,
            created_at=exported.created_at or tx.now,
            updated_at=tx.now,
        )

    # -- tokens

    def _take_token(self, tx: Tx, token: StateToken) -> None:
        reason = self._find_problem(tx, token)
        if reason is None:
            own = TaskToken(
                imported_token_id(token.token_id),
                token.agent_name,
                own_task_id(token.task_id),
                token.capabilities,
                token.issued or tx.now,
                token.expiry,
            )
            if import_task_token(tx, token.token_id, own):
                self._result.tokens.kept += 1
            else:
                self._result.tokens.known += 1
        elif any(each.token_id == token.token_id for each in list_task_tokens(tx)):
            self._result.tokens.known += 1
        else:
            # The id of a token is its secret in other hubs.
            id = token.token_id
            shown = f"{id[:8]}…" if is_imported_bearer(id) else id
            self._note("token", ImportedItem("token", shown, "dropped", reason))

    def _find_problem(self, tx: Tx, token: StateToken) -> str | None:
        """Why a token is not taken; None if it is."""
        if token.expiry <= tx.now:
            return "it has expired"
        if not is_imported_bearer(token.token_id):
            return "its secret is not in the document: only a random UUID is a bearer value"
        task = task_table.find_task(tx, own_task_id(token.task_id))
        if task is None or task.has_ended or task.agent != token.agent_name:
            return f"no task {token.task_id!r} of {token.agent_name!r} runs here"
        if task.executor != "agent" or task.state is not TaskState.RUNNING:
            return "its task gets a token of this gateway"
        return None

    # -- messages

    def _find_receivers(self, tx: Tx) -> dict[str, str]:
        """The name under which messages are filed → the agent whose mailbox gets them."""
        live = [(each.token_id, each.agent_name) for each in list_task_tokens(tx)]
        own = [(name, name) for name in self._core.agents.hub_run]
        given = [
            (token.token_id, token.agent_name)
            for _, token in self._state.registry.tokens
            if token.expiry > tx.now
        ]
        return dict([*own, *given, *live])

    def _take_message(self, tx: Tx, message: PendingMessage, agent: str | None) -> None:
        mark = tx.begin_operation()
        try:
            if agent is None:
                raise WrongState(
                    "it is for a token that has expired, or that is not in the document"
                )
            is_new = self._enqueue(tx, message, agent)
        except GatepostError as error:
            tx.undo_operation(mark)
            self._note("message", ImportedItem("message", message.id, "dropped", error.message))
            return
        tx.keep_operation()
        if is_new:
            self._result.messages.kept += 1
        else:
            self._result.messages.known += 1

    def _enqueue(self, tx: Tx, message: PendingMessage, agent: str) -> bool:
        check_msg_id(message.id)
        check_agent_id(message.sender)
        self._require_agent(tx, agent)
        self._core.admission.require_capacity(tx, agent)
        payload = b"null" if isinstance(message.payload, UnsetType) else bytes(message.payload)
        content = encode_content(message.type or "message", payload)
        mail = NewMail(message.id, content, message.timestamp or None)
        (ack,) = self._core.dispatcher.enqueue(tx, agent, message.sender, [mail])
        if ack.error is not None:
            raise ack.error.to_error()
        return ack.queued

    def _require_agent(self, tx: Tx, agent: str) -> None:
        """Ensure that an agent lives here and can get mail."""
        home = self._core.tasks.parts.core.routes.remote_owner(agent)
        if home:
            raise WrongState(f"{agent} lives at gateway {home}")
        if not self._core.agents.is_registered(tx, agent):
            self._core.agents.register(tx, agent)
