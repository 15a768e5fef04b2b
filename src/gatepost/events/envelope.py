"""The envelope around every event, and the clear payloads: receipt, dead letter, signal."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from gatepost.events.ids import AgentId, Digest, EventId, MsgId, NodeId
from gatepost.events.kinds import EventKind

# The largest integer that every JSON reader, JavaScript included, represents exactly.
MAX_JSON_INT = 2**53 - 1

EpochMs = Annotated[int, Meta(ge=0, le=MAX_JSON_INT)]
Seq = Annotated[int, Meta(ge=1, le=MAX_JSON_INT)]
NonNegativeInt = Annotated[int, Meta(ge=0, le=MAX_JSON_INT)]
KindName = Annotated[str, Meta(min_length=1, max_length=64)]
Reason = Annotated[str, Meta(min_length=1, max_length=1024)]
Priority = Annotated[int, Meta(ge=0, le=1000)]
Label = Annotated[str, Meta(max_length=256)]
# The order of a sender's messages in a mailbox: first in, first out, or none.
Order = Literal["fifo", "none"]
MaxRetries = Annotated[int, Meta(ge=0, le=1000)]
# The subject of a message, for people. It is not encrypted.
Subject = Annotated[str, Meta(min_length=1, max_length=200)]

# The time of a draft. No event is that old.
NOT_WRITTEN = -1


class PayloadRef(Struct, frozen=True, rename="camel"):
    """A payload too large for its event: an encrypted blob, and its content key per recipient."""

    digest: Digest
    size: NonNegativeInt
    keys: dict[str, bytes]


class Trace(
    Struct,
    frozen=True,
    kw_only=True,
    rename="camel",
    omit_defaults=True,
    forbid_unknown_fields=True,
):
    """How the event was routed, and its OpenTelemetry parent.

    Every new trace states its attempt, the first one too. Older gateways left it out.
    """

    attempt: NonNegativeInt | None = None
    route_decision: Label | None = None
    policy_version: NonNegativeInt | Label | None = None
    traceparent: Label | None = None


# The type of tasks by which gateways, never agents, distribute delegation skills.
SKILL_DISTRIBUTION = "skill_distribution"


class TaskInfo(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The public part of a task: its capability, progress and outcome, but not its content.

    `root_id` is the id that its requester knows, in a request that has another one: another
    attempt, or one that was handed on.
    """

    capability_id: AgentId | None = None
    capability_version: Label | None = None
    delegation_skill_version: Label | None = None
    executor_skill_version: Label | None = None
    task_type: Label | None = None
    eta_at: EpochMs | None = None
    eta_seconds: NonNegativeInt | None = None
    progress: Annotated[float, Meta(ge=0, le=1)] | None = None
    failure_class: Label | None = None
    root_id: EventId | None = None


class Envelope(
    Struct,
    frozen=True,
    kw_only=True,
    rename="camel",
    omit_defaults=True,
    forbid_unknown_fields=True,
):
    """One event of an outbox; `(source_node_id, event_id)` is its identity everywhere.

    A gateway drafts its own event without seq, source and time. The outbox adds these when it
    writes the event; an event of another gateway that lacks them is malformed.

    `pair_seq` 0 means that the event is outside the order of any pair. All pair numbers before
    `pair_base` are closed, so a receiver does not wait for them. An event with the `order` none has
    no number. By the clock of its owner, the event is not engaged before `not_before`.
    `prev_seq_to` 0 means that no earlier event of this outbox was for the same recipient. If
    `offer` is not 0, the sender has to confirm the acceptance; the number tells the offers of one
    event apart. Forwarded mail names the first event of its message in `origin_event_id`, and
    in `origin_node_id` the gateway of that event, unless it is the source: a source numbers a pair
    for each origin anew. The struct forbids unknown fields so that the codec notices older field
    names; `codec.decode_event` still ignores unknown fields.
    """

    event_id: EventId
    seq: Seq = 0
    pair_seq: NonNegativeInt = 0
    pair_base: Seq = 1
    prev_seq_to: NonNegativeInt = 0
    source_node_id: NodeId = ""
    source_agent_id: AgentId
    to_node_id: NodeId | None = None
    to_agent_id: AgentId | None = None
    kind: KindName
    corr_id: MsgId | None = None
    ref_event_id: EventId | None = None
    causation_id: EventId | None = None
    origin_event_id: EventId | None = None
    origin_node_id: NodeId | None = None
    created_at: EpochMs = NOT_WRITTEN
    expires_at: EpochMs | None = None
    attempt: NonNegativeInt = 1
    priority: Priority = 0
    order: Order | None = None
    not_before: EpochMs | None = None
    max_retries: MaxRetries | None = None
    subject: Subject | None = None
    offer: NonNegativeInt = 0
    payload: Raw | UnsetType = UNSET
    payload_ref: PayloadRef | None = None
    task: TaskInfo | None = None
    trace: Trace | None = None

    @property
    def is_draft(self) -> bool:
        """Whether it lacks what the outbox adds."""
        return not self.seq or not self.source_node_id or self.created_at == NOT_WRITTEN

    @property
    def is_skill_distribution(self) -> bool:
        """Whether it requests a task by which a gateway distributes a delegation skill."""
        if self.kind != EventKind.TASK_CREATE or self.task is None:
            return False
        return self.task.task_type == SKILL_DISTRIBUTION


ReceiptStatus = Literal["accepted", "refused", "processed"]
TurnOutcome = Literal["ok", "dead_letter", "expired", "kept"]


class Receipt(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The payload of an `ack`: the fate of the event it refers to.

    The outcome `kept` is that of a reply without a turn: it is kept for the sender of the message,
    who waits for it or asks for it later. `replied` says that a reply was sent before this receipt;
    the delivery ends with that reply, which may have to wait for its blob. `offer` is the number of
    the offer that was accepted.
    """

    status: ReceiptStatus
    reason: Reason | None = None
    outcome: TurnOutcome | None = None
    eta_at: EpochMs | None = None
    eta_seconds: NonNegativeInt | None = None
    plan: str | None = None
    replied: bool = False
    offer: NonNegativeInt = 0

    def __post_init__(self) -> None:
        if (self.status == "processed") != (self.outcome is not None):
            raise ValueError("a receipt has an outcome exactly when its status is processed")
        if self.status == "refused" and self.reason is None:
            raise ValueError("a refused receipt needs a reason")


class DeadLetterNotice(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The payload of a `dead_letter`: why the sender gave up on the event it refers to.

    `pair_seq` is the pair number that this closes: the receiver stops waiting for an event that
    will never come.
    """

    reason: Reason
    detail: str | None = None
    attempts: NonNegativeInt = 0
    pair_seq: NonNegativeInt = 0


SignalName = Literal[
    "confirm",
    "withdraw",
    "pair_closed",
    "status_request",
    "report_request",
    "held",
    "expire",
    "restored",
    "resumed",
    "forgotten",
    "amended",
    "incident",
    "notice",
]


class Signal(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The payload of a `signal`: a note from one gateway to another about a delivery.

    `confirm` lets the receiver engage an offer it accepted, and `withdraw` takes an offer back;
    both refer to the event. `pair_closed` says that all events of the pair `from_agent` to
    `to_agent` up to and including pair number `through` are closed, on every gateway; with
    `origin_node_id`, those that were forwarded for that node.
    `status_request` asks for the receipts again; `expire` does too, and takes the event back while
    it is held. `report_request` asks for the last report of the task that the event it refers to
    requested. `held` says that the receiver has the event it refers to and cannot accept it yet,
    for `reason`. `restored` says that the journal of the sender was restored: it is the incarnation
    `text` now, and has read the incarnation `incarnation` of the receiver's outbox up to `through`.
    `resumed` answers: everything that the lost journal may have heard of is given up, up to event
    `through`, and the events behind that are new to it. `forgotten` answers `held`: the journal of
    the sender was restored to a time before the event it refers to. `amended` is for the archive of
    its gateway alone: an event that was given up had its turn, and ended as `reason` says.
    """

    signal: SignalName | Label
    reason: Reason | None = None
    pair_seq: NonNegativeInt = 0
    from_agent: AgentId | None = None
    to_agent: AgentId | None = None
    origin_node_id: NodeId | None = None
    through: NonNegativeInt = 0
    text: Label | None = None
    incarnation: Label | None = None
