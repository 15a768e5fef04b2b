"""What others have seen of an outbox, and what its archive lacks of it."""

from msgspec.structs import replace

from gatepost.archive.manifest import ArchivedIncarnation, ArchiveManifest
from gatepost.archive.room_facts import HeadFact, RevocationFact, RoomFacts
from gatepost.archive.witnessed_heads import ARCHIVE_GRACE_MS
from gatepost.pipeline.audit.completeness import (
    ArchiveEvidence,
    check_completeness,
    latest_time,
)
from gatepost.pipeline.audit.trust import KeyTrust, SeenHead, SeenHeads
from tests.pipeline.manifests import archived_segment

T = 1_772_490_600_000
LATER = T + 2 * ARCHIVE_GRACE_MS


def archived(node: str, *lasts: tuple[str, int], at: int = T) -> ArchiveManifest:
    """An archive of one segment for each incarnation, up to the given event."""
    segments, firsts, first = [], [], 1
    for incarnation, last in lasts:
        firsts.append(ArchivedIncarnation(incarnation, first))
        segments.append(archived_segment(incarnation, first, last, at))
        first = last + 1
    return ArchiveManifest(
        node=node, public_key=b"", incarnations=tuple(firsts), segments=tuple(segments)
    )


def read_up_to(node: str, seq: int, incarnation: str = "i", at: int = T) -> HeadFact:
    return HeadFact(node=node, incarnation=incarnation, seq=seq, at=at)


def told(node: str, *heads: HeadFact, at: int = LATER) -> RoomFacts:
    return RoomFacts(node=node, at=at, heads=heads)


def evidence(
    listed: list[ArchiveManifest], *facts: RoomFacts, members: str = "abc", silent: str = ""
) -> ArchiveEvidence:
    heads: SeenHeads = {}
    if facts:
        names = {each.node for each in listed} - {each.node for each in facts} - set(silent)
        facts = (*facts, *(told(node, at=0) for node in sorted(names)))
    for each in facts:
        for head in each.heads:
            if head.node != each.node:
                seen = heads.setdefault((head.node, head.incarnation), [])
                seen.append(SeenHead(head, each.node))
    trust = KeyTrust(list(facts), {}, frozenset(members), heads, (), [])
    return ArchiveEvidence(listed, [], trust, frozenset(), LATER + 1)


def found(known: ArchiveEvidence) -> list[tuple[str, str | None]]:
    return [(each.rule, each.node) for each in check_completeness(known)]


A, B, C = (archived(node, ("i", 10)) for node in "abc")


def test_a_whole_archive_lacks_nothing() -> None:
    assert found(evidence([A, B, C], told("a", read_up_to("b", 10)), told("b"))) == []


def test_an_empty_archive_cannot_be_judged() -> None:
    assert found(evidence([], members="")) == [("unjudged", None)]
    assert found(evidence([archived("a")], members="a")) == [("unjudged", None)]


def test_a_node_that_others_have_read_must_have_an_archive() -> None:
    assert found(evidence([A, B], told("a", read_up_to("c", 3)))) == [("missing_archive", "c")]
    assert found(evidence([A, B], told("a"))) == [("unjudged", "c")]
    stated = replace(evidence([A, B], told("a", read_up_to("c", 3))), absent=frozenset("c"))
    assert found(stated) == []


def test_a_machine_that_was_lost_and_revoked_is_not_accused() -> None:
    gone = RevocationFact(node="c", public_key=b"", by="a", at=T, last_seq=3)
    facts = replace(told("a", read_up_to("c", 3)), revocations=(gone,))
    assert found(evidence([A, B], facts)) == [("unjudged", "c")]


def test_a_folder_that_nobody_of_the_room_knows_is_named() -> None:
    strange = [A, B, C, archived("x", ("i", 5))]
    assert found(evidence(strange, told("a"))) == [("unknown_node", "x")]
    assert found(evidence(strange, members="")) == []


def test_an_archive_without_its_room_facts_cannot_be_judged() -> None:
    """Somebody may have deleted the facts of the gateways that had read further."""
    assert found(evidence([A, B, C], told("a"), silent="c")) == [("unjudged", "c")]
    stated = replace(evidence([A, B, C], told("a"), silent="c"), absent=frozenset("c"))
    assert found(stated) == []


def test_an_outbox_that_was_read_further_than_it_is_archived() -> None:
    short = told("b", read_up_to("a", 12))
    assert found(evidence([A, B, C], short, told("c"))) == [("unjudged", "a")]
    # It was at its archive since, and left them out.
    assert found(evidence([A, B, C], short, told("a"))) == [("missing_events", "a")]
    # Nobody is its own witness.
    assert found(evidence([A, B, C], told("a", read_up_to("a", 12)))) == []


def test_an_archive_may_be_some_minutes_behind() -> None:
    fresh = told("b", read_up_to("a", 12, at=LATER - 1000))
    assert found(evidence([A, B, C], fresh, told("a"))) == []


def test_a_restored_journal_has_forgotten_events_that_others_read() -> None:
    restored = archived("a", ("i", 8), ("j", 20))
    assert found(evidence([restored, B, C], told("b", read_up_to("a", 12)), told("a"))) == []
    assert found(evidence([restored, B, C], told("b", read_up_to("a", 25, "j")), told("a"))) == [
        ("missing_events", "a")
    ]


def test_an_archive_may_begin_later_than_its_node() -> None:
    before = read_up_to("a", 12, "older", at=T - 1000)
    assert found(evidence([A, B, C], told("b", before), told("a"))) == []


def test_no_single_clock_says_how_late_it_is() -> None:
    ahead = told("c", at=T + 10**12)
    known = evidence([A, B, C], told("a"), told("b"), ahead)
    assert latest_time(known) == LATER
    assert latest_time(evidence([A], ahead)) == LATER + 1
