"""Messages of the hub: between agents by name, and to the hub itself.

A session can report about its task in a message to any recipient: the payload's `event` is
`task.completed`, `task.failed` or `task.progress`.
"""

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType
from msgspec.structs import replace

from gatepost.core.gateway_core import Core
from gatepost.delivery.send_request import fingerprint_payload, fingerprint_send
from gatepost.errors import (
    ContractMismatch,
    ContractUnchecked,
    Forbidden,
    GatepostError,
    InvalidRequest,
    PayloadTooLarge,
    PolicyDenied,
)
from gatepost.events import AgentId, fingerprint_content
from gatepost.events.json_payload import check_json_text
from gatepost.events.reserved_names import HUB
from gatepost.journal import Tx
from gatepost.tasks.policy import Hub, PolicyAgent
from gatepost.tasks.service.hub_auth import HubAuth, HubCaller
from gatepost.tasks.service.task_contents import TaskContents
from gatepost.tasks.service.task_views import summarize_task
from gatepost.tasks.task_table import CONTRACT_MISMATCH, Task, TaskPayload, own_task_id
from gatepost.tasks.task_tokens import TaskToken
from gatepost.wire.hub_views import (
    HubMessage,
    HubMessages,
    LoggedMessage,
    MessageLog,
    MessageResult,
)
from gatepost.wire.operations import AnyAnswer, Dequeue, LeasedMessage, Messages, NewSend
from gatepost.wire.tasks import ErrorCode, Note, Progress

_LOG = """
INSERT INTO hub_message (id, at, sender, recipient, type, status, reason)
VALUES (?, ?, ?, ?, ?, ?, ?)
"""
_TRIM_LOG = "DELETE FROM hub_message WHERE number <= (SELECT max(number) FROM hub_message) - ?"
_SELECT_LOG = """
SELECT id, at, sender, recipient, type, status, reason FROM hub_message
ORDER BY number DESC LIMIT ?
"""
MessageType = Annotated[str, Meta(max_length=128)]


class NewHubMessage(Struct, forbid_unknown_fields=True):
    """A message for an agent, or for the `hub`. Without a `type`, its payload has one."""

    recipient: AgentId
    type: MessageType = ""
    payload: Raw | UnsetType = UNSET


class _HubPayload(Struct, frozen=True):
    """A message of the hub inside ordinary mail."""

    type: str
    payload: Raw


class _TaskEvent(Struct, frozen=True):
    """The parts of a payload that say something about the sender's task."""

    event: str = ""
    task_id: str | None = None
    result: Raw | UnsetType = UNSET
    error: Note = ""
    code: ErrorCode = "failed"
    progress: Progress | None = None
    note: Note | None = None
    eta_secs: Annotated[float, Meta(ge=0, le=3.2e8)] | None = None


class _TypedPayload(Struct, frozen=True):
    type: MessageType = ""


_decode_typed = msgspec.json.Decoder(_TypedPayload).decode
_decode_event = msgspec.json.Decoder(_TaskEvent).decode
_decode_hub_payload = msgspec.json.Decoder(_HubPayload, strict=True).decode

DequeueMail = Callable[[Dequeue, Callable[[], Awaitable[object]]], Awaitable[AnyAnswer]]


class HubMessageService:
    def __init__(self, core: Core, auth: HubAuth, dequeue: DequeueMail) -> None:
        self._core = core
        self._auth = auth
        self._dequeue = dequeue
        self._contents = TaskContents(core)
        # Token → the lease handles of the messages it got with its last call.
        self._handed_out: dict[str, list[str]] = {}

    # -- sending

    async def send(self, caller: HubCaller, new: NewHubMessage) -> MessageResult:
        if not new.type and not isinstance(new.payload, UnsetType):
            new = msgspec.structs.replace(new, type=_read_type(bytes(new.payload)))
        result = await self._contents.commit_checked(
            lambda tx: self._send(tx, caller, new), lambda: self._check_result(caller, new)
        )
        if isinstance(result, GatepostError):
            raise result
        return result

    async def _check_result(self, caller: HubCaller, new: NewHubMessage) -> None:
        """Ensure that the result in a message has a verdict."""
        event = None if isinstance(new.payload, UnsetType) else _read_event(bytes(new.payload))
        if event is not None and caller.token is not None:
            await self._contents.check_result(caller.token.task_id, _result_of(event))

    def _send(self, tx: Tx, caller: HubCaller, new: NewHubMessage) -> MessageResult | GatepostError:
        """Route one message. A refusal is returned, so that the note of it is committed.

        So is the mismatch of a result, which fails its task.
        """
        self._auth.require_live(tx, caller)
        id = self._core.node.event_ids.next_id()
        if new.recipient != HUB:
            # Resolve the alias before the policy sees it, because an alias is not an identity.
            new = replace(new, recipient=self._core.aliases.resolve_name(tx, new.recipient))
        mark = tx.begin_operation()
        try:
            task = self._route(tx, caller, new, id)
        except ContractUnchecked:
            raise
        except GatepostError as error:
            tx.undo_operation(mark)
            self._log(tx, id, caller, new, "rejected", error.message)
            return error
        tx.keep_operation()
        self._log(tx, id, caller, new, "delivered", None)
        if task is not None and task.error_code == CONTRACT_MISMATCH:
            return ContractMismatch(task.error or "")
        return MessageResult(True, id, None if task is None else summarize_task(task))

    def _route(self, tx: Tx, caller: HubCaller, new: NewHubMessage, id: str) -> Task | None:
        sender = self._auth.describe(tx, caller)
        recipient: PolicyAgent | Hub = Hub()
        if new.recipient != HUB:
            recipient = self._core.tasks.parts.describe_agent(tx, new.recipient)
        decided = self._core.policy.evaluate_message(sender, recipient, new.type)
        if not decided.allowed:
            raise PolicyDenied(decided.reason or "the policy does not permit this message")
        payload = b"null" if isinstance(new.payload, UnsetType) else bytes(new.payload)
        if new.recipient != HUB:
            self._check_payload(payload)
            self._send_mail(tx, caller.name, new, payload, id)
        return None if caller.token is None else self._apply_event(tx, caller.token, payload)

    def _check_payload(self, payload: bytes) -> None:
        """The rules for every payload that travels inline."""
        limit = self._core.settings.limits.max_payload_inline
        if len(payload) > limit:
            raise PayloadTooLarge(f"a message has at most {limit} bytes, this has {len(payload)}")
        check_json_text(payload)

    def _send_mail(self, tx: Tx, sender: str, new: NewHubMessage, payload: bytes, id: str) -> None:
        content = Raw(encode_content(new.type, payload))
        send = NewSend(sender, new.recipient, content, event_id=id)
        mark = fingerprint_send(send, fingerprint_payload(send))
        sent = self._core.coordinator.send(tx, send, mark)
        self._core.mirror.add_copies(tx, [(send, sent)])

    def _apply_event(self, tx: Tx, token: TaskToken, payload: bytes) -> Task | None:
        """Apply the task event in a payload, if there is one, to the sender's task."""
        event = _read_event(payload)
        if event is None or not event.event.startswith("task."):
            return None
        if event.task_id is not None and own_task_id(event.task_id) != token.task_id:
            raise Forbidden("a session reports about its own task only")
        self._core.tasks.session_tasks.admit_report(tx, token)
        executed = self._core.tasks.executed
        if event.event == "task.completed":
            return executed.complete_task(tx, token.task_id, _result_of(event))
        if event.event == "task.failed":
            return executed.fail_task(tx, token.task_id, event.code, event.error)
        if event.event == "task.progress":
            eta_at = None if event.eta_secs is None else tx.now + int(event.eta_secs * 1000)
            return executed.update_task(tx, token.task_id, event.progress, event.note, eta_at)
        raise InvalidRequest(f"there is no event {event.event[:64]!r}")

    def _log(
        self, tx: Tx, id: str, caller: HubCaller, new: NewHubMessage, status: str, why: str | None
    ) -> None:
        row = (id, tx.now, caller.name, new.recipient, new.type, status, why)
        tx.execute(_LOG, row)
        tx.execute(_TRIM_LOG, (self._core.settings.hub.message_retention,))

    async def read_log(self, limit: int) -> MessageLog:
        rows = await self._core.read(lambda tx: tx.fetch_all(_SELECT_LOG, (limit,)))
        return MessageLog([LoggedMessage(*row) for row in rows])

    # -- receiving

    async def receive(self, token: TaskToken, limit: int, wait_secs: float) -> HubMessages:
        """Lease messages of the session's agent. The next call settles those of the one before.

        Nothing is leased for a session that ended while it waited.
        """
        caller = HubCaller(token)
        await self.settle(token, "ack")
        op = Dequeue(
            mailbox=token.agent_name,
            limit=limit,
            wait_secs=wait_secs,
            consumer=f"task:{token.token_id}",
        )
        answer: Messages = await self._dequeue(  # type: ignore[assignment]
            op, lambda: self._core.read(lambda tx: self._auth.require_live(tx, caller))
        )
        self._handed_out[token.token_id] = [each.receipt for each in answer.messages]
        return HubMessages([_view_message(each) for each in answer.messages if not _is_task(each)])

    async def settle(self, token: TaskToken, how: Literal["ack", "nack"], reason: str = "") -> int:
        """Settle the messages that the session got last; returns how many."""
        handles = self._handed_out.pop(token.token_id, [])
        if not handles:
            return 0
        coordinator = self._core.coordinator

        def settle(tx: Tx) -> int:
            if how == "ack":
                return coordinator.ack(tx, token.agent_name, handles, [], {}).settled
            return coordinator.nack(tx, token.agent_name, handles, [], reason).settled

        return await self._core.commit(settle)

    def forget(self, token_id: str) -> None:
        self._handed_out.pop(token_id, None)


def _read_type(payload: bytes) -> str:
    """The `type` inside a payload; empty if it has none."""
    try:
        return _decode_typed(payload).type
    except msgspec.ValidationError:
        return ""


def _result_of(event: _TaskEvent) -> TaskPayload:
    result = b"null" if isinstance(event.result, UnsetType) else bytes(event.result)
    return TaskPayload(result=result, mark=fingerprint_content(result))


def _read_event(payload: bytes) -> _TaskEvent | None:
    """The task event in a payload; None if the payload is not an object with an event."""
    try:
        return _decode_event(payload)
    except msgspec.ValidationError as error:
        if b'"task.' in payload:
            raise InvalidRequest(f"this report cannot be understood: {error}") from None
        return None


def _is_task(message: LeasedMessage) -> bool:
    event = message.event
    return not isinstance(event, UnsetType) and brings_task(bytes(event))


def brings_task(event: bytes) -> bool:
    """Whether mail contains a task from before the hub ran its agent; a session executes it."""
    return b'"kind":"task_create"' in event


def encode_content(type: str, payload: bytes) -> bytes:
    """A message of the hub as the content of mail."""
    return msgspec.json.encode(_HubPayload(type, Raw(payload)))


def decode_content(content: bytes) -> tuple[str, Raw]:
    """The type and the payload of mail, which another client may have sent without a type."""
    try:
        inner: Any = _decode_hub_payload(content)
    except msgspec.ValidationError:
        return "message", Raw(content)
    return inner.type, inner.payload


def _view_message(message: LeasedMessage) -> HubMessage:
    type, payload = decode_content(bytes(message.payload))
    head = (message.msg_id, message.created_at * 1000, message.from_, message.to)
    return HubMessage(*head, type, payload)
