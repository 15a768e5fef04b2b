"""Proof that events are their source's own, for who got them from somebody else.

A node signs through which lives its outbox went, and every commit group of it. With a group's
digests and its signed head, one event of it can be checked without having the others. That none was
left out in between is for `prevSeqTo` to show.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

from gatepost.delivery.frames import Events, Group, Life, Lives, Position, Reading
from gatepost.errors import ChainError, LinkError, MalformedEvent
from gatepost.events import (
    ChainHead,
    Envelope,
    NodeKey,
    decode_event,
    event_digest,
    frame_parts,
    verify_group,
    verify_signature,
)

_HASH = 32


def sign_lives(key: NodeKey, node: str, lives: list[Life]) -> Lives:
    return Lives(node, lives, key.sign(_statement(node, lives)))


def check_lives(said: Lives, public_key: bytes) -> None:
    """Raise LinkError unless the source itself signed this."""
    if [first for _, first in said.lives] != sorted({first for _, first in said.lives}):
        raise LinkError(f"the lives of {said.source} are in no order")
    if not verify_signature(public_key, _statement(said.source, said.lives), said.signature):
        raise LinkError(f"the lives of {said.source} are not signed with its key")


def sign_reading(key: NodeKey, reader: str, life: str, taken: Position) -> Reading:
    return Reading(reader, life, *taken, key.sign(_reads(reader, life, *taken)))


def check_reading(said: Reading, public_key: bytes) -> None:
    """Raise LinkError unless the reader itself signed this."""
    statement = _reads(said.reader, said.life, said.source, said.of, said.upto)
    if not verify_signature(public_key, statement, said.signature):
        raise LinkError(f"how far {said.reader} has read is not signed with its key")


def check_group(
    source: str, life: str, group: Group, digests: Sequence[bytes], public_key: bytes
) -> None:
    """Raise LinkError unless these are the digests of exactly this group."""
    head = ChainHead(source, life, group.first, group.last, group.chain, group.signature)
    try:
        verify_group(group.previous, digests, head, public_key)
    except ChainError as error:
        raise LinkError(error.message) from None


def check_events(said: Events, lives: Sequence[Life], public_key: bytes) -> list[Envelope]:
    """What is in a relay's frame, each event in its place in a group its source signed."""
    if (said.life, said.first_seq) not in lives:
        raise LinkError(f"{said.source} never had a life {said.life} from {said.first_seq} on")
    if not said.events:
        raise LinkError(f"a frame of the outbox of {said.source} has no events")
    envelopes = [read_event(said.source, body) for body in said.events]
    groups = iter(said.groups)
    last, digests, first = 0, [], 0
    for envelope, body in zip(envelopes, said.events, strict=True):
        while envelope.seq > last:
            group = _next(groups, envelope)
            first, last, digests = group.first, group.last, list(split(group.digests))
            check_group(said.source, said.life, group, digests, public_key)
        if envelope.seq < first or digests[envelope.seq - first] != event_digest(body):
            raise LinkError(f"event {envelope.seq} of {said.source} is not what its source wrote")
    if any(one.seq >= other.seq for one, other in pairwise(envelopes)):
        raise LinkError(f"events of {said.source} are out of order")
    return envelopes


def split(digests: bytes) -> Iterator[bytes]:
    if len(digests) % _HASH:
        raise LinkError("a group's digests are cut off")
    return (digests[at : at + _HASH] for at in range(0, len(digests), _HASH))


def _next(groups: Iterator[Group], envelope: Envelope) -> Group:
    group = next(groups, None)
    if group is None:
        raise LinkError(f"event {envelope.seq} of {envelope.source_node_id} came without proof")
    return group


def read_event(source: str, body: bytes) -> Envelope:
    try:
        envelope = decode_event(body)
    except MalformedEvent as error:
        raise LinkError(error.message) from None
    if envelope.source_node_id != source:
        raise LinkError(f"an event of {envelope.source_node_id} in the outbox of {source}")
    return envelope


def _statement(node: str, lives: Sequence[Life]) -> bytes:
    parts = [part for life, first in lives for part in (life.encode(), first.to_bytes(8, "big"))]
    return frame_parts("gatepost/lives/1", node.encode(), *parts)


def _reads(reader: str, life: str, source: str, of: str, upto: int) -> bytes:
    names = (each.encode() for each in (reader, life, source, of))
    return frame_parts("gatepost/reading/1", *names, upto.to_bytes(8, "big"))
