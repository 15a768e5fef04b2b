"""How much there is to do, before it is decided who does it."""

import shutil
from pathlib import Path

from gatepost.pipeline.jobs.pipeline import Pipeline, estimate_rows
from gatepost.pipeline.transport import LocalTransport
from tests.pipeline.worlds import World


def test_the_hours_that_change_count_too(world: World, tmp_path: Path) -> None:
    archive, tables = tmp_path / "archive", str(tmp_path / "tables")
    shutil.copytree(world.archive, archive)
    late = archive / "node=node-04" / "_manifest.json"
    listed = late.read_bytes()
    late.unlink()
    before = estimate_rows(str(archive), tables)
    assert Pipeline(LocalTransport(), str(archive), tables).run().events == before
    assert estimate_rows(str(archive), tables) == 0
    late.write_bytes(listed)
    fresh = sum(world.truth.nodes["node-04"].values())
    assert estimate_rows(str(archive), tables) > fresh + before // 4
