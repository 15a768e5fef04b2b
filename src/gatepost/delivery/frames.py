"""What two gateways say to each other over a link.

Either side reads the other's outbox: it subscribes from where it is, gets events as long as it has
given credit for them, and says how far it has taken them, which gives new credit. Everything is
MessagePack; events travel as the very bytes their digests were taken of.
"""

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from gatepost.errors import LinkError
from gatepost.events.chain import Hash, Signature
from gatepost.events.ids import Digest

VERSION = 1
# No frame is larger than this, but for one event or one group's proof.
FRAME_BYTES = 256 * 1024
FRAME_EVENTS = 1024
PIECE_BYTES = 256 * 1024
TRACE_STEPS = 1000
_GROUP_BYTES = 160

FrameName = Annotated[str, Meta(min_length=1, max_length=128)]
FrameNumber = Annotated[int, Meta(ge=0, le=2**53 - 1)]
Incarnation = tuple[FrameName, FrameNumber]  # an incarnation and its first seq
Position = tuple[FrameName, FrameName, FrameNumber]  # source, incarnation, how far it is read
IncarnationList = Annotated[list[Incarnation], Meta(min_length=1, max_length=1000)]
PositionList = Annotated[list[Position], Meta(max_length=100_000)]
FrameNames = Annotated[list[FrameName], Meta(max_length=10_000)]


class LinkFrame(Struct, frozen=True, array_like=True, tag=True):
    """One message of a link."""


class HelloFrame(LinkFrame, frozen=True, tag="hello"):
    """Who is there, through which lives its outbox went, and its clock."""

    node: FrameName
    incarnations: IncarnationList
    head: FrameNumber
    now: FrameNumber
    version: int = VERSION


class SubscribeFrame(LinkFrame, frozen=True, tag="subscribe"):
    """Send me what is in your outbox for me. `life` is who I am, `positions` where I am."""

    incarnation: FrameName
    positions: PositionList
    window: FrameNumber


class FollowFrame(LinkFrame, frozen=True, tag="follow"):
    """Send me all of your outbox, with its heads, for I keep it for others.

    Said again, it starts again from these positions; a window of 0 ends it.
    """

    positions: PositionList
    window: FrameNumber


class RelayFrame(LinkFrame, frozen=True, tag="relay"):
    """Send me what you keep for me of other outboxes, with proof; `wants` are those I miss.

    Said again, it says what I miss now. The window is what it was the first time.
    """

    positions: PositionList
    wants: FrameNames
    window: FrameNumber


class IncarnationsFrame(LinkFrame, frozen=True, tag="lives"):
    """The lives of an outbox, signed by its node: the answer to Follow, and passed on by relays."""

    source: FrameName
    incarnations: IncarnationList
    signature: Signature


class ReadingFrame(LinkFrame, frozen=True, tag="reading"):
    """How far a reader in this life of its own has taken an outbox by relay, signed by it.

    The relay passes it on to the source, which may then forget what nobody needs any more.
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
    previous: Hash
    chain: Hash
    signature: Signature
    digests: bytes = b""


class EventsFrame(LinkFrame, frozen=True, tag="events"):
    """What there is for the reader of one life of one outbox, up to and with `upto`.

    To who follows, `everyone` names the events that are for everybody: an envelope does not tell
    them from those that are for nobody else.
    """

    source: FrameName
    incarnation: FrameName
    first_seq: FrameNumber
    upto: FrameNumber
    now: FrameNumber
    events: list[bytes]
    groups: list[CommitGroup] = []
    stream: str = "own"
    everyone: list[FrameNumber] = []


class TakenFrame(LinkFrame, frozen=True, tag="taken"):
    """The reader has this on disk, and takes as many more bytes."""

    source: FrameName
    incarnation: FrameName
    upto: FrameNumber
    size: FrameNumber
    stream: str = "own"


class SkipFrame(LinkFrame, frozen=True, tag="skip"):
    """There is nothing up to `upto` for the reader any more, and here is why."""

    source: FrameName
    incarnation: FrameName
    first_seq: FrameNumber
    upto: FrameNumber
    why: str


class BlobRequest(LinkFrame, frozen=True, tag="blob_ask"):
    """A range of a blob of `source`, for `reader` if that is not who asks."""

    source: FrameName
    digest: Digest
    offset: FrameNumber
    length: FrameNumber
    reader: FrameName | None = None


class BlobPiece(LinkFrame, frozen=True, tag="blob_piece"):
    """`total` is the whole blob's size as it is stored; 0 if it is not there."""

    source: FrameName
    digest: Digest
    offset: FrameNumber
    total: FrameNumber
    data: bytes


class TraceStep(Struct, frozen=True, array_like=True):
    """One thing a gateway knows of an event, at which time by its own clock; never a payload.

    `peer` is the other gateway concerned: where it went, or where it came from.
    """

    at: FrameNumber
    what: FrameName
    event_id: FrameName
    kind: str = ""
    agent: str = ""
    to_agent: str = ""
    peer: str = ""
    detail: str = ""


class TraceRequest(LinkFrame, frozen=True, tag="trace_ask"):
    """What do you know of these events? Who asks sent them, or they are for it."""

    id: FrameNumber
    event_ids: Annotated[list[FrameName], Meta(min_length=1, max_length=64)]


class TraceAnswer(LinkFrame, frozen=True, tag="trace_answer"):
    """`now` is the answerer's clock, by which the steps are dated."""

    id: FrameNumber
    now: FrameNumber
    steps: Annotated[list[TraceStep], Meta(max_length=TRACE_STEPS)]


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
)

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(AnyFrame)


def frame_weight(frame: EventsFrame) -> int:
    """What a frame costs of its reader's credit."""
    proof = sum(len(group.digests) + _GROUP_BYTES for group in frame.groups)
    return sum(map(len, frame.events)) + proof


def encode_frame(frame: LinkFrame) -> bytes:
    return _encoder.encode(frame)


def decode_frame(data: bytes) -> AnyFrame:
    """A frame, or LinkError and nothing else."""
    try:
        frame: AnyFrame = _decoder.decode(data)
    except (ValueError, RecursionError) as error:
        raise LinkError(f"not a frame of a link: {error}") from None
    return frame
