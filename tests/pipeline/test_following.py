"""The archive is followed until somebody says stop."""

import shutil
from pathlib import Path
from threading import Event

from gatepost.pipeline.jobs.following import follow_archive
from gatepost.pipeline.jobs.pipeline import Pipeline, RunSummary
from gatepost.pipeline.transport import LocalTransport
from tests.pipeline.worlds import World


def test_each_run_takes_in_what_was_archived_since(world: World, tmp_path: Path) -> None:
    archive, tables, stopping = tmp_path / "archive", str(tmp_path / "tables"), Event()
    shutil.copytree(world.archive, archive)
    late = archive / "node=node-04" / "_manifest.json"
    listed = late.read_bytes()
    late.unlink()
    ran: list[RunSummary] = []

    def report(summary: RunSummary) -> None:
        ran.append(summary)
        late.write_bytes(listed)
        if not summary.events:
            stopping.set()

    pipeline = Pipeline(LocalTransport(), str(archive), tables)
    follow_archive(
        pipeline, every=0.01, max_rows=world.truth.events, stopping=stopping, report=report
    )
    assert [summary.batches for summary in ran] == [1, 1, 0]
    world.assert_same(tables)
