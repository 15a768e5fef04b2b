"""Messages of the hub: between agents by name, and to the hub itself.

A session that reports about its task does so by a message, whoever its recipient is: the payload's
`event` is `task.completed`, `task.failed` or `task.progress`.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from gatepost.delivery.send_request import fingerprint_payload, fingerprint_send
from gatepost.errors import Forbidden, GatepostError, InvalidRequest, PayloadTooLarge, PolicyDenied
from gatepost.events import AgentId, fingerprint_content
from gatepost.events.json_payload import check_json_text
from gatepost.gateway.api.mailbox_operations import MailboxOperations
from gatepost.gateway.api.tasks.task_views import (
    HubMessage,
    HubMessages,
    LoggedMessage,
    MessageLog,
    MessageResult,
    summarize_task,
)
from gatepost.gateway.core import Core
from gatepost.gateway.hub.hub_auth import HubAuth, HubCaller
from gatepost.hub.policy import Hub, PolicyAgent
from gatepost.hub.task_tokens import TaskToken
from gatepost.hub.tasks import Task, TaskPayload
from gatepost.journal import Tx
from gatepost.task_wire import ErrorCode, Note, Progress
from gatepost.wire import Dequeue, LeasedMessage, Messages, NewSend

HUB = "hub"

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
    """A message for an agent, or for the `hub`."""

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


_decode_event = msgspec.json.Decoder(_TaskEvent).decode
_decode_hub_payload = msgspec.json.Decoder(_HubPayload, strict=True).decode


class HubMessageService:
    def __init__(self, core: Core, auth: HubAuth, mailboxes: MailboxOperations) -> None:
        self._core = core
        self._auth = auth
        self._mailboxes = mailboxes
        # Token → the lease handles of the messages it got with its last call.
        self._handed_out: dict[str, list[str]] = {}

    # -- sending

    async def send(self, caller: HubCaller, new: NewHubMessage) -> MessageResult:
        result = await self._core.commit(lambda tx: self._send(tx, caller, new))
        if isinstance(result, GatepostError):
            raise result
        return result

    def _send(self, tx: Tx, caller: HubCaller, new: NewHubMessage) -> MessageResult | GatepostError:
        """Route one message. A refusal is returned, so that the note of it is committed."""
        id = self._core.node.event_ids.next_id()
        mark = tx.begin_operation()
        try:
            task = self._route(tx, caller, new, id)
        except GatepostError as error:
            tx.undo_operation(mark)
            self._log(tx, id, caller, new, "rejected", error.message)
            return error
        tx.keep_operation()
        self._log(tx, id, caller, new, "delivered", None)
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
        content = msgspec.json.encode(_HubPayload(new.type, Raw(payload)))
        send = NewSend(sender, new.recipient, Raw(content), event_id=id)
        mark = fingerprint_send(send, fingerprint_payload(send))
        self._core.coordinator.send(tx, send, mark)

    def _apply_event(self, tx: Tx, token: TaskToken, payload: bytes) -> Task | None:
        """Carry out what a payload says about the sender's own task, if it says anything."""
        event = _read_event(payload)
        if event is None or not event.event.startswith("task."):
            return None
        if event.task_id not in (None, token.task_id):
            raise Forbidden("a session reports about its own task only")
        executed = self._core.tasks.executed
        if event.event == "task.completed":
            result = b"null" if isinstance(event.result, UnsetType) else bytes(event.result)
            content = TaskPayload(result=result, mark=fingerprint_content(result))
            return executed.complete_task(tx, token.task_id, content)
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
        """Lease messages of the session's agent. The next call settles those of the one before."""
        await self.settle(token, "ack")
        op = Dequeue(
            mailbox=token.agent_name,
            limit=limit,
            wait_secs=wait_secs,
            consumer=f"task:{token.token_id}",
        )
        answer: Messages = await self._mailboxes.perform_dequeue(op)  # type: ignore[assignment]
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


def _read_event(payload: bytes) -> _TaskEvent | None:
    """What a payload says about a task; None if it is no object with an event."""
    try:
        return _decode_event(payload)
    except msgspec.ValidationError as error:
        if b'"task.' in payload:
            raise InvalidRequest(f"this report cannot be understood: {error}") from None
        return None


def _is_task(message: LeasedMessage) -> bool:
    """Whether mail brought a task from before the hub ran its agent: a session does that one."""
    event = message.event
    return not isinstance(event, UnsetType) and b'"kind":"task_create"' in bytes(event)


def _view_message(message: LeasedMessage) -> HubMessage:
    type, payload = "message", message.payload
    try:
        inner: Any = _decode_hub_payload(message.payload)
        type, payload = inner.type, inner.payload
    except msgspec.ValidationError:
        pass
    head = (message.msg_id, message.created_at * 1000, message.from_, message.to)
    return HubMessage(*head, type, payload)
