"""An audit finds what was planted, and nothing else; of the real protocol it finds nothing."""

import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gatepost.archive import manifest, room_facts
from gatepost.archive.archive_store import ArchiveStore
from gatepost.archive.room_facts import RoomFacts
from gatepost.pipeline.audit.rules import RULES
from gatepost.pipeline.jobs.audit import audit_archive
from gatepost.pipeline.small_tables import read_rows
from gatepost.pipeline.synth import SynthOptions, generate_archive
from gatepost.pipeline.tables import schemas
from gatepost.pipeline.transport import LocalTransport
from simulation.gateways import RunShape
from tests.conftest import choose
from tests.pipeline.planted_faults import FAULTS, VIOLATIONS, PlantedTruth, generate_planted
from tests.pipeline.simulated import archive_of

# Whole runs of Spark, on machines that do other things too.
pytestmark = pytest.mark.timeout(600)

BROKEN = [plant.__name__ for plant in VIOLATIONS]
ROOMS = [(0, 4), (1, 3), (2, 5), (3, 6), (4, 8)]


def made(folder: Path, seed: int, nodes: int, *faults: str) -> tuple[str, PlantedTruth]:
    options = SynthOptions(events=choose(6000, 12_000), seed=seed, nodes=nodes, segment_rows=1500)
    return str(folder), generate_planted(str(folder), options, faults)


class Found(NamedTuple):
    rule: str
    node: str | None
    incarnation: str | None
    seq: int | None
    sentence: str


def found_in(archive: str) -> list[Found]:
    """All that an audit finds."""
    with TemporaryDirectory() as tables:
        audit_archive(LocalTransport(), archive, tables)
        rows = read_rows(tables, schemas.VIOLATIONS)
    return [Found(*(row[name] for name in Found._fields)) for row in rows]


def assert_exactly(found: list[Any], truth: PlantedTruth) -> None:
    """Every planted violation is found where it is, and nothing besides."""
    left = list(found)
    for known in truth.violations:
        shown = [row for row in left if row.rule == known.rule and row.node == known.node]
        assert shown, known
        for row in shown:
            inside = range(known.group_first or 0, (known.group_last or 0) + 1)
            assert row.seq is None or row.seq in known.seqs or row.seq in inside, known
            assert row.incarnation == known.incarnation
            assert row.sentence == RULES[row.rule]
            left.remove(row)
        # Only a node that was shut out breaks its rule with every event; all else is one breach.
        times = len(known.seqs) if known.rule == "revoked_node" else 1
        assert len(shown) == times, known
    assert left == []


@pytest.mark.parametrize(("seed", "nodes"), ROOMS[: choose(1, len(ROOMS))])
def test_every_planted_violation_is_found_and_nothing_else(
    tmp_path: Path, seed: int, nodes: int
) -> None:
    root, truth = made(tmp_path, seed, nodes, *FAULTS)
    assert {known.rule for known in truth.violations} == set(BROKEN)
    assert_exactly(found_in(root), truth)


@pytest.mark.full
@pytest.mark.parametrize(("seed", "nodes"), ROOMS)
@pytest.mark.parametrize("fault", [*BROKEN, None])
def test_each_alone(tmp_path: Path, seed: int, nodes: int, fault: str | None) -> None:
    root, truth = made(tmp_path, seed, nodes, *([fault] if fault else []))
    assert len(truth.violations) == bool(fault)
    assert_exactly(found_in(root), truth)


# -- files that are not what they were


def test_a_right_archive_passes_and_what_is_done_to_its_files_is_found(tmp_path: Path) -> None:
    root, tables = tmp_path / "archive", str(tmp_path / "tables")
    generate_archive(str(root), SynthOptions(events=3000, bodies=True, segment_rows=300))
    first = audit_archive(LocalTransport(), str(root), tables)
    assert (first.violations, first.keys) == ({}, "room")
    assert first.events > 2500
    one, two, three = sorted(root.glob("node=node-01/date=*/*.parquet"))[:3]
    _alter_event(one)
    two.write_bytes(two.read_bytes()[:-100])
    three.unlink()
    _say_of_itself(root, "node-02")
    (root / "room" / "node-03.json").write_bytes(b"{}")
    _change(manifest_of(root, "node-04"), b'"archivedThrough":', b'"archivedThrough":1')
    again = audit_archive(LocalTransport(), str(root), tables)
    assert again.violations.keys() >= {
        *("altered_event", "altered_segment", "chain_gap", "room_facts", "unsigned_manifest"),
    }
    assert again.violations["room_facts"] == 2
    assert again.violations["unsigned_manifest"] == 1
    assert again.violations["altered_event"] == 1
    # The truncated file counts twice: it is another file, and cannot be read.
    assert again.violations["altered_segment"] == 3


def test_without_the_word_of_others_keys_are_self_asserted(tmp_path: Path) -> None:
    root = tmp_path / "archive"
    generate_archive(str(root), SynthOptions(events=3000))
    shutil.rmtree(root / "room")
    manifest_of(root, "node-02").unlink()
    found = audit_archive(LocalTransport(), str(root), str(tmp_path / "tables"))
    assert found.keys == "self-asserted"
    assert found.self_asserted == ("node-01", "node-03", "node-04")
    assert set(found.unwitnessed) >= {"node-01", "node-03", "node-04"}
    assert found.violations == {"unsigned_manifest": 1}
    # Nobody vouches for anybody, and events of node-02 are missed.
    assert found.unjudged == 2


def manifest_of(root: Path, node: str) -> Path:
    return root / manifest.manifest_path(node)


def _alter_event(path: Path) -> None:
    """Change one event's bytes, and leave its digest as it was."""
    table = pq.ParquetFile(path).read()
    bodies: list[Any] = table.column("body").to_pylist()
    bodies[0] = bytes([bodies[0][0] ^ 1]) + bodies[0][1:]
    place = table.schema.get_field_index("body")
    pq.write_table(table.set_column(place, "body", pa.array(bodies, pa.binary())), path)


def _say_of_itself(root: Path, node: str) -> None:
    """A gateway's word, without its signature."""
    store = ArchiveStore.open(str(root))
    facts = room_facts.read_facts(store, node)
    assert facts is not None
    room_facts.write_facts(store, RoomFacts(node=node, at=facts.at, nodes=facts.nodes))


def _change(path: Path, old: bytes, new: bytes) -> None:
    content = path.read_bytes()
    assert old in content
    path.write_bytes(content.replace(old, new))


# -- the real protocol


@pytest.mark.parametrize("seed", range(choose(1, 20)))
def test_the_protocol_under_faults_breaks_no_promise(
    tmp_path: Path, seed: int, count: Callable[[int, int], int]
) -> None:
    """Crashes, partitions, retries, fallbacks, moves and journals restored from backups."""
    verdict = archive_of(tmp_path, seed + 3, RunShape(messages=count(150, 500)))
    assert verdict.ok, verdict
    assert verdict.counts.processed > 100
    found = found_in(str(tmp_path))
    assert found == [], f"seed {seed + 3}"
