"""What two gateways say to each other over a link.

Either side reads the other's outbox: it subscribes from where it is, gets events as long as it has
given credit for them, and says how far it has taken them, which gives new credit. Everything is
MessagePack; events travel as the very bytes their digests were taken of.
"""

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from gatepost.errors import LinkError
from gatepost.events import Signature
from gatepost.events.chain import ChainHash
from gatepost.events.ids import Digest

VERSION = 1
# No frame is larger than this, but for one event or one group's proof.
FRAME_BYTES = 256 * 1024
FRAME_EVENTS = 1024
PIECE_BYTES = 256 * 1024
TRACE_STEPS = 1000
_GROUP_BYTES = 160

Name = Annotated[str, Meta(min_length=1, max_length=128)]
Number = Annotated[int, Meta(ge=0, le=2**53 - 1)]
Life = tuple[Name, Number]  # an incarnation and its first seq
Position = tuple[Name, Name, Number]  # source, incarnation, how far it is read
Lifetime = Annotated[list[Life], Meta(min_length=1, max_length=1000)]
Positions = Annotated[list[Position], Meta(max_length=100_000)]
Names = Annotated[list[Name], Meta(max_length=10_000)]


class Frame(Struct, frozen=True, array_like=True, tag=True):
    """One message of a link."""


class Hello(Frame, frozen=True, tag="hello"):
    """Who is there, through which lives its outbox went, and its clock."""

    node: Name
    lives: Lifetime
    head: Number
    now: Number
    version: int = VERSION


class Subscribe(Frame, frozen=True, tag="subscribe"):
    """Send me what is in your outbox for me. `life` is who I am, `positions` where I am."""

    life: Name
    positions: Positions
    window: Number


class Follow(Frame, frozen=True, tag="follow"):
    """Send me all of your outbox, with its heads, for I keep it for others.

    Said again, it starts again from these positions; a window of 0 ends it.
    """

    positions: Positions
    window: Number


class Relay(Frame, frozen=True, tag="relay"):
    """Send me what you keep for me of other outboxes, with proof; `wants` are those I miss.

    Said again, it says what I miss now. The window is what it was the first time.
    """

    positions: Positions
    wants: Names
    window: Number


class Lives(Frame, frozen=True, tag="lives"):
    """The lives of an outbox, signed by its node: the answer to Follow, and passed on by relays."""

    source: Name
    lives: Lifetime
    signature: Signature


class Reading(Frame, frozen=True, tag="reading"):
    """How far a reader in this life of its own has taken an outbox by relay, signed by it.

    The relay passes it on to the source, which may then forget what nobody needs any more.
    """

    reader: Name
    life: Name
    source: Name
    of: Name
    upto: Number
    signature: Signature


class Group(Frame, frozen=True, tag="group"):
    """A commit group's signed head, the chain before it, and the digests of its events."""

    first: Number
    last: Number
    previous: ChainHash
    chain: ChainHash
    signature: Signature
    digests: bytes = b""


class Events(Frame, frozen=True, tag="events"):
    """What there is for the reader of one life of one outbox, up to and with `upto`.

    To who follows, `everyone` names the events that are for everybody: an envelope does not tell
    them from those that are for nobody else.
    """

    source: Name
    life: Name
    first_seq: Number
    upto: Number
    now: Number
    events: list[bytes]
    groups: list[Group] = []
    stream: str = "own"
    everyone: list[Number] = []


class Taken(Frame, frozen=True, tag="taken"):
    """The reader has this on disk, and takes as many more bytes."""

    source: Name
    life: Name
    upto: Number
    size: Number
    stream: str = "own"


class Skip(Frame, frozen=True, tag="skip"):
    """There is nothing up to `upto` for the reader any more, and here is why."""

    source: Name
    life: Name
    first_seq: Number
    upto: Number
    why: str


class BlobAsk(Frame, frozen=True, tag="blob_ask"):
    """A range of a blob of `source`, for `reader` if that is not who asks."""

    source: Name
    digest: Digest
    offset: Number
    length: Number
    reader: Name | None = None


class BlobPiece(Frame, frozen=True, tag="blob_piece"):
    """`total` is the whole blob's size as it is stored; 0 if it is not there."""

    source: Name
    digest: Digest
    offset: Number
    total: Number
    data: bytes


class TraceStep(Struct, frozen=True, array_like=True):
    """One thing a gateway knows of an event, at which time by its own clock; never a payload.

    `peer` is the other gateway concerned: where it went, or where it came from.
    """

    at: Number
    what: Name
    event_id: Name
    kind: str = ""
    agent: str = ""
    to_agent: str = ""
    peer: str = ""
    detail: str = ""


class TraceAsk(Frame, frozen=True, tag="trace_ask"):
    """What do you know of these events? Who asks sent them, or they are for it."""

    id: Number
    event_ids: Annotated[list[Name], Meta(min_length=1, max_length=64)]


class TraceAnswer(Frame, frozen=True, tag="trace_answer"):
    """`now` is the answerer's clock, by which the steps are dated."""

    id: Number
    now: Number
    steps: Annotated[list[TraceStep], Meta(max_length=TRACE_STEPS)]


AnyFrame = (
    Hello
    | Subscribe
    | Follow
    | Relay
    | Lives
    | Reading
    | Events
    | Taken
    | Skip
    | BlobAsk
    | BlobPiece
    | TraceAsk
    | TraceAnswer
)

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(AnyFrame)


def weight(frame: Events) -> int:
    """What a frame costs of its reader's credit."""
    proof = sum(len(group.digests) + _GROUP_BYTES for group in frame.groups)
    return sum(map(len, frame.events)) + proof


def pack(frame: Frame) -> bytes:
    return _encoder.encode(frame)


def unpack(data: bytes) -> AnyFrame:
    """A frame, or LinkError and nothing else."""
    try:
        frame: AnyFrame = _decoder.decode(data)
    except (ValueError, RecursionError) as error:
        raise LinkError(f"not a frame of a link: {error}") from None
    return frame
