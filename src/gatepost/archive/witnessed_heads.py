"""How far other gateways have read each outbox, which the newest archive must reach.

A node signs its manifest alone, so an older copy of its archive verifies as well as the newest one.
Only a head that another gateway has seen can disprove it. The room facts of every gateway hold the
heads that it has seen.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from msgspec import Struct

from gatepost.archive.manifest import ArchiveManifest
from gatepost.archive.room_facts import HeadFact, RoomFacts

# A gateway archives an event within a few minutes, unless it is away.
ARCHIVE_GRACE_MS: Final = 15 * 60_000


class WitnessedReach(Struct, frozen=True, kw_only=True):
    """The end of a node's archive, and the furthest head of its outbox that others have seen."""

    node: str
    archived_through: int
    incarnation: str | None = None
    seen_through: int | None = None
    seen_by: str | None = None
    missing: tuple[int, int] | None = None

    def describe(self) -> str:
        if self.seen_through is None:
            return "not proven: newest; highest head seen by others: none"
        seen = f"highest head seen by others: {self.seen_through} ({self.seen_by})"
        if self.missing is None:
            return f"not proven: newest; {seen}"
        return f"not the newest; {seen}; {self.missing[0]} to {self.missing[1]} are missing"


def find_reaches(
    listed: Sequence[ArchiveManifest], facts: Sequence[RoomFacts]
) -> Iterator[WitnessedReach]:
    """Compare every archive with the heads that other gateways saw."""
    archived = [segment.archived_at for each in listed for segment in each.segments]
    as_of = max((*archived, *(each.at for each in facts)), default=0)
    for manifest in listed:
        seen = [
            (head, each.node)
            for each in facts
            if each.node != manifest.node
            for head in each.heads
            if head.node == manifest.node
        ]
        yield _find_reach(manifest, seen, as_of)


def archived_through(listed: ArchiveManifest, head: HeadFact) -> int | None:
    """The last archived event of the head's incarnation; None if nothing up to the head lacks."""
    lasts = [each.last for each in listed.segments if each.incarnation == head.incarnation]
    archived = max(lasts, default=0)
    wanted = min(head.seq, _last_kept(listed, head.incarnation) or head.seq)
    began = min((each.archived_at for each in listed.segments), default=0)
    # An archive may begin later than its node.
    before = not lasts and head.at < began
    return None if wanted <= archived or before else archived


def _find_reach(
    listed: ArchiveManifest, seen: Iterable[tuple[HeadFact, str]], as_of: int
) -> WitnessedReach:
    furthest, reached = (
        None,
        WitnessedReach(node=listed.node, archived_through=listed.archived_through),
    )
    for head, by in seen:
        archived = archived_through(listed, head)
        is_missing = archived is not None and head.at + ARCHIVE_GRACE_MS <= as_of
        rank = (is_missing, head.at, head.seq)
        if furthest is None or rank > furthest:
            furthest = rank
            reached = WitnessedReach(
                node=listed.node,
                archived_through=listed.archived_through,
                incarnation=head.incarnation,
                seen_through=head.seq,
                seen_by=by,
                missing=(archived + 1, head.seq) if is_missing and archived is not None else None,
            )
    return reached


def _last_kept(listed: ArchiveManifest, incarnation: str) -> int | None:
    """The last event of an incarnation that a restored journal still had; None if it lives on."""
    ids = [each.id for each in listed.incarnations]
    later = listed.incarnations[ids.index(incarnation) + 1 :] if incarnation in ids else ()
    return min((each.first_seq - 1 for each in later), default=None)
