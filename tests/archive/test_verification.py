"""Verification: it finds what is wrong, names it, and finds nothing else."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from gatepost.archive import manifest, room_facts, segment_encoding
from gatepost.archive.manifest import ArchiveManifest
from gatepost.archive.room_facts import NodeFact, RoomFacts
from gatepost.archive.verification import ArchiveFinding, ArchiveRule, verify_archive
from gatepost.events import NodeKey
from gatepost.testing import ManualClock
from tests.archive.harness import NODE, ArchiveHarness


@pytest.fixture
def archived(harness: ArchiveHarness) -> ArchiveHarness:
    """Three segments of two groups each."""
    harness.groups(4, 6, 3, 7, 5, 5)
    assert harness.archive_segments() == [(1, 10), (11, 20), (21, 30)]
    return harness


def _found(harness: ArchiveHarness) -> list[tuple[ArchiveRule, int | None]]:
    return [(finding.rule, finding.seq) for finding in verify_archive(harness.store())]


def _listed(harness: ArchiveHarness) -> ArchiveManifest:
    listed = manifest.read_manifest(harness.store(), NODE)
    assert listed is not None
    return listed


def _file(harness: ArchiveHarness, place: int) -> Path:
    return harness.root / manifest.node_folder(NODE) / _listed(harness).segments[place].path


def _rewrite(
    harness: ArchiveHarness, place: int, change: Callable[[list[dict[str, Any]]], None]
) -> None:
    """Change a segment as the node itself could: file and manifest agree."""
    file, listed = _file(harness, place), _listed(harness)
    old = pq.ParquetFile(file).read()
    rows = old.to_pylist()
    change(rows)
    events = pa.Table.from_pylist(rows, schema=old.schema)
    content = segment_encoding.encode_parquet(events)
    file.write_bytes(content)
    said = segment_encoding.describe_segment(events, content, rows[0]["seq"], rows[-1]["seq"], 0)
    changed = [*listed.segments]
    changed[place] = replace(said, path=changed[place].path)
    manifest.write_manifest(
        harness.store(),
        manifest.sign_manifest(replace(listed, segments=tuple(changed)), harness.key),
    )


def test_a_whole_archive_has_no_findings(archived: ArchiveHarness) -> None:
    told: list[int] = []
    assert list(verify_archive(archived.store(), told.append)) == []
    assert sum(told) == 30


def test_an_empty_folder_has_no_findings(harness: ArchiveHarness) -> None:
    assert list(verify_archive(harness.store())) == []


def test_a_finding_says_where_and_what(archived: ArchiveHarness) -> None:
    _file(archived, 1).unlink()
    (finding,) = verify_archive(archived.store())
    assert isinstance(finding, ArchiveFinding)
    assert (finding.node, finding.incarnation, finding.seq) == (NODE, "first", 11)
    assert "is missing" in finding.detail


def test_a_changed_file(archived: ArchiveHarness) -> None:
    file = _file(archived, 1)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    assert _found(archived)[0] == (ArchiveRule.SEGMENT_CHANGED, 11)


def test_a_cut_off_file(archived: ArchiveHarness) -> None:
    file = _file(archived, 2)
    file.write_bytes(file.read_bytes()[:-10])
    assert _found(archived) == [(ArchiveRule.SEGMENT_CHANGED, 21)]


def test_a_manifest_that_was_edited(archived: ArchiveHarness) -> None:
    listed = _listed(archived)
    manifest.write_manifest(archived.store(), replace(listed, archived_through=99))
    assert _found(archived) == [(ArchiveRule.MANIFEST_SIGNATURE, None)]


def test_a_manifest_of_another_node(archived: ArchiveHarness) -> None:
    data = (archived.root / manifest.manifest_path(NODE)).read_bytes()
    archived.store().write_file(manifest.manifest_path("node-2"), data)
    assert (ArchiveRule.MANIFEST_SIGNATURE, None) in _found(archived)


def test_a_manifest_that_is_missing_or_nonsense(archived: ArchiveHarness) -> None:
    file = archived.root / manifest.manifest_path(NODE)
    file.write_bytes(b"{")
    assert _found(archived) == [(ArchiveRule.MANIFEST_UNREADABLE, None)]
    file.unlink()
    assert _found(archived) == [(ArchiveRule.MANIFEST_MISSING, None)]


def test_a_segment_left_out_of_the_manifest(archived: ArchiveHarness) -> None:
    listed = _listed(archived)
    shorter = replace(listed, segments=(listed.segments[0], listed.segments[2]))
    manifest.write_manifest(archived.store(), manifest.sign_manifest(shorter, archived.key))
    (finding,) = verify_archive(archived.store())
    assert (finding.rule, finding.seq) == (ArchiveRule.CHAIN_GAP, 11)
    assert "seq 11 to 20" in finding.detail


def test_the_first_segment_left_out(archived: ArchiveHarness) -> None:
    listed = _listed(archived)
    shorter = replace(listed, segments=listed.segments[1:])
    manifest.write_manifest(archived.store(), manifest.sign_manifest(shorter, archived.key))
    assert _found(archived) == [(ArchiveRule.CHAIN_GAP, 1)]


def test_a_group_left_out(archived: ArchiveHarness) -> None:
    def cut(rows: list[dict[str, Any]]) -> None:
        del rows[:3]

    _rewrite(archived, 1, cut)
    assert _found(archived) == [(ArchiveRule.CHAIN_GAP, 11)]


def test_events_left_out_of_a_group(archived: ArchiveHarness) -> None:
    def cut(rows: list[dict[str, Any]]) -> None:
        del rows[5:7]

    _rewrite(archived, 1, cut)
    (finding,) = verify_archive(archived.store())
    assert (finding.rule, finding.seq) == (ArchiveRule.CHAIN_GAP, 16)
    assert "seq 16 to 17" in finding.detail


def test_an_event_that_was_exchanged(archived: ArchiveHarness) -> None:
    def change(rows: list[dict[str, Any]]) -> None:
        rows[1]["digest"] = bytes(32)
        rows[1]["body"] = None

    _rewrite(archived, 1, change)
    assert _found(archived) == [(ArchiveRule.CHAIN_FORK, 11)]


def test_a_body_that_was_exchanged(archived: ArchiveHarness) -> None:
    def change(rows: list[dict[str, Any]]) -> None:
        rows[4]["body"] += b" "

    _rewrite(archived, 1, change)
    assert _found(archived) == [(ArchiveRule.BODY_CHANGED, 15)]


def test_a_number_near_the_limit_is_a_gap_and_is_not_counted_out(archived: ArchiveHarness) -> None:
    """The node signs what it likes: a loop over these numbers would never end."""

    def change(rows: list[dict[str, Any]]) -> None:
        rows[-1]["seq"] = 2**53 - 1

    _rewrite(archived, 1, change)
    assert ArchiveRule.CHAIN_GAP in [rule for rule, _ in _found(archived)]


def test_a_bad_signature(archived: ArchiveHarness) -> None:
    def change(rows: list[dict[str, Any]]) -> None:
        rows[2]["signature"] = bytes(64)

    _rewrite(archived, 1, change)
    assert _found(archived) == [(ArchiveRule.BAD_SIGNATURE, 13)]


def test_a_group_whose_head_was_taken_away(archived: ArchiveHarness) -> None:
    def change(rows: list[dict[str, Any]]) -> None:
        rows[2] |= {"group_first": None, "chain": None, "signature": None}

    _rewrite(archived, 1, change)
    assert _found(archived) == [(ArchiveRule.OPEN_GROUP, 11)]


def test_an_event_that_is_there_twice(archived: ArchiveHarness) -> None:
    def change(rows: list[dict[str, Any]]) -> None:
        rows.insert(5, rows[5])

    _rewrite(archived, 1, change)
    assert _found(archived) == [(ArchiveRule.CHAIN_FORK, 14)]


def _know(harness: ArchiveHarness, key: NodeKey, signer: NodeKey) -> None:
    fact = NodeFact(id=NODE, public_key=key.public, tier="edge", added_by=NODE, added_at=0)
    facts = RoomFacts(node=NODE, at=0, nodes=(fact,))
    room_facts.write_facts(harness.store(), room_facts.sign_facts(facts, signer))


def test_a_key_the_room_knows_is_right(archived: ArchiveHarness) -> None:
    _know(archived, archived.key, archived.key)
    assert _found(archived) == []


def test_a_key_the_room_does_not_know(archived: ArchiveHarness) -> None:
    other = NodeKey.generate(ManualClock(seed=5))
    _know(archived, other, other)
    assert _found(archived) == [(ArchiveRule.WRONG_KEY, None)]


def test_facts_somebody_else_signed_do_not_count(archived: ArchiveHarness) -> None:
    other = NodeKey.generate(ManualClock(seed=5))
    _know(archived, other, archived.key)
    assert _found(archived) == [(ArchiveRule.FACTS_SIGNATURE, None)]


def test_facts_that_cannot_be_read(archived: ArchiveHarness) -> None:
    archived.store().write_file("room/x.json", b"{")
    assert _found(archived) == [(ArchiveRule.FACTS_UNREADABLE, None)]
