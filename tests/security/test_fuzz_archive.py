"""Fuzzing the archive: a node may write anything into its part, and even sign it.

Whoever verifies or reads the archive gets findings or an ArchiveError, and nothing else.
"""

import shutil
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from random import Random

import msgspec
import pytest
from msgspec.structs import replace

from gatepost.archive import manifest, room_facts
from gatepost.archive.archive_store import ArchiveStore
from gatepost.archive.manifest import ArchiveManifest
from gatepost.archive.room_facts import NodeFact, RoomFacts
from gatepost.archive.segment_reader import SegmentReader
from gatepost.archive.verification import verify_archive
from gatepost.errors import ArchiveError
from gatepost.events import NodeKey
from tests.archive.harness import NODE, NOW, ArchiveHarness
from tests.security.mutations import TIMEOUT_SECS, mutate_bytes, mutate_json, run_cases

pytestmark = pytest.mark.timeout(TIMEOUT_SECS)

EVENT = (NOW << 80).to_bytes(16, "big")


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[ArchiveHarness]:
    """An archive of a few segments with bodies, and the facts that its node has signed."""
    filled = ArchiveHarness(tmp_path / "archive")
    filled.groups(3, 2, 8, 4)
    filled.archive_segments(filled.archive(rows=5, age=0))
    fact = NodeFact(id=NODE, public_key=filled.key.public, tier="edge", added_by=NODE, added_at=1)
    facts = RoomFacts(node=NODE, at=NOW, nodes=(fact,))
    filled.store().write_file(
        room_facts.facts_path(NODE), msgspec.json.encode(room_facts.sign_facts(facts, filled.key))
    )
    assert not list(verify_archive(filled.store()))
    yield filled


def test_anything_in_the_place_of_a_file_is_a_finding(
    harness: ArchiveHarness, tmp_path: Path
) -> None:
    names = sorted(harness.files())
    contents = {name: (harness.root / name).read_bytes() for name in names}

    def try_case(number: int, random: Random) -> None:
        name = random.choice(names)
        damage = mutate_json if name.endswith(".json") else mutate_bytes
        damaged = damage(contents[name], random, list(contents.values()))
        (harness.root / name).write_bytes(damaged)
        try:
            findings = _read_everything(harness.root, harness.key)
            assert findings or damaged == contents[name] or name.endswith(".json")
        finally:
            (harness.root / name).write_bytes(contents[name])

    run_cases("archive files", try_case)


def test_anything_that_a_node_signs_is_read_or_a_finding(harness: ArchiveHarness) -> None:
    """The attacker has the key: manifests are signed, and list the very files that are there."""
    store, folder = harness.store(), harness.root / manifest.node_folder(NODE)
    listed = manifest.read_manifest(store, NODE)
    assert listed is not None
    spare = harness.root.with_name("spare")
    shutil.copytree(harness.root, spare)

    def try_case(number: int, random: Random) -> None:
        changed = _mutate_manifest(listed, random)
        if random.random() < 0.5:
            changed = _mutate_segment(listed, folder, random)
        signed = manifest.sign_manifest(changed, harness.key)
        try:
            manifest.write_manifest(store, replace(signed, node=NODE))
            store.write_file(manifest.manifest_path(NODE), manifest.encode_manifest(signed))
            _read_everything(harness.root, harness.key)
        finally:
            shutil.rmtree(folder)
            shutil.copytree(spare / folder.name, folder)

    run_cases("archive signed", try_case)


def _mutate_manifest(listed: ArchiveManifest, random: Random) -> ArchiveManifest:
    while True:
        body = mutate_json(manifest.encode_manifest(listed), random)
        try:
            return msgspec.json.decode(body, type=ArchiveManifest)
        except (ValueError, RecursionError):
            continue


def _mutate_segment(listed: ArchiveManifest, folder: Path, random: Random) -> ArchiveManifest:
    at = random.randrange(len(listed.segments))
    segment = listed.segments[at]
    content = mutate_bytes((folder / segment.path).read_bytes(), random)
    (folder / segment.path).write_bytes(content)
    digest = sha256(content).hexdigest()
    changed = replace(segment, sha256=digest, bytes=len(content))
    return replace(listed, segments=(*listed.segments[:at], changed, *listed.segments[at + 1 :]))


def _read_everything(root: Path, key: NodeKey) -> bool:
    """Verify the archive, and read it as its gateway does; whether anything was found."""
    store = ArchiveStore.open(str(root))
    findings = list(verify_archive(store))
    reader = SegmentReader(store, NODE, key.public)
    try:
        reader.read_stretch("first", "node-2", 0, 100)
        reader.find_events(EVENT, lambda: False)
    except ArchiveError:
        return True
    return bool(findings)
