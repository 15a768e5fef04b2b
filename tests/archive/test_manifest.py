"""The manifest: signed, and strict about it."""

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from gatepost.archive import manifest
from gatepost.archive.archive_store import ArchiveStore
from gatepost.archive.manifest import ArchivedIncarnation, ArchiveManifest, ArchiveSegment
from gatepost.errors import ArchiveError
from gatepost.events import NodeKey
from gatepost.testing import ManualClock
from tests.archive.harness import NODE, ArchiveHarness

KEY = NodeKey.generate(ManualClock())
SEGMENT = ArchiveSegment(
    path="date=2026-03-02/1-9.parquet", incarnation="a", first=1, last=9, rows=9, bytes=100,
    sha256="00" * 32, min_created_at=1, max_created_at=2, chain="00" * 32, archived_at=3,
)  # fmt: skip


def _signed() -> ArchiveManifest:
    bare = ArchiveManifest(node=NODE, public_key=KEY.public)
    return manifest.sign_manifest(manifest.append_segment(bare, SEGMENT, 1), KEY)


def test_it_survives_being_written_and_read(harness: ArchiveHarness) -> None:
    manifest.write_manifest(harness.store(), _signed())
    assert manifest.read_manifest(harness.store(), NODE) == _signed()
    assert manifest.archived_nodes(harness.store()) == [NODE]


def test_the_form_on_disk() -> None:
    document = msgspec.json.decode(manifest.encode_manifest(_signed()))
    assert document["incarnations"] == [{"id": "a", "firstSeq": 1}]
    assert set(document["segments"][0]) == {
        *("path", "incarnation", "first", "last", "rows", "bytes", "sha256"),
        *("minCreatedAt", "maxCreatedAt", "chain", "archivedAt"),
    }
    assert document["archivedThrough"] == 9


@pytest.mark.parametrize(
    "changed",
    [
        {"node": "node-2"},
        {"archived_through": 8},
        {"segments": ()},
        {"segments": (replace(SEGMENT, sha256="01"),)},
        {"incarnations": (ArchivedIncarnation("a", 2),)},
        {"public_key": NodeKey.generate(ManualClock(seed=1)).public},
    ],
)
def test_every_part_is_signed(changed: dict[str, object]) -> None:
    assert manifest.is_manifest_signed(_signed())
    assert not manifest.is_manifest_signed(replace(_signed(), **changed))


def test_an_incarnation_is_listed_once() -> None:
    again = replace(SEGMENT, first=10, last=12, rows=3)
    other = replace(SEGMENT, first=13, last=14, rows=2, incarnation="b")
    grown = manifest.append_segment(manifest.append_segment(_signed(), again, 1), other, 13)
    assert grown.incarnations == (ArchivedIncarnation("a", 1), ArchivedIncarnation("b", 13))
    assert (grown.rows, grown.archived_through) == (14, 14)


def test_what_is_no_manifest_is_refused(harness: ArchiveHarness) -> None:
    store: ArchiveStore = harness.store()
    for content in (b"", b"{}", b"\xff", b"[1]"):
        store.write_file(manifest.manifest_path(NODE), content)
        with pytest.raises(ArchiveError, match="restore it from a copy"):
            manifest.read_manifest(store, NODE)
    store.write_file(
        manifest.manifest_path(NODE), manifest.encode_manifest(replace(_signed(), version=9))
    )
    with pytest.raises(ArchiveError, match="upgrade"):
        manifest.read_manifest(store, NODE)


@pytest.mark.parametrize(
    "lie",
    [
        {"path": "../node=other/date=2026-03-02/1-9.parquet"},
        {"path": "/etc/passwd"},
        {"sha256": "no hex"},
        {"chain": ""},
        {"last": 2**63},
    ],
)
def test_a_segment_that_cannot_be_is_refused(harness: ArchiveHarness, lie: dict[str, Any]) -> None:
    listed = replace(_signed(), segments=(replace(SEGMENT, **lie),))
    manifest.write_manifest(harness.store(), manifest.sign_manifest(listed, KEY))
    with pytest.raises(ArchiveError, match="is not a manifest"):
        manifest.read_manifest(harness.store(), NODE)


def test_a_manifest_that_is_nested_too_deeply_is_refused(harness: ArchiveHarness) -> None:
    harness.store().write_file(manifest.manifest_path(NODE), b'{"x":' + b"[" * 100_000)
    with pytest.raises(ArchiveError, match="is not a manifest"):
        manifest.read_manifest(harness.store(), NODE)
