"""What travels: the envelope around every event, and the clear payloads of receipts."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from gatepost.events.ids import AgentId, Digest, EventId, MsgId, NodeId

# Every JSON reader, JavaScript included, holds integers up to here exactly.
MAX_INT = 2**53 - 1

EpochMs = Annotated[int, Meta(ge=0, le=MAX_INT)]
Seq = Annotated[int, Meta(ge=1, le=MAX_INT)]
Count = Annotated[int, Meta(ge=0, le=MAX_INT)]
KindName = Annotated[str, Meta(min_length=1, max_length=64)]
Reason = Annotated[str, Meta(min_length=1, max_length=1024)]
Priority = Annotated[int, Meta(ge=0, le=1000)]
Label = Annotated[str, Meta(max_length=256)]


class PayloadRef(Struct, frozen=True, rename="camel"):
    """A payload too large for its event: a sealed blob, and its content key for each recipient."""

    digest: Digest
    size: Count
    keys: dict[str, bytes]


class Trace(
    Struct,
    frozen=True,
    kw_only=True,
    rename="camel",
    omit_defaults=True,
    forbid_unknown_fields=True,
):
    """Why the event went where it went."""

    attempt: Count = 1
    route_decision: Label | None = None
    policy_version: Count | Label | None = None
    traceparent: Label | None = None


class TaskInfo(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What everyone may know of a task: which capability it asks for and how it goes, not what."""

    capability_id: AgentId | None = None
    capability_version: Label | None = None
    delegation_skill_version: Label | None = None
    executor_skill_version: Label | None = None
    task_type: Label | None = None
    eta_at: EpochMs | None = None
    eta_seconds: Count | None = None
    progress: Annotated[float, Meta(ge=0, le=1)] | None = None
    failure_class: Label | None = None


class Envelope(
    Struct,
    frozen=True,
    kw_only=True,
    rename="camel",
    omit_defaults=True,
    forbid_unknown_fields=True,
):
    """One event of an outbox; `(source_node_id, event_id)` is its identity everywhere.

    `pair_seq` 0 means outside any pair's order; everything before `pair_base` is settled, so nobody
    has to wait for it. `prev_seq_to` 0 says that nothing earlier in this outbox was meant for the
    same recipient. To an `offer`, `accepted` is an answer the sender has to confirm. Forbidding
    unknown fields is what lets the codec notice older spellings; `codec.decode` still ignores
    fields nobody knows.
    """

    event_id: EventId
    seq: Seq
    pair_seq: Count = 0
    pair_base: Seq = 1
    prev_seq_to: Count = 0
    source_node_id: NodeId
    source_agent_id: AgentId
    to_node_id: NodeId | None = None
    to_agent_id: AgentId | None = None
    kind: KindName
    corr_id: MsgId | None = None
    ref_event_id: EventId | None = None
    causation_id: EventId | None = None
    created_at: EpochMs
    expires_at: EpochMs | None = None
    attempt: Count = 1
    priority: Priority = 0
    offer: bool = False
    payload: Raw | UnsetType = UNSET
    payload_ref: PayloadRef | None = None
    task: TaskInfo | None = None
    trace: Trace | None = None


Status = Literal["accepted", "refused", "processed"]
Outcome = Literal["ok", "failed", "dead_letter", "expired"]


class Receipt(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The payload of an `ack`: what became of the event it refers to."""

    status: Status
    reason: Reason | None = None
    outcome: Outcome | None = None
    eta_at: EpochMs | None = None
    eta_seconds: Count | None = None
    plan: str | None = None

    def __post_init__(self) -> None:
        if (self.status == "processed") != (self.outcome is not None):
            raise ValueError("a receipt has an outcome exactly when its status is processed")
        if self.status == "refused" and self.reason is None:
            raise ValueError("a refused receipt needs a reason")


class DeadLetter(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The payload of a `dead_letter`: why the sender gave up on the event it refers to.

    `pair_seq` is the place in the pair's order that this closes, so that the receiver stops
    waiting for an event which will never come.
    """

    reason: Reason
    detail: str | None = None
    attempts: Count = 0
    pair_seq: Count = 0


SignalName = Literal["confirm", "withdraw", "pair_closed", "status_request", "incident", "notice"]


class Signal(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The payload of a `signal`: what two gateways tell each other about a delivery.

    `confirm` makes an accepted offer the receiver's to engage, and `withdraw` takes an offer back;
    both refer to the event. `pair_closed` says that of the pair `from_agent` to `to_agent` every
    number up to and with `through` is closed, at any node. `status_request` asks
    for the receipts again.
    """

    signal: SignalName | Label
    reason: Reason | None = None
    pair_seq: Count = 0
    from_agent: AgentId | None = None
    to_agent: AgentId | None = None
    through: Count = 0
    text: Label | None = None
