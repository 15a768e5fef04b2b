"""The mailbox protocol: messages, and the frames that carry operations over any transport.

A frame is one JSON object with an `op`, or an array of them. The same frames travel over
WebSocket, Unix socket and the drop folder; the HTTP routes answer with the same structs.
An answer carries the `id` of the operation it answers, as `re`.
"""

from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, field

from gatepost.errors import GatepostError, error_from_code
from gatepost.events.envelope import MaxRetries, Order, Subject
from gatepost.events.ids import AgentId, MsgId
from gatepost.wire.frame_types import Answer, Op
from gatepost.wire.tasks import (
    TaskAwait,
    TaskAwaited,
    TaskCancel,
    TaskCreate,
    TaskReports,
    TasksCreated,
    TasksReported,
)

PROTOCOL_VERSION = "1.0"

# The role of a node in the room: a backbone node may invite and revoke.
Tier = Literal["backbone", "edge"]

# The state of a message that has ended, and whose outcome this gateway no longer knows.
ARCHIVED = "archived"

# The progress of a message that its sender can wait for.
WaitGoal = Literal["accepted", "processed"]

Seconds = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Limit = Annotated[int, msgspec.Meta(ge=1, le=1000)]
Credit = Annotated[int, msgspec.Meta(ge=1, le=10_000)]
Wait = Annotated[float, msgspec.Meta(ge=0, le=3600)]
Ttl = Annotated[float, msgspec.Meta(gt=0, le=10 * 365 * 86_400)]
# Unix seconds, with or without a fraction, up to the year 9999.
Moment = Annotated[float, msgspec.Meta(ge=0, le=253_402_300_799)]
LeaseHandle = Annotated[str, msgspec.Meta(max_length=64)]
Reason = Annotated[str, msgspec.Meta(max_length=2000)]
Consumer = Annotated[str, msgspec.Meta(max_length=128)]
LeaseHandles = Annotated[list[LeaseHandle], msgspec.Meta(max_length=1000)]
MsgIds = Annotated[list[MsgId], msgspec.Meta(max_length=1000)]
Replies = dict[LeaseHandle, Raw]
ReplyRefs = dict[LeaseHandle, Annotated[str, msgspec.Meta(max_length=80)]]
Targets = Annotated[list[AgentId], msgspec.Meta(min_length=1, max_length=1000)]


class NewMessage(Struct, rename={"from_": "from"}, omit_defaults=True, forbid_unknown_fields=True):
    """A message from a sender.

    The mailbox protocol requires unknown fields of a message to be ignored, so a message with any
    is decoded again without them. `attempt` and `protocol_version` are for diagnostics.
    """

    is_open: ClassVar[bool] = True

    from_: AgentId
    to: AgentId
    payload: Raw
    msg_id: MsgId
    created_at: Seconds | UnsetType = UNSET
    attempt: Seconds = 0
    ttl_secs: Ttl | UnsetType = UNSET
    order: Order | UnsetType = UNSET
    not_before: Moment | UnsetType = UNSET
    max_retries: MaxRetries | UnsetType = UNSET
    protocol_version: Annotated[str, msgspec.Meta(max_length=16)] | UnsetType = UNSET


class LeasedMessage(Struct, rename={"from_": "from"}, omit_defaults=True):
    """A message for a consumer. `receipt` is its lease handle.

    `event` is set when the message came through `send`.
    """

    msg_id: str
    from_: str
    to: str
    payload: Raw
    created_at: int
    attempt: int
    receipt: str
    lease_secs: float = 0.0
    event: Raw | UnsetType = UNSET
    order: Order = "fifo"


class EventInfo(Struct, frozen=True, omit_defaults=True):
    """The event behind mail that came through `send`.

    `origin_event_id` is the event that its sender emitted, if this one was forwarded in its stead;
    `origin_node` is that event's gateway, if it is neither this one nor `source_node`. `task_id` is
    the id that the requester of a task knows, if this event has another one.
    """

    event_id: str
    kind: str
    corr_id: str
    ref_event_id: str | None = None
    traceparent: str | None = None
    payload_ref: str | None = None
    size: int | None = None
    source_node: str | None = None
    priority: int = 0
    origin_event_id: str | None = None
    origin_node: str | None = None
    order: Order | None = None
    not_before: int | None = None
    max_retries: int | None = None
    task_id: str | None = None
    subject: str | None = None


class Summary(Struct, rename={"from_": "from"}, omit_defaults=True):
    msg_id: str
    from_: str
    created_at: int
    attempt: int
    state: str
    size: int
    not_before: int | None = None
    order: Order = "fifo"
    subject: str | None = None


class DeadLetter(Struct, rename={"from_": "from"}, omit_defaults=True):
    msg_id: str
    from_: str
    to: str
    created_at: int
    attempt: int
    reason: str
    failed_at: int
    attempts: int
    payload: Raw | UnsetType = UNSET
    replayed_as: str | None = None
    order: Order = "fifo"
    max_retries: int | None = None
    subject: str | None = None


class Failure(Struct, omit_defaults=True):
    """An error on the wire. In a batch, `subject` is the msg_id or lease handle it is about."""

    code: str
    message: str
    subject: str = ""
    retry_after: float | None = None

    @classmethod
    def from_error(cls, error: GatepostError, subject: str = "") -> "Failure":
        return cls(error.code, error.message, subject, error.retry_after)

    def to_error(self) -> GatepostError:
        error = error_from_code(self.code, self.message)
        error.retry_after = self.retry_after
        return error


def decode_failure(body: bytes) -> GatepostError | None:
    """The error in the body of a refusal; None if no gateway wrote the body."""
    try:
        return msgspec.json.decode(body, type=Failure).to_error()
    except msgspec.MsgspecError:
        return None


class EnqueueAck(Struct, omit_defaults=True):
    """`queued` is false for a msg_id seen before, and for a message refused with `error`."""

    msg_id: str
    queued: bool
    pending: int
    error: Failure | None = None


# -- operations, client to gateway

AgentRole = Literal["coordinator", "maintenance", "worker"]


class Enqueue(Op):
    messages: Annotated[list[NewMessage], msgspec.Meta(min_length=1, max_length=1000)]


class Dequeue(Op):
    mailbox: AgentId
    limit: Limit = 1
    wait_secs: Wait = 0.0
    consumer: Consumer = ""


class Subscribe(Op):
    """Ask for mail as it comes, with at most `credit` unsettled messages at a time."""

    mailbox: AgentId
    credit: Credit = 64
    consumer: Consumer = ""


class Unsubscribe(Op):
    """Stop the subscription and release the messages that are not settled."""

    mailbox: AgentId


class Ack(Op):
    """Settle messages, named by `receipts` (lease handles) or `msg_ids`.

    `replies` maps a lease handle to the answer for its sender, `reply_refs` to the digest of an
    uploaded blob that holds the answer.
    """

    mailbox: AgentId
    receipts: LeaseHandles = field(default_factory=list)
    msg_ids: MsgIds = field(default_factory=list)
    replies: Replies = field(default_factory=dict)
    reply_refs: ReplyRefs = field(default_factory=dict)


class Nack(Op):
    """Fail turns. Without `retry` the messages are dead letters at once."""

    mailbox: AgentId
    receipts: LeaseHandles = field(default_factory=list)
    msg_ids: MsgIds = field(default_factory=list)
    reason: Reason = ""
    retry: bool = True


class Extend(Op):
    """Extend the leases of these lease handles, because the consumer is still working."""

    mailbox: AgentId
    receipts: LeaseHandles


class Peek(Op):
    mailbox: AgentId
    limit: Limit = 100
    after: str = ""


class Purge(Op):
    mailbox: AgentId


class PeekDeadLetter(Op, tag="peek_dead_letter"):
    mailbox: AgentId
    limit: Limit = 100
    after: str = ""


class PurgeDeadLetter(Op, tag="purge_dead_letter"):
    mailbox: AgentId


class NewSend(Struct, omit_defaults=True, forbid_unknown_fields=True):
    """A message for another agent, tracked until its turn has ended.

    `to_agents` instead of `to_agent` sends a copy to each of them, or with "*" to every agent but
    the sender. `replies` says where an answer goes: to the sender's `mailbox`, or to the waiting
    `caller`. Without `order` the mailbox decides. The turn begins at `not_before` or later, by the
    clock of the gateway that the agent lives behind. `subject` says in clear what it is about.
    """

    from_agent: AgentId
    to_agent: AgentId = ""
    payload: Raw | UnsetType = UNSET
    payload_ref: str | UnsetType = UNSET
    event_id: str | UnsetType = UNSET
    corr_id: MsgId | UnsetType = UNSET
    idempotency_key: MsgId | UnsetType = UNSET
    ttl_secs: Ttl | UnsetType = UNSET
    traceparent: Annotated[str, msgspec.Meta(max_length=64)] | UnsetType = UNSET
    replies: Literal["mailbox", "caller"] = "mailbox"
    priority: Annotated[int, msgspec.Meta(ge=0, le=1000)] | UnsetType = UNSET
    to_agents: Targets | Literal["*"] | UnsetType = UNSET
    order: Order | UnsetType = UNSET
    not_before: Moment | UnsetType = UNSET
    max_retries: MaxRetries | UnsetType = UNSET
    subject: Subject | UnsetType = UNSET


class SendCheck(Struct, forbid_unknown_fields=True):
    """Check whether messages would be sent. `left_out` has the sizes of payloads left out,
    by the index of their message.
    """

    messages: Annotated[list[NewSend], msgspec.Meta(min_length=1, max_length=1000)]
    left_out: dict[str, int] = {}


class Send(Op):
    messages: Annotated[list[NewSend], msgspec.Meta(min_length=1, max_length=1000)]


class Await(Op):
    """Wait until the message is accepted or processed, for at most `wait_secs`."""

    event_id: Annotated[str, msgspec.Meta(max_length=36)]
    wait_secs: Wait = 30.0
    until: WaitGoal = "processed"


class StatedSkill(Struct, frozen=True, forbid_unknown_fields=True):
    """An executor skill that an agent hosts: its id or path, and its version."""

    ref: Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
    version: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]


ExecutorSkills = Annotated[tuple[StatedSkill, ...], msgspec.Meta(max_length=256)]


class Register(Op):
    """Register an agent here. `standby`: another gateway owns it, and this one can stand in.

    `role` is for people, and `order` is the default order of its mail. With `takes_skills` it is
    asked to install delegation skills. `executor_skills` are those that it hosts. Fields that are
    not given change nothing.
    """

    agent: AgentId
    standby: bool = False
    role: AgentRole | None = None
    order: Order | None = None
    takes_skills: bool | None = None
    executor_skills: ExecutorSkills | None = None


Operation = (
    Enqueue
    | Dequeue
    | Subscribe
    | Unsubscribe
    | Ack
    | Nack
    | Extend
    | Peek
    | Purge
    | PeekDeadLetter
    | PurgeDeadLetter
    | Send
    | Await
    | Register
    | TaskCreate
    | TaskReports
    | TaskAwait
    | TaskCancel
)


# -- answers, gateway to client


class Enqueued(Answer):
    results: list[EnqueueAck]


class Messages(Answer):
    messages: list[LeasedMessage]


class Deliver(Answer):
    """Mail for a subscriber; it answers no particular operation."""

    mailbox: str
    messages: list[LeasedMessage]


class Settled(Answer):
    settled: int
    failures: list[Failure] = field(default_factory=list)


class Summaries(Answer):
    messages: list[Summary]


class DeadLetters(Answer):
    messages: list[DeadLetter]


class Count(Answer):
    count: int


class Sent(Struct, omit_defaults=True):
    """The state of one message at its sender's gateway; `error` if it was not sent.

    A message for several agents has one entry per agent in `copies`, each with its own `to_agent`
    and `event_id`; all of them share the `corr_id`. `sent_at` is the time of the send. For a
    message that was given up, `verdict` is the last known answer of its owner. A later receipt, at
    `verdict_at`, amends it: if the turn ended after all, that is the message's end. A reply too
    large to travel inline is the blob `reply_ref` at this gateway, of `reply_size` bytes.
    """

    event_id: str
    corr_id: str = ""
    state: str = ""
    node: str | None = None
    outcome: str | None = None
    reason: str | None = None
    accepted_at: int | None = None
    processed_at: int | None = None
    reply: Raw | UnsetType = UNSET
    error: Failure | None = None
    to_agent: str = ""
    sent_at: int | None = None
    verdict: str | None = None
    verdict_at: int | None = None
    copies: "list[Sent]" = field(default_factory=list)
    reply_ref: str | None = None
    reply_size: int | None = None

    def has_reached(self, goal: WaitGoal) -> bool:
        """Whether the message has reached the goal, or will make no further progress."""
        accepted = goal == "accepted" and self.accepted_at is not None
        ended = self.processed_at is not None or self.state == ARCHIVED
        return accepted or ended or self.error is not None


class SendResults(Answer, tag="sent"):
    results: list[Sent]


class Awaited(Answer):
    result: Sent


class Registered(Answer):
    """An agent is registered here. `problem` says why its mail goes elsewhere, and what to do."""

    problem: str = ""


class Done(Answer):
    pass


class Failed(Answer):
    error: Failure


AnyAnswer = (
    Enqueued
    | Messages
    | Deliver
    | Settled
    | Summaries
    | DeadLetters
    | Count
    | SendResults
    | Awaited
    | TasksCreated
    | TasksReported
    | TaskAwaited
    | Registered
    | Done
    | Failed
)
