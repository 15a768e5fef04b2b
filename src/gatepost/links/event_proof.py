"""Evidence about a message in one journal: its own commit groups, and the heads it saw.

A peer gets only the groups with events for it, and of these events only the ones about its message.
The digests of a group say nothing about the events behind them.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

from msgspec import Struct

from gatepost.delivery.frames import Position
from gatepost.delivery.inbox.inbox_reads import seen_position
from gatepost.delivery.incarnations import incarnation_at
from gatepost.delivery.local_node import LocalNode
from gatepost.errors import GatepostError
from gatepost.events import (
    EventKind,
    Receipt,
    decode_event,
    decode_payload,
    event_digest,
    parse_event_id,
)
from gatepost.journal import outbox_reads
from gatepost.journal.incarnations import load_incarnations
from gatepost.journal.transaction import Tx
from gatepost.links import outbox_replica
from gatepost.links.source_feed import chain_before
from gatepost.proof.proof_file import MAX_EVENTS, ProvenGroup, SeenHead, sign_seen_head
from gatepost.proof.verification import is_about

# Bounds on an answer to another gateway.
_ROWS = 64
EVIDENCE_BYTES = 1024 * 1024
_ABOUT_KINDS = (EventKind.ACK, EventKind.REPLY, EventKind.DEAD_LETTER)


class OwnEvidence(Struct, frozen=True):
    """The groups in a journal; `is_whole` if the archive has no others."""

    groups: list[ProvenGroup]
    is_whole: bool = True


EvidenceRead = Callable[[list[ProvenGroup]], None]


class ArchivedEvidence(Protocol):
    """The part of our outbox that is archived, as evidence."""

    def read_evidence(self, event_id: str, peer: str | None, done: EvidenceRead) -> None:
        """Search in another thread, and call back in the thread of the links."""


def read_evidence(tx: Tx, node: str, event_id: str, peer: str | None = None) -> OwnEvidence:
    """The groups of our outbox about a message; for a `peer`, those with events for it."""
    wanted = [
        (seq, body)
        for seq, to_node, body in outbox_reads.events_about(
            tx, parse_event_id(event_id), _ABOUT_KINDS, _ROWS
        )
        if peer in (None, to_node)
    ]
    bodies = select_bodies(wanted, event_id)
    groups: list[ProvenGroup] = []
    is_whole = any(_is_beginning(body, event_id) for _, body in bodies)
    while bodies:
        group = _read_group(tx, node, bodies)
        if group is None:
            is_whole, bodies = False, bodies[1:]
            continue
        groups.append(group)
        bodies = [each for each in bodies if each[0] > group.last]
    return OwnEvidence(limit_evidence(groups), is_whole)


def select_bodies(rows: Iterable[tuple[int, bytes]], event_id: str) -> list[tuple[int, bytes]]:
    """The (seq, event) that a proof has of a message."""
    return [(seq, body) for seq, body in rows if is_about(decode_event(body), event_id)]


def build_group(
    source: str,
    incarnation: str,
    head: Sequence[Any],
    digests: Sequence[bytes],
    bodies: Iterable[tuple[int, bytes]],
) -> ProvenGroup:
    """A group of `head` (first, last, previous, chain, signature), with the events in it."""
    first, last, previous, chain, signature = head
    return ProvenGroup(
        source=source,
        incarnation=incarnation,
        first=first,
        last=last,
        previous=previous,
        chain=chain,
        signature=signature,
        digests=b"".join(digests),
        events=[body for seq, body in bodies if first <= seq <= last][:MAX_EVENTS],
    )


def merge_groups(*parts: Iterable[ProvenGroup]) -> list[ProvenGroup]:
    """The groups of all parts, each once."""
    found: dict[tuple[str, str, int], ProvenGroup] = {}
    for group in (group for part in parts for group in part):
        found.setdefault((group.source, group.incarnation, group.last), group)
    return list(found.values())


def limit_evidence(groups: list[ProvenGroup]) -> list[ProvenGroup]:
    """As many groups as fit into an answer, but one at least."""
    kept, size = groups[:1], sum(each.size for each in groups[:1])
    for group in groups[1:]:
        size += group.size
        if size > EVIDENCE_BYTES:
            break
        kept.append(group)
    return kept


def read_digests(tx: Tx, after: int, upto: int) -> list[bytes]:
    """The digests of our own events in (after, upto]; fewer if some have left the journal."""
    return outbox_reads.digests_between(tx, after + 1, upto)


def read_seen_heads(tx: Tx, node: LocalNode, heads: Iterable[Position]) -> list[SeenHead]:
    """Signed statements of what this gateway saw of other outboxes at or after these heads."""
    return [
        sign_seen_head(
            node.key,
            SeenHead(
                witness=node.id,
                source=source,
                incarnation=incarnation,
                seq=seq,
                at=tx.now if at is None else at,
                chain=chain,
            ),
        )
        for source, incarnation, last in heads
        if source != node.id
        for seq, at, chain in _find_seen(tx, (source, incarnation, last))
    ]


def _find_seen(tx: Tx, head: Position) -> Iterator[tuple[int, int | None, bytes]]:
    """The nearest head that is kept, else the last one that was checked, else our position."""
    row = outbox_replica.find_checked_head(tx, *head) or seen_position(tx, *head)
    if row is not None:
        yield row[0], row[1], row[2]


def _is_beginning(body: bytes, event_id: str) -> bool:
    """Whether an event is the send or the first receipt; no later event is pruned before these."""
    envelope = decode_event(body)
    if envelope.kind != EventKind.ACK:
        return envelope.event_id == event_id
    try:
        return decode_payload(envelope, Receipt).status in ("accepted", "refused")
    except GatepostError:
        return False


def _read_group(tx: Tx, node: str, bodies: list[tuple[int, bytes]]) -> ProvenGroup | None:
    """The group of the first of these events; None if a part of it was pruned."""
    row = outbox_reads.group_of(tx, bodies[0][0])
    if row is None:
        return None
    first, last, chain, signature = row
    incarnations = load_incarnations(tx)
    previous = chain_before(tx, node, incarnations, first)
    digests = read_digests(tx, first - 1, last)
    if previous is None or len(digests) != last - first + 1:
        return None
    head = (first, last, previous, chain, signature)
    return build_group(node, incarnation_at(incarnations, first)[0], head, digests, bodies)


def build_archived_group(
    source: str,
    incarnation: str,
    head: Sequence[Any],
    rows: Sequence[tuple[int, bytes]],
    event_id: str,
    peer: str | None,
) -> ProvenGroup | None:
    """A group that was read from the archive with all its events; None if none is for the peer."""
    digests = [event_digest(body) for _, body in rows]
    bodies = [
        (seq, body)
        for seq, body in select_bodies(rows, event_id)
        if peer in (None, decode_event(body).to_node_id)
    ]
    return build_group(source, incarnation, head, digests, bodies) if bodies else None
