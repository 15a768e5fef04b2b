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
from tests.archive.desk import NODE, Desk


@pytest.fixture
def sealed(desk: Desk) -> Desk:
    """Three segments of two groups each."""
    desk.groups(4, 6, 3, 7, 5, 5)
    assert desk.seal() == [(1, 10), (11, 20), (21, 30)]
    return desk


def _found(desk: Desk) -> list[tuple[ArchiveRule, int | None]]:
    return [(finding.rule, finding.seq) for finding in verify_archive(desk.store())]


def _listed(desk: Desk) -> ArchiveManifest:
    listed = manifest.read_manifest(desk.store(), NODE)
    assert listed is not None
    return listed


def _file(desk: Desk, place: int) -> Path:
    return desk.root / manifest.node_folder(NODE) / _listed(desk).segments[place].path


def _rewrite(desk: Desk, place: int, change: Callable[[list[dict[str, Any]]], None]) -> None:
    """Change a segment as the node itself could: file and manifest agree."""
    file, listed = _file(desk, place), _listed(desk)
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
        desk.store(), manifest.sign_manifest(replace(listed, segments=tuple(changed)), desk.key)
    )


def test_a_whole_archive_has_no_findings(sealed: Desk) -> None:
    told: list[int] = []
    assert list(verify_archive(sealed.store(), told.append)) == []
    assert sum(told) == 30


def test_an_empty_folder_has_no_findings(desk: Desk) -> None:
    assert list(verify_archive(desk.store())) == []


def test_a_finding_says_where_and_what(sealed: Desk) -> None:
    _file(sealed, 1).unlink()
    (finding,) = verify_archive(sealed.store())
    assert isinstance(finding, ArchiveFinding)
    assert (finding.node, finding.incarnation, finding.seq) == (NODE, "first", 11)
    assert "is missing" in finding.detail


def test_a_changed_file(sealed: Desk) -> None:
    file = _file(sealed, 1)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    assert _found(sealed)[0] == (ArchiveRule.SEGMENT_CHANGED, 11)


def test_a_cut_off_file(sealed: Desk) -> None:
    file = _file(sealed, 2)
    file.write_bytes(file.read_bytes()[:-10])
    assert _found(sealed) == [(ArchiveRule.SEGMENT_CHANGED, 21)]


def test_a_manifest_that_was_edited(sealed: Desk) -> None:
    listed = _listed(sealed)
    manifest.write_manifest(sealed.store(), replace(listed, sealed_through=99))
    assert _found(sealed) == [(ArchiveRule.MANIFEST_SIGNATURE, None)]


def test_a_manifest_of_another_node(sealed: Desk) -> None:
    data = (sealed.root / manifest.manifest_path(NODE)).read_bytes()
    sealed.store().write_file(manifest.manifest_path("node-2"), data)
    assert (ArchiveRule.MANIFEST_SIGNATURE, None) in _found(sealed)


def test_a_manifest_that_is_missing_or_nonsense(sealed: Desk) -> None:
    file = sealed.root / manifest.manifest_path(NODE)
    file.write_bytes(b"{")
    assert _found(sealed) == [(ArchiveRule.MANIFEST_UNREADABLE, None)]
    file.unlink()
    assert _found(sealed) == [(ArchiveRule.MANIFEST_MISSING, None)]


def test_a_segment_left_out_of_the_manifest(sealed: Desk) -> None:
    listed = _listed(sealed)
    shorter = replace(listed, segments=(listed.segments[0], listed.segments[2]))
    manifest.write_manifest(sealed.store(), manifest.sign_manifest(shorter, sealed.key))
    (finding,) = verify_archive(sealed.store())
    assert (finding.rule, finding.seq) == (ArchiveRule.CHAIN_GAP, 11)
    assert "seq 11 to 20" in finding.detail


def test_the_first_segment_left_out(sealed: Desk) -> None:
    listed = _listed(sealed)
    shorter = replace(listed, segments=listed.segments[1:])
    manifest.write_manifest(sealed.store(), manifest.sign_manifest(shorter, sealed.key))
    assert _found(sealed) == [(ArchiveRule.CHAIN_GAP, 1)]


def test_a_group_left_out(sealed: Desk) -> None:
    def cut(rows: list[dict[str, Any]]) -> None:
        del rows[:3]

    _rewrite(sealed, 1, cut)
    assert _found(sealed) == [(ArchiveRule.CHAIN_GAP, 11)]


def test_events_left_out_of_a_group(sealed: Desk) -> None:
    def cut(rows: list[dict[str, Any]]) -> None:
        del rows[5:7]

    _rewrite(sealed, 1, cut)
    (finding,) = verify_archive(sealed.store())
    assert (finding.rule, finding.seq) == (ArchiveRule.CHAIN_GAP, 16)
    assert "seq 16 to 17" in finding.detail


def test_an_event_that_was_exchanged(sealed: Desk) -> None:
    def change(rows: list[dict[str, Any]]) -> None:
        rows[1]["digest"] = bytes(32)
        rows[1]["body"] = None

    _rewrite(sealed, 1, change)
    assert _found(sealed) == [(ArchiveRule.CHAIN_FORK, 11)]


def test_a_body_that_was_exchanged(sealed: Desk) -> None:
    def change(rows: list[dict[str, Any]]) -> None:
        rows[4]["body"] += b" "

    _rewrite(sealed, 1, change)
    assert _found(sealed) == [(ArchiveRule.BODY_CHANGED, 15)]


def test_a_bad_signature(sealed: Desk) -> None:
    def change(rows: list[dict[str, Any]]) -> None:
        rows[2]["signature"] = bytes(64)

    _rewrite(sealed, 1, change)
    assert _found(sealed) == [(ArchiveRule.BAD_SIGNATURE, 13)]


def test_a_group_whose_head_was_taken_away(sealed: Desk) -> None:
    def change(rows: list[dict[str, Any]]) -> None:
        rows[2] |= {"group_first": None, "chain": None, "signature": None}

    _rewrite(sealed, 1, change)
    assert _found(sealed) == [(ArchiveRule.OPEN_GROUP, 11)]


def test_an_event_that_is_there_twice(sealed: Desk) -> None:
    def change(rows: list[dict[str, Any]]) -> None:
        rows.insert(5, rows[5])

    _rewrite(sealed, 1, change)
    assert _found(sealed) == [(ArchiveRule.CHAIN_FORK, 14)]


def _know(desk: Desk, key: NodeKey, signer: NodeKey) -> None:
    fact = NodeFact(id=NODE, public_key=key.public, tier="edge", added_by=NODE, added_at=0)
    facts = RoomFacts(node=NODE, at=0, nodes=(fact,))
    room_facts.write_facts(desk.store(), room_facts.sign_facts(facts, signer))


def test_a_key_the_room_knows_is_right(sealed: Desk) -> None:
    _know(sealed, sealed.key, sealed.key)
    assert _found(sealed) == []


def test_a_key_the_room_does_not_know(sealed: Desk) -> None:
    other = NodeKey.generate(ManualClock(seed=5))
    _know(sealed, other, other)
    assert _found(sealed) == [(ArchiveRule.WRONG_KEY, None)]


def test_facts_somebody_else_signed_do_not_count(sealed: Desk) -> None:
    other = NodeKey.generate(ManualClock(seed=5))
    _know(sealed, other, sealed.key)
    assert _found(sealed) == [(ArchiveRule.FACTS_SIGNATURE, None)]


def test_facts_that_cannot_be_read(sealed: Desk) -> None:
    sealed.store().write_file("room/x.json", b"{")
    assert _found(sealed) == [(ArchiveRule.FACTS_UNREADABLE, None)]
