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
def sealed(harness: ArchiveHarness) -> ArchiveHarness:
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


def test_a_whole_archive_has_no_findings(sealed: ArchiveHarness) -> None:
    told: list[int] = []
    assert list(verify_archive(sealed.store(), told.append)) == []
    assert sum(told) == 30


def test_an_empty_folder_has_no_findings(harness: ArchiveHarness) -> None:
    assert list(verify_archive(harness.store())) == []


def test_a_finding_says_where_and_what(sealed: ArchiveHarness) -> None:
    _file(sealed, 1).unlink()
    (finding,) = verify_archive(sealed.store())
    assert isinstance(finding, ArchiveFinding)
    assert (finding.node, finding.incarnation, finding.seq) == (NODE, "first", 11)
    assert "is missing" in finding.detail


def test_a_changed_file(sealed: ArchiveHarness) -> None:
    file = _file(sealed, 1)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    assert _found(sealed)[0] == (ArchiveRule.SEGMENT_CHANGED, 11)


def test_a_cut_off_file(sealed: ArchiveHarness) -> None:
    file = _file(sealed, 2)
    file.write_bytes(file.read_bytes()[:-10])
    assert _found(sealed) == [(ArchiveRule.SEGMENT_CHANGED, 21)]


def test_a_manifest_that_was_edited(sealed: ArchiveHarness) -> None:
    listed = _listed(sealed)
    manifest.write_manifest(sealed.store(), replace(listed, archived_through=99))
    assert _found(sealed) == [(ArchiveRule.MANIFEST_SIGNATURE, None)]


def test_a_manifest_of_another_node(sealed: ArchiveHarness) -> None:
    data = (sealed.root / manifest.manifest_path(NODE)).read_bytes()
    sealed.store().write_file(manifest.manifest_path("node-2"), data)
    assert (ArchiveRule.MANIFEST_SIGNATURE, None) in _found(sealed)


def test_a_manifest_that_is_missing_or_nonsense(sealed: ArchiveHarness) -> None:
    file = sealed.root / manifest.manifest_path(NODE)
    file.write_bytes(b"{")
    assert _found(sealed) == [(ArchiveRule.MANIFEST_UNREADABLE, None)]
    file.unlink()
    assert _found(sealed) == [(ArchiveRule.MANIFEST_MISSING, None)]


def test_a_segment_left_out_of_the_manifest(sealed: ArchiveHarness) -> None:
    listed = _listed(sealed)
    shorter = replace(listed, segments=(listed.segments[0], listed.segments[2]))
    manifest.write_manifest(sealed.store(), manifest.sign_manifest(shorter, sealed.key))
    (finding,) = verify_archive(sealed.store())
    assert (finding.rule, finding.seq) == (ArchiveRule.CHAIN_GAP, 11)
    assert "seq 11 to 20" in finding.detail


def test_the_first_segment_left_out(sealed: ArchiveHarness) -> None:
    listed = _listed(sealed)
    shorter = replace(listed, segments=listed.segments[1:])
    manifest.write_manifest(sealed.store(), manifest.sign_manifest(shorter, sealed.key))
    assert _found(sealed) == [(ArchiveRule.CHAIN_GAP, 1)]


def test_a_group_left_out(sealed: ArchiveHarness) -> None:
    def cut(rows: list[dict[str, Any]]) -> None:
        del rows[:3]

    _rewrite(sealed, 1, cut)
    assert _found(sealed) == [(ArchiveRule.CHAIN_GAP, 11)]


def test_events_left_out_of_a_group(sealed: ArchiveHarness) -> None:
    def cut(rows: list[dict[str, Any]]) -> None:
        del rows[5:7]

    _rewrite(sealed, 1, cut)
    (finding,) = verify_archive(sealed.store())
    assert (finding.rule, finding.seq) == (ArchiveRule.CHAIN_GAP, 16)
    assert "seq 16 to 17" in finding.detail


def test_an_event_that_was_exchanged(sealed: ArchiveHarness) -> None:
    def change(rows: list[dict[str, Any]]) -> None:
        rows[1]["digest"] = bytes(32)
        rows[1]["body"] = None

    _rewrite(sealed, 1, change)
    assert _found(sealed) == [(ArchiveRule.CHAIN_FORK, 11)]


def test_a_body_that_was_exchanged(sealed: ArchiveHarness) -> None:
    def change(rows: list[dict[str, Any]]) -> None:
        rows[4]["body"] += b" "

    _rewrite(sealed, 1, change)
    assert _found(sealed) == [(ArchiveRule.BODY_CHANGED, 15)]


def test_a_number_near_the_limit_is_a_gap_and_is_not_counted_out(sealed: ArchiveHarness) -> None:
    """The node signs what it likes: a loop over these numbers would never end."""

    def change(rows: list[dict[str, Any]]) -> None:
        rows[-1]["seq"] = 2**53 - 1

    _rewrite(sealed, 1, change)
    assert ArchiveRule.CHAIN_GAP in [rule for rule, _ in _found(sealed)]


def test_a_bad_signature(sealed: ArchiveHarness) -> None:
    def change(rows: list[dict[str, Any]]) -> None:
        rows[2]["signature"] = bytes(64)

    _rewrite(sealed, 1, change)
    assert _found(sealed) == [(ArchiveRule.BAD_SIGNATURE, 13)]


def test_a_group_whose_head_was_taken_away(sealed: ArchiveHarness) -> None:
    def change(rows: list[dict[str, Any]]) -> None:
        rows[2] |= {"group_first": None, "chain": None, "signature": None}

    _rewrite(sealed, 1, change)
    assert _found(sealed) == [(ArchiveRule.OPEN_GROUP, 11)]


def test_an_event_that_is_there_twice(sealed: ArchiveHarness) -> None:
    def change(rows: list[dict[str, Any]]) -> None:
        rows.insert(5, rows[5])

    _rewrite(sealed, 1, change)
    assert _found(sealed) == [(ArchiveRule.CHAIN_FORK, 14)]


def _know(harness: ArchiveHarness, key: NodeKey, signer: NodeKey) -> None:
    fact = NodeFact(id=NODE, public_key=key.public, tier="edge", added_by=NODE, added_at=0)
    facts = RoomFacts(node=NODE, at=0, nodes=(fact,))
    room_facts.write_facts(harness.store(), room_facts.sign_facts(facts, signer))


def test_a_key_the_room_knows_is_right(sealed: ArchiveHarness) -> None:
    _know(sealed, sealed.key, sealed.key)
    assert _found(sealed) == []


def test_a_key_the_room_does_not_know(sealed: ArchiveHarness) -> None:
    other = NodeKey.generate(ManualClock(seed=5))
    _know(sealed, other, other)
    assert _found(sealed) == [(ArchiveRule.WRONG_KEY, None)]


def test_facts_somebody_else_signed_do_not_count(sealed: ArchiveHarness) -> None:
    other = NodeKey.generate(ManualClock(seed=5))
    _know(sealed, other, sealed.key)
    assert _found(sealed) == [(ArchiveRule.FACTS_SIGNATURE, None)]


def test_facts_that_cannot_be_read(sealed: ArchiveHarness) -> None:
    sealed.store().write_file("room/x.json", b"{")
    assert _found(sealed) == [(ArchiveRule.FACTS_UNREADABLE, None)]
