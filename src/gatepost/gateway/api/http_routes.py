"""HTTP routes of the local API: mailboxes, dead letters, messages, agents and blobs."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from litestar import Response, Router
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromQuery, JSONBody
from litestar.response import Stream
from msgspec import Struct, field

from gatepost.archive.service.archived_messages import read_archived_journey
from gatepost.delivery.blob_records import stored_key
from gatepost.delivery.sent_messages import is_reached
from gatepost.errors import InvalidRequest, UnknownBlob, UnknownMessage
from gatepost.events import Envelope, check_agent_id, check_digest, check_msg_id
from gatepost.gateway.api.blob_upload import BlobUploads
from gatepost.gateway.api.operations import Operations, operation_weight
from gatepost.journal.audit import list_audit_entries
from gatepost.journal.outbox import read_journey
from gatepost.listening.connected_requests import while_connected
from gatepost.listening.json_input import decode_json
from gatepost.listening.route_decorators import ERROR_RESPONSES, delete, get, post, put
from gatepost.listening.route_parameters import (
    AnyRequest,
    OptionalFlag,
    OptionalText,
    PageSize,
    PathName,
    QueryText,
    WaitSecs,
)
from gatepost.mailbox import browse
from gatepost.mailbox.dead_letters import DeadLetterFilter
from gatepost.wire.frame_types import Op
from gatepost.wire.gateway_views import AgentInfo, AuditEntry, MailboxCounts, StoredBlob
from gatepost.wire.operations import (
    Ack,
    AgentRole,
    Await,
    Awaited,
    Consumer,
    Count,
    DeadLetter,
    DeadLetters,
    Dequeue,
    Done,
    Enqueue,
    EnqueueAck,
    Enqueued,
    Extend,
    LeaseHandles,
    Limit,
    Messages,
    MsgIds,
    Nack,
    NewMessage,
    NewSend,
    Operation,
    Peek,
    Reason,
    Register,
    Replies,
    ReplyRefs,
    Send,
    SendCheck,
    SendResults,
    Sent,
    Settled,
    Subscribe,
    Summaries,
    Unsubscribe,
    Wait,
)

T = TypeVar("T")

OPERATIONS_PATH = "/v1/operations"
_operation_decoder: msgspec.json.Decoder[Op] = msgspec.json.Decoder(Operation)

_BATCH_SIZE = msgspec.Meta(min_length=1, max_length=1000)
_NOT_REACHED_YET = ResponseSpec(
    Sent,
    description="Sent, but the wanted state is not reached yet.",
    generate_examples=False,
)


class EnqueueBatch(Struct, forbid_unknown_fields=True):
    messages: Annotated[list[NewMessage], _BATCH_SIZE]


class SendBatch(Struct, forbid_unknown_fields=True):
    messages: Annotated[list[NewSend], _BATCH_SIZE]


class DequeueBody(Struct, forbid_unknown_fields=True):
    limit: Limit = 1
    wait_secs: Wait = 0.0
    consumer: Consumer = ""


class AckBody(Struct, forbid_unknown_fields=True):
    receipts: LeaseHandles = field(default_factory=list)
    msg_ids: MsgIds = field(default_factory=list)
    replies: Replies = field(default_factory=dict)
    reply_refs: ReplyRefs = field(default_factory=dict)


class NackBody(Struct, forbid_unknown_fields=True):
    receipts: LeaseHandles = field(default_factory=list)
    msg_ids: MsgIds = field(default_factory=list)
    reason: Reason = ""
    retry: bool = True


class ExtendBody(Struct, forbid_unknown_fields=True):
    receipts: LeaseHandles


class DeadLetterReplayBody(DeadLetterFilter):
    limit: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 1000
    rate_per_sec: Annotated[float, msgspec.Meta(ge=0.01, le=1e6)] | None = None


def create_router(operations: Operations) -> Router:
    """Build the router for everything under /v1 except the WebSocket."""
    handlers = [
        *_mailbox_routes(operations),
        *_dead_letter_routes(operations),
        *_message_routes(operations),
        *_agent_routes(operations),
        *_blob_routes(operations),
        _operation_route(operations),
    ]
    return Router("/v1", route_handlers=handlers)


def _mailbox_routes(operations: Operations) -> list[Any]:
    @post("/enqueue", status_code=200, summary="Put one message into a mailbox")
    async def enqueue(data: JSONBody[NewMessage]) -> EnqueueAck:
        reply: Enqueued = await operations.perform(Enqueue(messages=[data]))
        (ack,) = reply.results
        if ack.error is not None:
            raise ack.error.to_error()
        return ack

    @post("/enqueue/batch", status_code=200, summary="Put messages into mailboxes")
    async def enqueue_batch(data: JSONBody[EnqueueBatch]) -> Enqueued:
        operations.bucket.take_tokens(len(data.messages))
        reply: Enqueued = await operations.perform(Enqueue(messages=data.messages))
        return reply

    @post("/mailboxes/{mailbox:str}/dequeue", status_code=200, summary="Lease mail")
    async def dequeue(
        mailbox: PathName, data: JSONBody[DequeueBody], request: AnyRequest
    ) -> Messages:
        op = Dequeue(mailbox=check_agent_id(mailbox), limit=data.limit)
        op.wait_secs, op.consumer = data.wait_secs, data.consumer
        reply: Messages = await while_connected(request, operations.perform(op))
        return reply

    @post("/mailboxes/{mailbox:str}/ack", status_code=200, summary="End turns")
    async def ack(mailbox: PathName, data: JSONBody[AckBody]) -> Settled:
        op = Ack(mailbox=check_agent_id(mailbox), receipts=data.receipts)
        op.msg_ids, op.replies, op.reply_refs = data.msg_ids, data.replies, data.reply_refs
        return _raise_single_failure(await operations.perform(op))

    @post("/mailboxes/{mailbox:str}/nack", status_code=200, summary="Fail turns")
    async def nack(mailbox: PathName, data: JSONBody[NackBody]) -> Settled:
        op = Nack(mailbox=check_agent_id(mailbox), receipts=data.receipts)
        op.msg_ids, op.reason, op.retry = data.msg_ids, data.reason, data.retry
        return _raise_single_failure(await operations.perform(op))

    @post("/mailboxes/{mailbox:str}/extend", status_code=200, summary="Keep leases alive")
    async def extend(mailbox: PathName, data: JSONBody[ExtendBody]) -> Settled:
        op = Extend(mailbox=check_agent_id(mailbox), receipts=data.receipts)
        return _raise_single_failure(await operations.perform(op))

    @get("/mailboxes", summary="Every mailbox and what it holds")
    async def mailboxes() -> list[MailboxCounts]:
        rows = await operations.core.read(browse.mailbox_counts)
        return [MailboxCounts(*row) for row in rows]

    @get("/mailboxes/{mailbox:str}", summary="Look at a mailbox's unsettled mail")
    async def peek(mailbox: PathName, limit: PageSize = 100, after: QueryText = "") -> Summaries:
        op = Peek(mailbox=check_agent_id(mailbox), limit=limit, after=after)
        reply: Summaries = await operations.perform(op)
        return reply

    @delete(
        "/mailboxes/{mailbox:str}", status_code=200, summary="Turn waiting mail to dead letters"
    )
    async def purge(mailbox: PathName) -> Count:
        return Count(count=await operations.mailboxes.purge(check_agent_id(mailbox), "operator"))

    return [enqueue, enqueue_batch, dequeue, ack, nack, extend, mailboxes, peek, purge]


def _dead_letter_routes(operations: Operations) -> list[Any]:
    folder = "/mailboxes/{mailbox:str}/dead-letters"

    @get(folder, summary="List dead letters")
    async def letters(
        mailbox: PathName,
        limit: PageSize = 100,
        after: QueryText = "",
        sender: OptionalText = None,
        reason_contains: OptionalText = None,
        replayed: OptionalFlag = None,
    ) -> DeadLetters:
        wanted = DeadLetterFilter(sender=sender, reason_contains=reason_contains, replayed=replayed)
        found = await operations.dead_letters.find(check_agent_id(mailbox), wanted, limit, after)
        return DeadLetters(messages=found)

    @get(folder + "/{msg_id:str}", summary="Show one dead letter")
    async def letter(mailbox: PathName, msg_id: PathName) -> DeadLetter:
        wanted = DeadLetterFilter(msg_ids=[check_msg_id(msg_id)])
        found = await operations.dead_letters.find(check_agent_id(mailbox), wanted, 1)
        if not found:
            raise UnknownMessage(f"no dead letter {msg_id} in {mailbox}")
        return found[0]

    @post(folder + "/replay", status_code=200, summary="Send dead letters again")
    async def replay(
        mailbox: PathName, data: JSONBody[DeadLetterReplayBody], request: AnyRequest
    ) -> Enqueued:
        name, rate = check_agent_id(mailbox), data.rate_per_sec
        work = operations.dead_letters.replay(name, data, data.limit, rate, "operator")
        return Enqueued(results=await while_connected(request, work))

    @post(folder + "/discard", status_code=200, summary="Give up dead letters for good")
    async def discard(mailbox: PathName, data: JSONBody[DeadLetterFilter]) -> Count:
        name = check_agent_id(mailbox)
        return Count(count=await operations.dead_letters.discard(name, data, "operator"))

    @delete(folder, status_code=200, summary="Give up all dead letters of a mailbox")
    async def purge_dead_letters(mailbox: PathName) -> Count:
        return Count(
            count=await operations.dead_letters.discard(
                check_agent_id(mailbox), DeadLetterFilter(), "operator"
            )
        )

    @get("/audit", summary="Audit log of manual actions, newest first")
    async def audit(limit: PageSize = 100) -> list[AuditEntry]:
        rows = await operations.core.read(lambda tx: list_audit_entries(tx, limit))
        return [AuditEntry(*row) for row in rows]

    return [letters, letter, replay, discard, purge_dead_letters, audit]


def _message_routes(operations: Operations) -> list[Any]:
    @post(
        "/messages",
        status_code=200,
        responses={**ERROR_RESPONSES, 202: _NOT_REACHED_YET},
        summary="Send a message to one or several agents; may wait for the outcome",
    )
    async def send(
        data: JSONBody[NewSend],
        request: AnyRequest,
        wait: FromQuery[Literal["accepted", "processed"] | None] = None,
        timeout: WaitSecs = 30.0,
    ) -> Response[Sent]:
        operation = Send(messages=[data])
        operations.bucket.take_tokens(operation_weight(operation) - 1)
        reply: SendResults = await operations.perform(operation)
        (sent,) = reply.results
        if sent.error is not None:
            raise sent.error.to_error()
        if wait is None:
            return Response(sent)
        work = operations.sends.wait_for_receipts(sent, wait, timeout)
        sent = await while_connected(request, work)
        copies = [copy for copy in sent.copies or [sent] if copy.error is None]
        reached = all(is_reached(copy, wait) for copy in copies)
        return Response(sent, status_code=200 if reached else 202)

    @post("/messages/batch", status_code=200, summary="Send messages to agents")
    async def send_batch(data: JSONBody[SendBatch]) -> SendResults:
        operation = Send(messages=data.messages)
        operations.bucket.take_tokens(operation_weight(operation))
        reply: SendResults = await operations.perform(operation)
        return reply

    @post("/messages/check", status_code=200, summary="Would these messages be sent? Sends none")
    async def check(data: JSONBody[SendCheck]) -> SendResults:
        operations.bucket.take_tokens(len(data.messages))
        return SendResults(results=await operations.sends.check_sends(data))

    @get("/messages/{event_id:str}", summary="The outcome of a message; may wait for it")
    async def message(
        event_id: PathName,
        request: AnyRequest,
        wait_secs: WaitSecs = 0.0,
        until: FromQuery[Literal["accepted", "processed"]] = "processed",
    ) -> Sent:
        op = Await(event_id=event_id, wait_secs=wait_secs, until=until)
        reply: Awaited = await while_connected(request, operations.perform(op))
        return reply.result

    @get("/messages/{event_id:str}/trace", summary="The events of a message's journey")
    async def trace(event_id: PathName) -> list[Envelope]:
        found = await operations.core.read(lambda tx: read_journey(tx, event_id))
        found = found or await read_archived_journey(operations.core.archive, event_id)
        if not found:
            raise UnknownMessage(f"no event {event_id} in this gateway's outbox or archive")
        return found

    return [send, send_batch, check, message, trace]


def _agent_routes(operations: Operations) -> list[Any]:
    core = operations.core

    @get("/agents", summary="Agents this gateway answers for")
    async def agents() -> list[AgentInfo]:
        found = await core.read(core.agents.list)
        return [core.delivery.transfers.describe_agent(each) for each in found]

    @put("/agents/{agent:str}", summary="Register an agent")
    async def register(
        agent: PathName,
        request: AnyRequest,
        standby: FromQuery[bool] = False,
        role: FromQuery[AgentRole | None] = None,
        order: FromQuery[Literal["fifo", "none"] | None] = None,
    ) -> AgentInfo:
        name = check_agent_id(agent)
        if await request.body() not in (b"", b"{}", b"null"):
            raise InvalidRequest(
                "give `standby`, `role` and `order` as query parameters, not in a body"
            )
        await operations.perform(Register(agent=name, standby=standby, role=role, order=order))
        found = await core.read(lambda tx: core.agents.get(tx, name))
        return core.delivery.transfers.describe_agent(found)

    @delete("/agents/{agent:str}", status_code=200, summary="Remove an agent; its mail is kept")
    async def remove(agent: PathName) -> Count:
        name = check_agent_id(agent)
        await core.commit(lambda tx: core.agents.remove(tx, name, "operator"))
        return Count(count=await operations.mailboxes.purge(name, "agent removal"))

    @get("/aliases", summary="The agent of each alias at this gateway")
    async def aliases() -> dict[str, str]:
        return await core.read(core.aliases.list_aliases)

    @put("/agents/{agent:str}/aliases/{alias:str}", summary="Give an agent an alias for senders")
    async def add_alias(agent: PathName, alias: PathName) -> dict[str, str]:
        names = check_agent_id(agent), check_agent_id(alias)
        await core.commit(lambda tx: core.aliases.add_alias(tx, *names))
        return {names[1]: names[0]}

    @delete("/aliases/{alias:str}", status_code=200, summary="Remove an alias")
    async def remove_alias(alias: PathName) -> Done:
        await core.commit(lambda tx: core.aliases.remove_alias(tx, check_agent_id(alias)))
        return Done()

    return [agents, register, remove, aliases, add_alias, remove_alias]


def _blob_routes(operations: Operations) -> list[Any]:
    core = operations.core
    uploads = BlobUploads(operations)

    @post("/blobs", status_code=201, request_max_body_size=None, summary="Store a large payload")
    async def upload(request: AnyRequest) -> StoredBlob:
        digest, size = await uploads.store_body(request.stream())
        return StoredBlob(digest, size)

    @get("/blobs/{digest:str}", media_type="application/octet-stream", summary="Fetch a payload")
    async def download(digest: PathName) -> Stream:
        key = await core.read(lambda tx: stored_key(tx, check_digest(digest)))
        if key is None:
            raise UnknownBlob(f"no blob {digest} on this gateway")
        chunks: Iterator[bytes] = core.blobs.read_payload(digest, key)
        return Stream(chunks, media_type="application/octet-stream")

    return [upload, download]


def _operation_route(operations: Operations) -> Any:
    path = OPERATIONS_PATH.removeprefix("/v1")

    @post(path, status_code=200, summary="Do an operation, as over the WebSocket")
    async def operate(request: AnyRequest) -> Response[bytes]:
        op = decode_operation(await request.body())
        # The request itself has taken one token.
        operations.bucket.take_tokens(operation_weight(op) - 1)
        answer = await while_connected(request, operations.perform(op))
        return Response(msgspec.json.encode(answer), media_type="application/json")

    return operate


def decode_operation(body: bytes) -> Op:
    """The operation in the body of a request; operations that push are refused."""
    op = decode_json(_operation_decoder, body)
    if isinstance(op, Subscribe | Unsubscribe):
        raise InvalidRequest("nothing is pushed over HTTP: use `dequeue` with `wait_secs`")
    return op


def _raise_single_failure(reply: Settled) -> Settled:
    """Raise the failure of a request for one message; a batch reports failures in its reply."""
    if not reply.settled and len(reply.failures) == 1:
        raise reply.failures[0].to_error()
    return reply
