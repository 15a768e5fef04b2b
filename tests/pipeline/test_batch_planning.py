"""Planning a batch of very many segments: a few hundred bytes for each, and no file is opened."""

import tracemalloc
from pathlib import Path

import pytest

from gatepost.archive import manifest
from gatepost.archive.archive_store import ArchiveStore
from gatepost.archive.manifest import ArchivedIncarnation, ArchiveManifest, ArchiveSegment
from gatepost.events import NodeKey
from gatepost.pipeline import archive_admission, read_plan
from gatepost.pipeline.archive_reader import ArchiveReader
from gatepost.pipeline.jobs.batch_ledger import NO_BATCH, PipelineBatch
from gatepost.pipeline.jobs.batch_plan import BatchPlanner
from gatepost.pipeline.objectives import Objectives
from gatepost.pipeline.read_plan import Slice
from gatepost.pipeline.transport import LocalTransport, plan_shares

NODES, SEGMENTS, ROWS = 20, 100, 100
AT, HOUR = 1_772_524_800_000, 3_600_000
# 3,000 nodes with 1,000 segments each have three million, and a driver 2 GiB.
MOST_BYTES = 650


def _list_segment(number: int) -> ArchiveSegment:
    first, at = number * ROWS + 1, AT + number * HOUR
    last = first + ROWS - 1
    return ArchiveSegment(
        path=f"date=2026-03-03/{first:020}-{last:020}.parquet",
        incarnation="a1b2c3d4e5f60718",
        first=first,
        last=last,
        rows=ROWS,
        bytes=20_000 + number,
        sha256=f"{number:064x}",
        min_created_at=at,
        max_created_at=at + HOUR - 1,
        chain="0" * 64,
        archived_at=at + HOUR,
    )


def _write_manifest(root: Path, number: int, *segments: ArchiveSegment) -> None:
    listed = ArchiveManifest(
        node=f"node-{number:04}",
        public_key=b"",
        incarnations=(ArchivedIncarnation("a1b2c3d4e5f60718", 1),),
        segments=segments,
        archived_through=segments[-1].last,
    )
    key = NodeKey((number + 1).to_bytes(32, "big"))
    manifest.write_manifest(ArchiveStore.open(str(root)), manifest.sign_manifest(listed, key))


def test_a_plan_needs_few_bytes_for_each_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(NODES):
        _write_manifest(tmp_path, number, *map(_list_segment, range(SEGMENTS)))
    # Executors check files; here there are none.
    monkeypatch.setattr(archive_admission, "check_files", lambda *_: {})
    _plan_first_batch(tmp_path)
    tracemalloc.start()
    try:
        slices = _plan_first_batch(tmp_path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert sum(each.rows for each in slices) == NODES * SEGMENTS * ROWS
    assert peak / (NODES * SEGMENTS) < MOST_BYTES


def _plan_first_batch(archive: Path) -> list[Slice]:
    planner = BatchPlanner(LocalTransport(), ArchiveReader(str(archive)), Objectives())
    plan = planner.plan_next(NO_BATCH, 100_000_000)
    assert plan is not None
    slices = planner.slices_of(PipelineBatch(1, {}, plan.end))
    plan_shares(read_plan.pack_slices(slices, 2, 2_000_000))
    return slices
