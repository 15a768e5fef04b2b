"""Proof that events are their source's own, for who got them from somebody else.

A node signs through which lives its outbox went, and every commit group of it. With a group's
digests and its signed head, one event of it can be checked without having the others. That none was
left out in between is for `prevSeqTo` to show.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

from gatepost.delivery.frames import (
    CommitGroup,
    EventsFrame,
    Incarnation,
    IncarnationsFrame,
    Position,
    ReadingFrame,
)
from gatepost.errors import ChainError, LinkError, MalformedEvent
from gatepost.events import (
    Envelope,
    Head,
    NodeKey,
    decode,
    event_digest,
    frame,
    verify,
    verify_group,
)

_HASH = 32


def sign_incarnations(key: NodeKey, node: str, lives: list[Incarnation]) -> IncarnationsFrame:
    return IncarnationsFrame(node, lives, key.sign(_incarnations_statement(node, lives)))


def check_incarnations(said: IncarnationsFrame, public_key: bytes) -> None:
    """Raise LinkError unless the source itself signed this."""
    if [first for _, first in said.incarnations] != sorted(
        {first for _, first in said.incarnations}
    ):
        raise LinkError(f"the lives of {said.source} are in no order")
    if not verify(
        public_key, _incarnations_statement(said.source, said.incarnations), said.signature
    ):
        raise LinkError(f"the lives of {said.source} are not signed with its key")


def sign_reading(key: NodeKey, reader: str, life: str, taken: Position) -> ReadingFrame:
    return ReadingFrame(reader, life, *taken, key.sign(_reading_statement(reader, life, *taken)))


def check_reading(said: ReadingFrame, public_key: bytes) -> None:
    """Raise LinkError unless the reader itself signed this."""
    statement = _reading_statement(
        said.reader, said.incarnation, said.source, said.source_incarnation, said.upto
    )
    if not verify(public_key, statement, said.signature):
        raise LinkError(f"how far {said.reader} has read is not signed with its key")


def check_group(
    source: str, life: str, group: CommitGroup, digests: Sequence[bytes], public_key: bytes
) -> None:
    """Raise LinkError unless these are the digests of exactly this group."""
    head = Head(source, life, group.first, group.last, group.chain, group.signature)
    try:
        verify_group(group.previous, digests, head, public_key)
    except ChainError as error:
        raise LinkError(error.message) from None


def check_relayed_events(
    said: EventsFrame, lives: Sequence[Incarnation], public_key: bytes
) -> list[Envelope]:
    """What is in a relay's frame, each event in its place in a group its source signed."""
    if (said.incarnation, said.first_seq) not in lives:
        raise LinkError(
            f"{said.source} never had a life {said.incarnation} from {said.first_seq} on"
        )
    if not said.events:
        raise LinkError(f"a frame of the outbox of {said.source} has no events")
    envelopes = [read_event(said.source, body) for body in said.events]
    groups = iter(said.groups)
    last, digests, first = 0, [], 0
    for envelope, body in zip(envelopes, said.events, strict=True):
        while envelope.seq > last:
            group = _next_group(groups, envelope)
            first, last, digests = group.first, group.last, list(split_digests(group.digests))
            check_group(said.source, said.incarnation, group, digests, public_key)
        if envelope.seq < first or digests[envelope.seq - first] != event_digest(body):
            raise LinkError(f"event {envelope.seq} of {said.source} is not what its source wrote")
    if any(one.seq >= other.seq for one, other in pairwise(envelopes)):
        raise LinkError(f"events of {said.source} are out of order")
    return envelopes


def split_digests(digests: bytes) -> Iterator[bytes]:
    if len(digests) % _HASH:
        raise LinkError("a group's digests are cut off")
    return (digests[at : at + _HASH] for at in range(0, len(digests), _HASH))


def _next_group(groups: Iterator[CommitGroup], envelope: Envelope) -> CommitGroup:
    group = next(groups, None)
    if group is None:
        raise LinkError(f"event {envelope.seq} of {envelope.source_node_id} came without proof")
    return group


def read_event(source: str, body: bytes) -> Envelope:
    try:
        envelope = decode(body)
    except MalformedEvent as error:
        raise LinkError(error.message) from None
    if envelope.source_node_id != source:
        raise LinkError(f"an event of {envelope.source_node_id} in the outbox of {source}")
    return envelope


def _incarnations_statement(node: str, lives: Sequence[Incarnation]) -> bytes:
    parts = [part for life, first in lives for part in (life.encode(), first.to_bytes(8, "big"))]
    return frame("gatepost/lives/1", node.encode(), *parts)


def _reading_statement(reader: str, life: str, source: str, of: str, upto: int) -> bytes:
    names = (each.encode() for each in (reader, life, source, of))
    return frame("gatepost/reading/1", *names, upto.to_bytes(8, "big"))
