"""The tools of an agent. Each is one operation, or two, of the agent that calls."""

from typing import TypeVar

import msgspec
from msgspec import UNSET, Raw, UnsetType

from gatepost.access import Scope, require_scope
from gatepost.errors import InvalidRequest
from gatepost.mcp.server import tool_types as types
from gatepost.mcp.server.agent_desk import FollowedSend, MailInHand
from gatepost.mcp.server.fenced_text import Shown, payload_text
from gatepost.mcp.server.moments import format_moment
from gatepost.mcp.server.resource_names import blob_uri, mail_uri
from gatepost.mcp.server.tool_call import ToolCall
from gatepost.wire.operations import (
    Ack,
    Await,
    Awaited,
    Dequeue,
    EventInfo,
    Failure,
    LeasedMessage,
    Messages,
    Nack,
    NewSend,
    Peek,
    Send,
    SendResults,
    Sent,
    Settled,
    Summaries,
    Summary,
)

T = TypeVar("T")

_MAX_COUNTED = 100
_event_decoder = msgspec.json.Decoder(EventInfo)


async def whoami(call: ToolCall, _: types.NoArguments) -> types.WhoAmI:
    caller = call.caller
    shown = types.WhoAmI(caller.agent, call.services.node_id, [], caller.is_operator)
    if caller.session is None:
        return shown
    desk = call.desk
    shown.problem = desk.problem or ""
    shown.scopes = [str(scope) for scope in caller.session.scopes]
    shown.in_hand = list(desk.in_hand)
    shown.unanswered = [each.id for each in desk.followed.values() if not each.told]
    if Scope.MESSAGE_READ in caller.session.scopes:
        shown.waiting = len(await list_waiting(call))
    return shown


async def list_waiting(call: ToolCall) -> list[Summary]:
    """Mail that waits and can be taken now, without its bodies."""
    found: Summaries = await call.perform(Peek(mailbox=call.agent, limit=_MAX_COUNTED))
    return [each for each in found.messages if each.state == "pending" and not each.not_before]


async def find(call: ToolCall, given: types.FindArguments) -> types.Found:
    query = given.query.lower()
    if call.caller.session is not None:
        require_scope(call.caller.session, Scope.STATUS_READ)
    agents = [
        types.FoundAgent(each.id, each.node if call.caller.is_local else "", each.is_online)
        for each in await call.services.list_agents()
        if query in each.id.lower()
    ]
    capabilities = [
        types.FoundCapability(
            each.capability_id,
            list(each.eligible_agent_ids or (each.owner_agent_id,)),
            each.default_eta_seconds,
            call.fence.show_whole(each.name, each.owner_agent_id),
        )
        for each in call.services.list_capabilities()
        if query in each.capability_id.lower() or query in each.name.lower()
    ]
    cut = given.limit
    more = len(agents) > cut or len(capabilities) > cut
    return types.Found(agents[:cut], capabilities[:cut], more)


# -- send and request


async def send(call: ToolCall, given: types.SendArguments) -> types.SentMessage:
    new = _new_send(call, given.to, given.body, given.conversation, given.idempotency_key)
    if given.ttl_seconds is not None:
        new.ttl_secs = given.ttl_seconds
    sent = await _send_one(call, new)
    return types.SentMessage(
        sent.event_id,
        sent.to_agent or given.to,
        sent.state,
        sent.corr_id,
        next="It is on disk. An answer comes to your inbox; `trace` shows how far it is.",
    )


async def request(call: ToolCall, given: types.RequestArguments) -> types.SentMessage:
    """Send and wait for the answer, or wait again for that of an earlier request."""
    event_id, to = given.event_id, given.to or ""
    if not event_id:
        if given.to is None or given.body is None:
            raise InvalidRequest("give `to` and `body`, or the `event_id` of an earlier request")
        new = _new_send(call, given.to, given.body, given.conversation, given.idempotency_key)
        # The answer is returned here, and is not also mail.
        new.replies = "caller"
        event_id = (await _send_one(call, new)).event_id
    wait = given.wait_seconds
    async with call.reporting(wait, "waiting for the answer"):
        answer: Awaited = await call.perform(Await(event_id=event_id, wait_secs=wait))
    return show_outcome(call, answer.result, to or _recipient(call, event_id))


def _recipient(call: ToolCall, event_id: str) -> str:
    followed = call.desk.followed.get(event_id)
    return "" if followed is None else followed.to


def _new_send(
    call: ToolCall, to: str, body: types.Body, conversation: str, key: str | None
) -> NewSend:
    new = NewSend(call.agent, to, encode_body(body))
    new.corr_id = conversation or UNSET
    new.idempotency_key = key or UNSET
    return check_limits(new)


def check_limits(new: T) -> T:
    """Check all limits of a value, as a decoder does."""
    try:
        return msgspec.json.decode(msgspec.json.encode(new), type=type(new))
    except msgspec.ValidationError as error:
        raise InvalidRequest(str(error)) from None


def encode_body(body: types.Body) -> Raw:
    return Raw(msgspec.json.encode(body))


async def _send_one(call: ToolCall, new: NewSend) -> Sent:
    reply: SendResults = await call.perform(Send(messages=[new]))
    (sent,) = reply.results
    if sent.error is not None:
        raise sent.error.to_error()
    is_request = new.replies == "caller"
    call.desk.follow(FollowedSend(sent.event_id, new.to_agent, is_request=is_request))
    return sent


def show_outcome(call: ToolCall, sent: Sent, to: str) -> types.SentMessage:
    """The outcome of a message, and its answer. This counts as telling the agent its end."""
    author = name_author(sent.to_agent or to or "the receiver", sent.node, call)
    shown = types.SentMessage(sent.event_id, to, sent.state, sent.corr_id, sent.node or "")
    shown.outcome = sent.outcome or ""
    shown.reason = call.fence.show_whole(sent.reason or "", author)
    if sent.processed_at is None:
        shown.next = (
            "No answer yet. Go on with other work; to wait again, call `request` with this"
            " `event_id` alone. Do not send it again."
        )
        return shown
    if sent.reply_ref is not None:
        shown.resource = blob_uri(sent.reply_ref)
        shown.reply = f"the answer is long ({sent.reply_size} bytes): read the resource"
    elif not isinstance(sent.reply, UnsetType):
        shown.reply = call.fence.show_whole(payload_text(sent.reply), author)
    call.desk.note_told(sent.event_id, sent.outcome or sent.state)
    return shown


# -- the mailbox


async def inbox(call: ToolCall, given: types.InboxArguments) -> types.Inbox:
    """Take mail. The leases are extended until it is settled."""
    wait, desk = given.wait_seconds, call.desk
    op = Dequeue(mailbox=call.agent, limit=given.limit, wait_secs=wait)
    async with call.reporting(wait, "waiting for mail"):
        taken: Messages = await call.perform(op)
    shown = [_show_mail(call, each) for each in taken.messages]
    if shown:
        advice = "End each turn: `reply`, `ack` or `nack` with its handle, in this order."
    elif desk.in_hand:
        held = ", ".join(desk.in_hand)
        advice = f"No more mail. You still have mail in hand, settle it: {held}."
    else:
        advice = "No mail."
    return types.Inbox(shown, advice)


def _show_mail(call: ToolCall, message: LeasedMessage) -> types.TakenMail:
    event = None if isinstance(message.event, UnsetType) else _event_decoder.decode(message.event)
    node = None if event is None else event.origin_node or event.source_node
    sender = name_author(message.from_, node, call)
    shown, resource = _show_body(call, message, event, sender)
    kind = "message" if event is None else event.kind
    is_task = event is not None and kind == "task_create"
    task_id = (event.origin_event_id or message.msg_id) if is_task and event is not None else ""
    long_body = None if resource.startswith("gatepost://blob/") else shown.whole
    call.desk.take(MailInHand(message.receipt, message.msg_id, message.from_, task_id, long_body))
    mail = types.TakenMail(
        handle=message.receipt,
        message_id=message.msg_id,
        sender=sender,
        kind=kind,
        sent_at=format_moment(message.created_at * 1000),
        body=shown.text,
        attempt=message.attempt + 1,
        resource=resource,
        task_id=task_id,
    )
    if event is not None:
        mail.conversation, mail.in_reply_to = event.corr_id, event.ref_event_id or ""
    return mail


def _show_body(
    call: ToolCall, message: LeasedMessage, event: EventInfo | None, sender: str
) -> tuple[Shown, str]:
    """The body in its fence, and the resource that has it whole if it is long."""
    if event is not None and event.payload_ref is not None:
        note = f"the body is long ({event.size} bytes): read the resource"
        return Shown(note), blob_uri(event.payload_ref)
    shown = call.fence.show(payload_text(message.payload), sender)
    return shown, "" if shown.whole is None else mail_uri(message.receipt)


def name_author(agent: str, node: str | None, call: ToolCall) -> str:
    """An agent and the gateway that speaks for it, as the gateway here has verified both."""
    if "@" in agent or node is None or node == call.services.node_id:
        return agent
    return f"{agent}@{node}"


async def reply(call: ToolCall, given: types.ReplyArguments) -> types.Settled:
    op = Ack(mailbox=call.agent, receipts=[given.handle])
    op.replies = {given.handle: encode_body(given.body)}
    return _show_settled(call, await call.perform(op), [given.handle])


async def ack(call: ToolCall, given: types.AckArguments) -> types.Settled:
    op = Ack(mailbox=call.agent, receipts=given.handles)
    return _show_settled(call, await call.perform(op), given.handles)


async def nack(call: ToolCall, given: types.NackArguments) -> types.Settled:
    op = Nack(mailbox=call.agent, receipts=given.handles, reason=given.reason, retry=given.retry)
    return _show_settled(call, await call.perform(op), given.handles)


def _show_settled(call: ToolCall, settled: Settled, handles: list[str]) -> types.Settled:
    for handle in handles:
        call.desk.in_hand.pop(handle, None)
    if not settled.settled and len(settled.failures) == 1:
        raise settled.failures[0].to_error()
    return types.Settled(settled.settled, [_failure_text(each) for each in settled.failures])


def _failure_text(failure: Failure) -> str:
    return f"{failure.subject}: {failure.code}: {failure.message}"
