"""Decisions: what one part of the core wants another part to do.

A module of delivery changes its own tables and appends its own events, in the transaction it is
given. Changes that belong to another module are returned as decisions, and the coordinator applies
them. A decision is plain data, so a test can compare it.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from gatepost.delivery.delivery_table import OpenDelivery
from gatepost.delivery.outgoing import OutgoingEvent, SenderPair, TurnReply
from gatepost.events import Envelope, Receipt, Signal
from gatepost.routing import Route
from gatepost.wire.operations import EventInfo

# -- towards the receiver of this gateway


class OwnEvent(NamedTuple):
    """An event for this gateway itself was appended: take it in this transaction."""

    draft: Envelope


# -- towards the sender of this gateway


class ReceiptArrived(NamedTuple):
    """A receipt of `source` came, about the event `ref` of this gateway."""

    source: str
    ref: str
    receipt: Receipt


class HoldReported(NamedTuple):
    """`source` has the event `ref` of this gateway, and cannot accept it yet."""

    source: str
    ref: str
    why: str


class ReplyArrived(NamedTuple):
    """A reply of `source` came, which ends the delivery of `ref`."""

    source: str
    ref: str
    reply: TurnReply


class RerouteDelivery(NamedTuple):
    """Send a delivery, with its payload, to another node; ignored if it has changed since."""

    delivery: OpenDelivery
    route: Route


class GiveUpDelivery(NamedTuple):
    """Make a delivery a dead letter. `verdict` is the last known answer of its owner.

    Void if the delivery has changed since.
    """

    delivery: OpenDelivery
    reason: str
    detail: str
    verdict: str | None = None


class PairMoved(NamedTuple):
    """A number of a pair got another route: tell the pair's next node what is closed, if needed."""

    pair: SenderPair


class ReaderRestored(NamedTuple):
    """The journal of `node` was restored, and is `incarnation` now.

    It has read `own_incarnation` of our outbox up to `through`.
    """

    node: str
    incarnation: str
    own_incarnation: str
    through: int


class JournalLost(NamedTuple):
    """`node` has a new journal: the tasks that it executed are lost."""

    node: str


class NodeRevoked(NamedTuple):
    """`node` was revoked from the room: its requests to this gateway are void."""

    node: str


class ReaderResumed(NamedTuple):
    """Every message that the lost journal of `node` may have read is given up.

    Tell the node through which number each of its pairs is closed, and which events are new to it.
    """

    node: str
    incarnation: str


# -- the ends of deliveries and turns


class DeliveryAccepted(NamedTuple):
    """The first receipt counted, `elapsed` milliseconds after the event was emitted."""

    event_id: str
    kind: str
    elapsed: int


class DeliveryEnded(NamedTuple):
    """A delivery came to its end. `elapsed` is None if no receipt ended it: it was given up.

    `verdict` is what is known then of its last owner.
    """

    event_id: str
    pair: SenderPair
    outcome: str
    reason: str | None
    replies_to: str
    kind: str
    elapsed: int | None
    verdict: str | None = None


class EndAmended(NamedTuple):
    """A delivery that was given up was processed after all, `elapsed` ms after it was emitted."""

    event_id: str
    kind: str
    outcome: str
    reason: str | None
    elapsed: int


class VerdictArrived(NamedTuple):
    """The last owner answers about a delivery that was given up for `reason`."""

    event_id: str
    kind: str
    reason: str
    verdict: str


class TurnEnded(NamedTuple):
    """The turn with some mail ended: its sender gets the reply, if any, and the last receipt."""

    info: EventInfo
    from_agent: str
    to_agent: str
    outcome: Any
    reason: str | None = None
    reply: TurnReply | None = None


class ForwardMail(NamedTuple):
    """Mail left its mailbox and goes on to where its agent lives now, as `event`.

    `info` is None for mail that was merely enqueued here: its end is not reported.
    """

    event: OutgoingEvent
    route: Route
    msg_id: str
    info: EventInfo | None


class ForwardEnded(NamedTuple):
    """Mail that stood for the event `original` of `source` has ended elsewhere.

    Later events of its pair may be accepted here again.
    """

    source: str
    original: bytes


class MailOvertaken(NamedTuple):
    """A confirmed offer came into a mailbox after earlier mail of its pair was forwarded.

    It must go the same way at once, or it would overtake that mail here.
    """

    mailbox: str


# -- towards the rest of the gateway


class TransferSignal(NamedTuple):
    """Another gateway asks for an agent, or refuses to give one away."""

    source: str
    signal: Signal


class TaskRequested(NamedTuple):
    """Another gateway asks for a task of an agent of this gateway, or for the end of one."""

    source: str
    envelope: Envelope
    payload: bytes


class TaskReported(NamedTuple):
    """Another gateway reports on a task that was requested here. Its payload is still encrypted."""

    source: str
    envelope: Envelope


class TaskReportWanted(NamedTuple):
    """`source` asks what became of the task that its event `event_id` requested."""

    source: str
    event_id: str


class EventsSkipped(NamedTuple):
    """Events from `node` for this gateway are gone for good."""

    node: str


class BlobMissing(NamedTuple):
    """The source of a blob says that it does not have it."""

    digest: str


class BlobWanted(NamedTuple):
    """Fetch this blob: an event or a result waits for it."""

    digest: str
    source: str


class CheckWanted(NamedTuple):
    """Requests of `source` are held until their contents are checked."""

    source: str


class BlobArrived(NamedTuple):
    """A blob was fetched and verified."""

    digest: str


Decision = (
    OwnEvent
    | ReceiptArrived
    | HoldReported
    | ReplyArrived
    | RerouteDelivery
    | GiveUpDelivery
    | PairMoved
    | ReaderRestored
    | ReaderResumed
    | JournalLost
    | NodeRevoked
    | DeliveryAccepted
    | DeliveryEnded
    | EndAmended
    | VerdictArrived
    | TurnEnded
    | ForwardMail
    | ForwardEnded
    | MailOvertaken
    | TransferSignal
    | TaskRequested
    | TaskReported
    | TaskReportWanted
    | EventsSkipped
    | BlobMissing
    | BlobWanted
    | CheckWanted
)
Decisions = Sequence[Decision]
NOTHING: Decisions = ()

# The hub is told of requests and reports of tasks, of the ends of their mail and deliveries, of
# blobs, and of lost journals and lost events of other gateways. Mail with a task is forwarded to
# another gateway only if the hub returns no decisions about it.
TaskNotice = (
    TaskRequested
    | TaskReported
    | TaskReportWanted
    | EventsSkipped
    | DeliveryEnded
    | VerdictArrived
    | TurnEnded
    | ForwardMail
    | JournalLost
    | NodeRevoked
    | BlobArrived
)
