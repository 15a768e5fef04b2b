"""Relays, and the proofs that make trust in them unnecessary.

A gateway that has no link with a *source* reads its outbox from a *relay*: a backbone node that has
a link with both. Three roles, each with its own modules:

    source ── follow ──▶ relay                relay ── relay ──▶ reader
    source_feed.py       replica_follower.py  relay_feed.py      relay_reader.py
                         outbox_replica.py (tables), relay_host.py

What each of them signs, and what that proves to others:

| signed by | frame | proves |
|---|---|---|
| the source | `incarnations` | which incarnations its outbox has, and the first event of each |
| the source | the head of a commit group | the digests of its events, and the chain before them |
| the reader | `reading` | how far this incarnation of the reader has taken the outbox |
| the asker | requests for blobs and traces | that the asker itself wants this |
| the target | trace answers | that the answer is its own |

Invariants:

1. A relay cannot forge. An event counts only if its digest is in a group whose head the source
   signed (`check_relayed_events`): with the digests, one event is checked without the others.
2. A relay cannot omit. `prevSeqTo` of each event names the event before it for the same reader, and
   the receiver takes a batch only if that is where it stands (delivery/accept.py). A relay can only
   withhold the newest events. So a reader asks a second relay once the first has shown nothing.
3. A relay cannot reorder or repeat. The events of a frame ascend, the chain fixes their order, and
   an event that comes twice is taken once, wherever it comes from.
4. A relay cannot make a source forget. A source prunes what a reader has taken by the reader's
   signature alone; the incarnation in it keeps the word of a lost journal from counting.
5. A relay keeps only what it has checked. It follows a source over its own link and never relays a
   relayed outbox. Each group continues the chain where the last one ended, without a gap, and
   is served only once its signed head closes it. So a source that lies ends its own link, and not
   that of a reader.
6. A replica reaches back to the reader that is furthest behind, within a limit of bytes. A reader
   from further back makes the relay follow again from there; the other readers wait meanwhile, so a
   reader that does not advance waits longer each time. Older events come from the source.
7. A forgery ends the link with the relay, because only the relay can be at fault. Signed events
   that do not fit together may be the fault of the source: the relay is then not asked for that
   source for a while, and the link stays.
8. A restored reader takes nothing from relays until the source has answered it: no relay knows what
   the lost incarnation has taken (delivery/inbox/resuming.py).

This module makes and checks the signatures. It has no state.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import msgspec

from gatepost.delivery.frames import (
    BlobRequest,
    CommitGroup,
    EventsFrame,
    Incarnation,
    IncarnationsFrame,
    Position,
    ReadingFrame,
    TraceAnswer,
    TraceRequest,
)
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


def sign_incarnations(
    key: NodeKey, node: str, incarnations: list[Incarnation]
) -> IncarnationsFrame:
    signature = key.sign(_incarnations_statement(node, incarnations))
    return IncarnationsFrame(node, incarnations, signature)


def check_incarnations(signed: IncarnationsFrame, public_key: bytes) -> None:
    """Raise LinkError unless the source itself signed this."""
    firsts = [first for _, first in signed.incarnations]
    if firsts != sorted(set(firsts)):
        raise LinkError(f"the incarnations of {signed.source} are in no order")
    statement = _incarnations_statement(signed.source, signed.incarnations)
    if not verify_signature(public_key, statement, signed.signature):
        raise LinkError(f"the incarnations of {signed.source} are not signed with its key")


def sign_reading(key: NodeKey, reader: str, incarnation: str, taken: Position) -> ReadingFrame:
    signature = key.sign(_reading_statement(reader, incarnation, *taken))
    return ReadingFrame(reader, incarnation, *taken, signature)


def check_reading(signed: ReadingFrame, public_key: bytes) -> None:
    """Raise LinkError unless the reader itself signed this."""
    statement = _reading_statement(
        signed.reader, signed.incarnation, signed.source, signed.source_incarnation, signed.upto
    )
    if not verify_signature(public_key, statement, signed.signature):
        raise LinkError(f"how far {signed.reader} has read is not signed with its key")


def sign_blob_request(key: NodeKey, reader: str, source: str, digest: str) -> bytes:
    return key.sign(_blob_statement(reader, source, digest))


def check_blob_request(request: BlobRequest, public_key: bytes) -> bool:
    """Whether the reader itself wants this blob of this source."""
    statement = _blob_statement(request.reader or "", request.source, request.digest)
    return verify_signature(public_key, statement, request.signature)


def sign_trace_request(key: NodeKey, asker: str, target: str, event_ids: Sequence[str]) -> bytes:
    return key.sign(_trace_statement("request", asker, target, event_ids))


def check_trace_request(request: TraceRequest, target: str, public_key: bytes) -> None:
    """Raise LinkError unless the asker itself asks this node."""
    statement = _trace_statement("request", request.asker or "", target, request.event_ids)
    if not verify_signature(public_key, statement, request.signature):
        raise LinkError(f"a request for a trace is not signed by {request.asker}")


def sign_trace_answer(
    key: NodeKey, request: TraceRequest, target: str, answer: TraceAnswer
) -> bytes:
    asker, content = request.asker or "", _answer_content(answer)
    return key.sign(_trace_statement("answer", asker, target, request.event_ids, content))


def check_trace_answer(request: TraceRequest, answer: TraceAnswer, public_key: bytes) -> None:
    """Raise LinkError unless the target itself gave this answer."""
    asker, target = request.asker or "", request.target or ""
    content = _answer_content(answer)
    statement = _trace_statement("answer", asker, target, request.event_ids, content)
    if not verify_signature(public_key, statement, answer.signature):
        raise LinkError(f"an answer to a trace is not signed by {target}")


def check_group(
    source: str, incarnation: str, group: CommitGroup, digests: Sequence[bytes], public_key: bytes
) -> None:
    """Raise LinkError unless these are the digests of exactly this group."""
    head = ChainHead(source, incarnation, group.first, group.last, group.chain, group.signature)
    try:
        verify_group(group.previous, digests, head, public_key)
    except ChainError as error:
        raise LinkError(error.message) from None


def check_relayed_events(
    relayed: EventsFrame, incarnations: Sequence[Incarnation], public_key: bytes
) -> list[Envelope]:
    """The events of a relay's frame; LinkError unless each is in a group that its source signed."""
    source, incarnation = relayed.source, relayed.incarnation
    if (incarnation, relayed.first_seq) not in incarnations:
        raise LinkError(f"{source} had no incarnation {incarnation} from {relayed.first_seq} on")
    if not relayed.events:
        raise LinkError(f"a frame of the outbox of {source} has no events")
    envelopes = [read_event(source, body) for body in relayed.events]
    groups = iter(relayed.groups)
    last, digests, first = 0, [], 0
    for envelope, body in zip(envelopes, relayed.events, strict=True):
        while envelope.seq > last:
            group = _next_group(groups, envelope)
            first, last, digests = group.first, group.last, list(split_digests(group.digests))
            check_group(source, incarnation, group, digests, public_key)
        if envelope.seq < first or digests[envelope.seq - first] != event_digest(body):
            raise LinkError(f"event {envelope.seq} of {source} is not what its source wrote")
    if any(one.seq >= other.seq for one, other in pairwise(envelopes)):
        raise LinkError(f"events of {source} are out of order")
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
        envelope = decode_event(body)
    except MalformedEvent as error:
        raise LinkError(error.message) from None
    if envelope.source_node_id != source:
        raise LinkError(f"an event of {envelope.source_node_id} in the outbox of {source}")
    return envelope


def _incarnations_statement(node: str, incarnations: Sequence[Incarnation]) -> bytes:
    parts = [
        part for name, first in incarnations for part in (name.encode(), first.to_bytes(8, "big"))
    ]
    return frame_parts("gatepost/incarnations/1", node.encode(), *parts)


def _trace_statement(
    what: str, asker: str, target: str, event_ids: Sequence[str], content: bytes = b""
) -> bytes:
    names = (each.encode() for each in (asker, target, *event_ids))
    return frame_parts(f"gatepost/trace-{what}/1", content, *names)


def _answer_content(answer: TraceAnswer) -> bytes:
    counts = [answer.ledger] if answer.ledger else []
    return msgspec.msgpack.encode([answer.now, answer.steps, *counts])


def _blob_statement(reader: str, source: str, digest: str) -> bytes:
    return frame_parts("gatepost/blob/1", *(each.encode() for each in (reader, source, digest)))


def _reading_statement(
    reader: str, incarnation: str, source: str, source_incarnation: str, upto: int
) -> bytes:
    names = (each.encode() for each in (reader, incarnation, source, source_incarnation))
    return frame_parts("gatepost/reading/1", *names, upto.to_bytes(8, "big"))
