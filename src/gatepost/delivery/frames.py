"""The frames that two gateways exchange over a link.

Either side reads the other's outbox: it subscribes from its position, gets events as long as its
credit lasts, and confirms the events it has stored, which renews the credit. Frames are MessagePack
arrays; events travel as the exact bytes that were hashed.
"""

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from gatepost.errors import LinkError
from gatepost.events import Signature
from gatepost.events.chain import ChainHash
from gatepost.events.ids import Digest
from gatepost.ledger import TERMS
from gatepost.proof.proof_file import MAX_GROUPS, MAX_SEEN, ProvenGroup, SeenHead

VERSION = 1
# No frame is larger than this, unless a single event or the proof of a single group is.
FRAME_BYTES = 256 * 1024
FRAME_EVENTS = 1024
PIECE_BYTES = 256 * 1024
TRACE_STEPS = 1000
LOG_BYTES = 64 * 1024
_GROUP_BYTES = 160
# To take an event costs as much as several messages of local agents.
_EVENT_WORK = 4

FrameName = Annotated[str, Meta(min_length=1, max_length=128)]
FrameNumber = Annotated[int, Meta(ge=0, le=2**53 - 1)]
StepText = Annotated[str, Meta(max_length=4096)]
Incarnation = tuple[FrameName, FrameNumber]  # an incarnation and its first seq
Position = tuple[FrameName, FrameName, FrameNumber]  # source, incarnation, how far it is read
IncarnationList = Annotated[list[Incarnation], Meta(min_length=1, max_length=1000)]
PositionList = Annotated[list[Position], Meta(max_length=20_000)]
RawEventId = Annotated[bytes, Meta(min_length=16, max_length=16)]
FrameNames = Annotated[list[FrameName], Meta(max_length=10_000)]
# How many messages a gateway sent, and how many of them are in each term of its ledger.
LedgerCounts = Annotated[list[FrameNumber], Meta(max_length=len(TERMS) + 1)]


class LinkFrame(Struct, frozen=True, array_like=True, tag=True):
    """One message of a link."""


class HelloFrame(LinkFrame, frozen=True, tag="hello"):
    """The sender's node id, the incarnations and length of its outbox, and its clock."""

    node: FrameName
    incarnations: IncarnationList
    head: FrameNumber
    now: FrameNumber
    version: int = VERSION


class SubscribeFrame(LinkFrame, frozen=True, tag="subscribe"):
    """Asks for the events of the peer's outbox that are for the sender, after `positions`.

    `incarnation` is the sender's own. `restored`: its journal was restored, and the peer has not
    answered that yet.
    """

    incarnation: FrameName
    positions: PositionList
    window: FrameNumber
    restored: bool = False


class FollowFrame(LinkFrame, frozen=True, tag="follow"):
    """Asks for all of the peer's outbox with its heads, to keep it for others.

    A second one starts again from its positions; one with a window of 0 ends it.
    """

    positions: PositionList
    window: FrameNumber


class RelayFrame(LinkFrame, frozen=True, tag="relay"):
    """Asks a relay for the events of these other outboxes that are for the sender, with proof.

    A later one replaces `wants`. The window stays the one of the first.
    """

    positions: PositionList
    wants: FrameNames
    window: FrameNumber


class IncarnationsFrame(LinkFrame, frozen=True, tag="incarnations"):
    """The incarnations of an outbox, signed by its node. It answers Follow; relays forward it."""

    source: FrameName
    incarnations: IncarnationList
    signature: Signature


class ReadingFrame(LinkFrame, frozen=True, tag="reading"):
    """How far a reader has taken an outbox through a relay, signed by the reader.

    `incarnation` is the reader's own. The relay forwards it to the source, which may then prune.
    """

    reader: FrameName
    incarnation: FrameName
    source: FrameName
    source_incarnation: FrameName
    upto: FrameNumber
    signature: Signature


class CommitGroup(LinkFrame, frozen=True, tag="group"):
    """A commit group's signed head, the chain before it, and the digests of its events."""

    first: FrameNumber
    last: FrameNumber
    previous: ChainHash
    chain: ChainHash
    signature: Signature
    digests: bytes = b""


class EventsFrame(LinkFrame, frozen=True, tag="events"):
    """All events of one outbox incarnation for the reader, through `upto`.

    On the stream to a relay, `everyone` lists the events for all subscribers. Their envelopes look
    like those of events that stay with their own gateway. On the stream of the source itself,
    `confirmed` lists events of the reader's offers whose `confirm` comes behind `upto`: a reader
    that catches up need not wait for those signals. They cost no credit.
    """

    source: FrameName
    incarnation: FrameName
    first_seq: FrameNumber
    upto: FrameNumber
    now: FrameNumber
    events: Annotated[list[bytes], Meta(max_length=FRAME_EVENTS)]
    groups: Annotated[list[CommitGroup], Meta(max_length=FRAME_EVENTS)] = []
    stream: FrameName = "own"
    everyone: Annotated[list[FrameNumber], Meta(max_length=FRAME_EVENTS)] = []
    confirmed: Annotated[list[RawEventId], Meta(max_length=FRAME_EVENTS)] = []


class TakenFrame(LinkFrame, frozen=True, tag="taken"):
    """The reader has stored events up to `upto`, and gives back `size` bytes of credit."""

    source: FrameName
    incarnation: FrameName
    upto: FrameNumber
    size: FrameNumber
    stream: FrameName = "own"


class SkipFrame(LinkFrame, frozen=True, tag="skip"):
    """The emitter no longer has the reader's events through `upto`; `why` is the reason."""

    source: FrameName
    incarnation: FrameName
    first_seq: FrameNumber
    upto: FrameNumber
    why: FrameName


class BlobRequest(LinkFrame, frozen=True, tag="blob_ask"):
    """Asks for a range of a blob of `source`.

    Through a relay, the `reader` signs that it wants this blob of this source.
    """

    source: FrameName
    digest: Digest
    offset: FrameNumber
    length: FrameNumber
    reader: FrameName | None = None
    signature: Annotated[bytes, Meta(max_length=64)] = b""


class BlobPiece(LinkFrame, frozen=True, tag="blob_piece"):
    """A range of a blob. `total` is the size of the whole blob as stored; 0 if it is not there."""

    source: FrameName
    digest: Digest
    offset: FrameNumber
    total: FrameNumber
    data: bytes


class TraceStep(Struct, frozen=True, array_like=True):
    """One fact that a gateway knows about an event, dated by its own clock; never a payload.

    `peer` is the other gateway concerned: the one it went to, or came from.
    """

    at: FrameNumber
    what: FrameName
    event_id: FrameName
    kind: StepText = ""
    agent: StepText = ""
    to_agent: StepText = ""
    peer: StepText = ""
    detail: StepText = ""


class TraceRequest(LinkFrame, frozen=True, tag="trace_ask"):
    """Asks for all steps of these events that concern the asker.

    The asker is the sender of this frame. Through a relay, `asker` asks `target` and signs that.
    With `proof`, it asks for the evidence of the first event too, and whether the target saw these
    `heads`. With `ledger`, it asks for the counts of the target's ledger, now or as they were
    `at` a moment. An older gateway answers without evidence and without counts.
    """

    id: FrameNumber
    event_ids: Annotated[list[FrameName], Meta(min_length=1, max_length=64)]
    target: FrameName | None = None
    asker: FrameName | None = None
    signature: Annotated[bytes, Meta(max_length=64)] = b""
    proof: bool = False
    heads: Annotated[list[Position], Meta(max_length=MAX_GROUPS)] = []
    ledger: bool = False
    at: FrameNumber = 0


class TraceAnswer(LinkFrame, frozen=True, tag="trace_answer"):
    """`now` is the answerer's clock, by which the steps are dated.

    An answer through a relay is signed. `problem` says why a relay has none. Each of the `groups`
    and `seen` heads is signed for itself.
    """

    id: FrameNumber
    now: FrameNumber
    steps: Annotated[list[TraceStep], Meta(max_length=TRACE_STEPS)]
    signature: Annotated[bytes, Meta(max_length=64)] = b""
    problem: Annotated[str, Meta(max_length=300)] = ""
    groups: Annotated[list[ProvenGroup], Meta(max_length=MAX_GROUPS)] = []
    seen: Annotated[list[SeenHead], Meta(max_length=MAX_SEEN)] = []
    ledger: LedgerCounts = []


class LogRequest(LinkFrame, frozen=True, tag="log_ask"):
    """Asks for a piece of the log of a task that the sender requested, by its request's event.

    A negative offset counts from the end.
    """

    id: FrameNumber
    task_id: FrameName
    offset: Annotated[int, Meta(ge=-(2**53 - 1), le=2**53 - 1)]


class LogAnswer(LinkFrame, frozen=True, tag="log_answer"):
    """A piece of a log from `offset` on, and the states of its task and session.

    `is_complete`: nothing follows. `is_busy`: ask again later. `problem` says why there is none.
    """

    id: FrameNumber
    offset: FrameNumber = 0
    data: Annotated[bytes, Meta(max_length=LOG_BYTES)] = b""
    is_complete: bool = False
    state: Annotated[str, Meta(max_length=32)] = ""
    session_state: Annotated[str, Meta(max_length=32)] = ""
    is_busy: bool = False
    problem: Annotated[str, Meta(max_length=300)] = ""


class ReachRequest(LinkFrame, frozen=True, tag="reach_ask"):
    """Asks the peer to connect to the address that the room has for the sender."""

    id: FrameNumber


class ReachAnswer(LinkFrame, frozen=True, tag="reach_answer"):
    """Whether the peer reached the asker, with its own clock and version.

    `has_address`: the room has an address for the asker. `problem` says why it was not reached.
    """

    id: FrameNumber
    now: FrameNumber
    version: Annotated[str, Meta(max_length=64)] = ""
    has_address: bool = False
    problem: Annotated[str, Meta(max_length=500)] = ""
    is_busy: bool = False


AnyFrame = (
    HelloFrame
    | SubscribeFrame
    | FollowFrame
    | RelayFrame
    | IncarnationsFrame
    | ReadingFrame
    | EventsFrame
    | TakenFrame
    | SkipFrame
    | BlobRequest
    | BlobPiece
    | TraceRequest
    | TraceAnswer
    | LogRequest
    | LogAnswer
    | ReachRequest
    | ReachAnswer
)

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(AnyFrame)


def frame_weight(frame: EventsFrame) -> int:
    """The bytes of credit that a frame costs its reader."""
    proof = sum(len(group.digests) + _GROUP_BYTES for group in frame.groups)
    return sum(map(len, frame.events)) + proof


def frame_work(frame: EventsFrame) -> int:
    """The share of a commit group that a frame of events takes."""
    return 1 + _EVENT_WORK * (len(frame.events) + len(frame.confirmed))


def encode_frame(frame: LinkFrame) -> bytes:
    return _encoder.encode(frame)


def decode_frame(data: bytes) -> AnyFrame:
    """Decode one frame; any malformed input raises LinkError and nothing else."""
    try:
        frame: AnyFrame = _decoder.decode(data)
    except (ValueError, RecursionError) as error:
        raise LinkError(f"not a frame of a link: {error}") from None
    return frame
