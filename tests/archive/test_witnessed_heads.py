"""An archive is not proved to be the newest: heads that other gateways saw can disprove it."""

from msgspec.structs import replace

from gatepost.archive import manifest, room_facts
from gatepost.archive.room_facts import HeadFact, NodeFact, RoomFacts
from gatepost.archive.verification import ArchiveRule, verified_reaches, verify_archive
from gatepost.archive.witnessed_heads import ARCHIVE_GRACE_MS
from gatepost.events import NodeKey
from tests.archive.harness import NODE, NOW, ArchiveHarness
from tests.room.sample_records import key

_WITNESS = key("other")


def witness(seq: int, at: int = NOW, signer: NodeKey = _WITNESS, node: str = NODE) -> RoomFacts:
    """Facts of another gateway, which has read this far."""
    known = NodeFact(
        id="other", public_key=_WITNESS.public, tier="edge", added_by=NODE, added_at=NOW
    )
    head = HeadFact(node=node, incarnation="first", seq=seq, at=at)
    later = at + 2 * ARCHIVE_GRACE_MS
    facts = RoomFacts(node="other", at=later, nodes=(known,), heads=(head,))
    return room_facts.sign_facts(facts, signer)


def roll_back(harness: ArchiveHarness) -> None:
    """Delete the newest segment, and put the older signed manifest back."""
    harness.groups(4, 6)
    harness.archive_segments()
    older = (harness.root / manifest.manifest_path(NODE)).read_bytes()
    harness.groups(10)
    assert harness.archive_segments() == [(11, 20)]
    newest = manifest.read_manifest(harness.store(), NODE)
    assert newest is not None
    (harness.root / manifest.node_folder(NODE) / newest.segments[-1].path).unlink()
    (harness.root / manifest.manifest_path(NODE)).write_bytes(older)


def test_a_lone_archive_that_was_rolled_back_is_not_called_the_newest(
    harness: ArchiveHarness,
) -> None:
    roll_back(harness)
    assert list(verify_archive(harness.store())) == [], "its node alone has signed it"
    (reach,) = verified_reaches(harness.store())
    assert reach.describe() == "not proven: newest; highest head seen by others: none"


def test_a_head_in_the_room_folder_disproves_it(harness: ArchiveHarness) -> None:
    roll_back(harness)
    room_facts.write_facts(harness.store(), witness(20))
    (finding,) = verify_archive(harness.store())
    assert (finding.rule, finding.node, finding.seq) == (ArchiveRule.NOT_NEWEST, NODE, 11)
    assert finding.detail == (
        "not the newest; highest head seen by others: 20 (other); 11 to 20 are missing"
    )


def test_a_head_from_elsewhere_disproves_it(harness: ArchiveHarness) -> None:
    roll_back(harness)
    (finding,) = verify_archive(harness.store(), heads=[witness(20)])
    assert (finding.rule, finding.seq) == (ArchiveRule.NOT_NEWEST, 11)


def test_an_archive_that_reaches_what_others_saw_has_no_finding(harness: ArchiveHarness) -> None:
    roll_back(harness)
    assert list(verify_archive(harness.store(), heads=[witness(10)])) == []
    (reach,) = verified_reaches(harness.store(), [witness(10)])
    assert reach.describe() == "not proven: newest; highest head seen by others: 10 (other)"


def test_a_head_of_the_last_minutes_is_not_missing_yet(harness: ArchiveHarness) -> None:
    roll_back(harness)
    bare = replace(witness(20), at=NOW)
    assert (
        list(verify_archive(harness.store(), heads=[room_facts.sign_facts(bare, _WITNESS)])) == []
    )


def test_heads_that_their_gateway_did_not_sign_prove_nothing(harness: ArchiveHarness) -> None:
    roll_back(harness)
    forged = witness(20, signer=key("forger"))
    assert [each.rule for each in verify_archive(harness.store(), heads=[forged])] == [
        ArchiveRule.FACTS_SIGNATURE
    ]


def test_a_node_is_no_witness_of_its_own_outbox(harness: ArchiveHarness) -> None:
    roll_back(harness)
    own = NodeFact(id=NODE, public_key=harness.key.public, tier="edge", added_by="x", added_at=1)
    facts = replace(witness(20), node=NODE, nodes=(own,))
    signed = room_facts.sign_facts(facts, harness.key)
    assert list(verify_archive(harness.store(), heads=[signed])) == []
