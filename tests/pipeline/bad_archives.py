"""Archives that somebody has tampered with, each made from the same right one."""

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec.structs import replace

from gatepost.archive import manifest, room_facts
from gatepost.archive.archive_store import ArchiveStore
from gatepost.archive.manifest import ArchiveManifest
from gatepost.archive.room_facts import RevocationFact
from gatepost.events import NodeKey
from gatepost.pipeline.synth import SynthOptions
from gatepost.pipeline.synth.mesh import build_mesh
from gatepost.testing import ManualClock

OPTIONS = SynthOptions(events=2500, segment_rows=200, seed=3)
VICTIM = "node-02"


def key_of(node: str) -> NodeKey:
    mesh = build_mesh(OPTIONS.seed, OPTIONS.nodes, OPTIONS.duration_ms)
    return mesh.keys[mesh.nodes.index(node)]


def read_listed(root: Path, node: str = VICTIM) -> ArchiveManifest:
    listed = manifest.read_manifest(ArchiveStore.open(str(root)), node)
    assert listed is not None
    return listed


def sign_and_write(root: Path, listed: ArchiveManifest, key: NodeKey | None = None) -> None:
    signed = manifest.sign_manifest(listed, key or key_of(listed.node))
    manifest.write_manifest(ArchiveStore.open(str(root)), signed)


def empty(root: Path) -> None:
    shutil.rmtree(root)
    root.mkdir()


def delete_folder(root: Path) -> None:
    shutil.rmtree(root / f"node={VICTIM}")


def add_node_without_archive(root: Path) -> None:
    """All gateways know a node that has never written an event."""
    store, key = ArchiveStore.open(str(root)), NodeKey.generate(CLOCK)
    for facts in room_facts.read_all_facts(store):
        fresh = replace(facts.nodes[0], id="node-99", public_key=key.public)
        grown = replace(facts, nodes=(*facts.nodes, fresh))
        room_facts.write_facts(store, room_facts.sign_facts(grown, key_of(facts.node)))


CLOCK = ManualClock(seed=77)


def leave_out_last_segment(root: Path) -> None:
    """The node itself hides its last events, and signs that."""
    listed = read_listed(root)
    short = listed.segments[:-1]
    sign_and_write(root, replace(listed, segments=short, archived_through=short[-1].last))
    (root / f"node={VICTIM}" / listed.segments[-1].path).unlink()


def hide_last_segment_and_facts(root: Path) -> None:
    """As above, and it also pretends not to have been there since."""
    leave_out_last_segment(root)
    store = ArchiveStore.open(str(root))
    facts = room_facts.read_facts(store, VICTIM)
    assert facts is not None
    before = replace(facts, at=read_listed(root).segments[-1].archived_at)
    room_facts.write_facts(store, room_facts.sign_facts(before, key_of(VICTIM)))


def add_stranger(root: Path) -> None:
    """A folder like that of another node, under a name and a key that nobody knows."""
    shutil.copytree(root / f"node={VICTIM}", root / "node=stranger")
    listed = replace(read_listed(root), node="stranger")
    sign_and_write(root, listed, NodeKey.generate(CLOCK))


def delete_room_facts(root: Path) -> None:
    shutil.rmtree(root / "room")


def forge_manifest(root: Path) -> None:
    """Somebody else's key."""
    sign_and_write(root, read_listed(root), NodeKey.generate(CLOCK))


def add_strange_gateway(root: Path) -> None:
    """A gateway that nobody knows vouches for a second key of a node, and that key signs."""
    store, own, second = (
        ArchiveStore.open(str(root)),
        NodeKey.generate(CLOCK),
        NodeKey.generate(CLOCK),
    )
    facts = room_facts.read_all_facts(store)[0]
    strange = replace(
        facts,
        node="evil",
        nodes=(*facts.nodes, replace(facts.nodes[0], id="evil", public_key=own.public)),
        revocations=(
            RevocationFact(node=VICTIM, public_key=second.public, by="evil", at=9, last_seq=10**9),
        ),
    )
    room_facts.write_facts(store, room_facts.sign_facts(strange, own))
    sign_and_write(root, read_listed(root), second)


def delete_facts_of_one(root: Path) -> None:
    (root / room_facts.facts_path(VICTIM)).unlink()


def damage_segment(root: Path) -> None:
    path = root / f"node={VICTIM}" / read_listed(root).segments[2].path
    path.write_bytes(path.read_bytes()[:-200])


def delete_segment(root: Path) -> None:
    (root / f"node={VICTIM}" / read_listed(root).segments[2].path).unlink()


def resign_segment(root: Path, write: Callable[[Path], None], index: int = 2) -> None:
    """The node itself archives another file, and signs that as the same events."""
    listed = read_listed(root)
    segment = listed.segments[index]
    path = root / f"node={VICTIM}" / segment.path
    write(path)
    content = path.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    segments = list(listed.segments)
    segments[index] = replace(segment, sha256=digest, bytes=len(content))
    sign_and_write(root, replace(listed, segments=tuple(segments)))


def rewrite_segment(root: Path, change: Callable[[pa.Table], pa.Table], index: int = -1) -> None:
    """The node itself archives something odd, and signs that."""
    listed = read_listed(root)
    segment = listed.segments[index]
    path = root / f"node={VICTIM}" / segment.path
    table = change(pq.ParquetFile(path).read())
    pq.write_table(table, path)
    content = path.read_bytes()
    changed = replace(
        segment,
        sha256=hashlib.sha256(content).hexdigest(),
        bytes=len(content),
        min_created_at=min(table["created_at"].to_pylist()),
        max_created_at=max(table["created_at"].to_pylist()),
        archived_at=max(segment.archived_at, *table["created_at"].to_pylist()),
    )
    segments = list(listed.segments)
    segments[index] = changed
    sign_and_write(root, replace(listed, segments=tuple(segments)))


def write_event_of_the_future(root: Path) -> None:
    """One event, 400 days ahead."""

    def change(table: pa.Table) -> pa.Table:
        times = table["created_at"].to_pylist()
        times[-1] += 400 * 24 * 3_600_000
        place = table.schema.get_field_index("created_at")
        field = table.schema.field("created_at")
        return table.set_column(place, field, pa.array(times, pa.int64()))

    rewrite_segment(root, change)


def drop_columns(root: Path) -> None:
    """As an older version archived."""
    rewrite_segment(root, lambda table: table.drop_columns(["policy_version", "traceparent"]))


def retype_column(root: Path) -> None:
    def change(table: pa.Table) -> pa.Table:
        place = table.schema.get_field_index("kind")
        numbers = pa.array(range(table.num_rows), pa.int64())
        return table.set_column(place, "kind", numbers)

    rewrite_segment(root, change, 2)


def change_column(
    name: str, change: Callable[[list[Any]], list[Any]]
) -> Callable[[pa.Table], pa.Table]:
    """A change of the values of one column."""

    def change_values(table: pa.Table) -> pa.Table:
        place, field = table.schema.get_field_index(name), table.schema.field(name)
        return table.set_column(place, field, pa.array(change(table[name].to_pylist()), field.type))

    return change_values


def null_column(name: str) -> Callable[[pa.Table], pa.Table]:
    """A change of all values of a column to null, whether they are required or not."""

    def change(table: pa.Table) -> pa.Table:
        place, field = table.schema.get_field_index(name), table.schema.field(name)
        nulls = pa.nulls(table.num_rows, field.type)
        return table.set_column(place, field.with_nullable(True), nulls)

    return change


def empty_segment(root: Path) -> None:
    """The node itself archives a file without events, and signs that."""
    resign_segment(root, lambda path: pq.write_table(pq.read_schema(path).empty_table(), path))


def name_node_in_column(root: Path) -> None:
    """The node itself says that its events are of another one."""

    def change(table: pa.Table) -> pa.Table:
        return table.append_column("node", pa.array(["node-01"] * table.num_rows))

    rewrite_segment(root, change, 2)


def write_newer_segment(root: Path) -> None:
    """As a later Gatepost would, that has no more use for a column that this one requires."""
    newer = {"gatepost.schema": "2"}

    def change(table: pa.Table) -> pa.Table:
        return table.drop_columns(["prev_seq_to"]).replace_schema_metadata(newer)

    rewrite_segment(root, change, 2)


def write_newer_facts(root: Path) -> None:
    content = b'{"version": 2, "gateway": "node-02", "knows": []}'
    (root / room_facts.facts_path(VICTIM)).write_bytes(content)


def leave_out_digests(root: Path) -> None:
    rewrite_segment(root, null_column("digest"), 2)


def move_to_other_incarnation(root: Path) -> None:
    rewrite_segment(root, change_column("incarnation", lambda values: ["0"] * len(values)), 2)


def write_odd_progress(root: Path) -> None:
    rewrite_segment(root, change_column("progress", lambda values: [float("nan")] * 3), 2)


def name_far_id(root: Path) -> None:
    """One event of three, whose id was drawn in 1970."""
    rewrite_segment(root, change_column("event_id", lambda ids: [bytes(16), *ids[1:]]), 2)


def shorten_ids(root: Path) -> None:
    """Two events of three, whose ids are none."""
    rewrite_segment(root, change_column("event_id", lambda ids: [b"ab", b"", *ids[2:]]), 2)


def enlarge_blob(root: Path) -> None:
    """One event, whose blob is so large that sums overflow."""

    def change(table: pa.Table) -> pa.Table:
        place = table.schema.get_field_index("blob_size")
        sizes = pa.array([2**63 - 1] * table.num_rows, pa.int64())
        return table.set_column(place, table.schema.field(place), sizes)

    rewrite_segment(root, change, 2)


def scramble_pages(root: Path) -> None:
    """The node itself signs a file whose content cannot be decoded."""
    listed = read_listed(root)
    segment = listed.segments[2]
    path = root / f"node={VICTIM}" / segment.path
    content = path.read_bytes()
    half = len(content) // 2
    content = content[:200] + bytes(byte ^ 0x55 for byte in content[200:half]) + content[half:]
    path.write_bytes(content)
    changed = replace(segment, sha256=hashlib.sha256(content).hexdigest())
    segments = (*listed.segments[:2], changed, *listed.segments[3:])
    sign_and_write(root, replace(listed, segments=segments))


def replace_segment_by_pipe(root: Path) -> None:
    """Nobody ever writes to it: a reader would wait forever."""
    delete_segment(root)
    os.mkfifo(root / f"node={VICTIM}" / read_listed(root).segments[2].path)


def list_impossible_date(root: Path) -> None:
    listed = read_listed(root)
    dated = replace(listed.segments[2], path="date=2026-13-45/x.parquet")
    sign_and_write(root, replace(listed, segments=(*listed.segments[:2], dated)))


def write_newer_manifest(root: Path) -> None:
    """As a later Gatepost would: with fields that this one does not know, and others gone."""
    content = b'{"version": 7, "node": "node-02", "parts": []}'
    (root / manifest.manifest_path(VICTIM)).write_bytes(content)


def leave_out_first_segment(root: Path) -> None:
    """The manifest says that the outbox begins with 1, and lists later events only."""
    listed = read_listed(root)
    sign_and_write(root, replace(listed, segments=listed.segments[1:]))


def garble_manifest(root: Path) -> None:
    (root / manifest.manifest_path(VICTIM)).write_bytes(b"{}")


Tampering = Callable[[Path], None]
