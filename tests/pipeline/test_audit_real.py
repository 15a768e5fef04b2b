"""Three real gateways, one killed and one switched off: their archives keep every promise."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from examples import demo
from gatepost.archive.archive_store import ArchiveStore
from gatepost.archive.verification import verify_archive
from gatepost.pipeline.jobs.audit import audit_archive
from gatepost.pipeline.transport import LocalTransport
from gatepost.testing.history import HistoryVerdict


@pytest.mark.timeout(900)
def test_the_archives_of_real_gateways_keep_every_promise(
    spark: SparkSession,
    tmp_path: Path,
    count: Callable[[int, int], int],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With a kill -9, a node asleep, a fallback, failing turns and replays."""
    # Turns fail on purpose.
    caplog.set_level(logging.CRITICAL, "gatepost.client")
    town = demo.DemoMesh(tmp_path, seed=5)
    total = count(180, 3000)
    verdict = played(town, total)
    assert verdict.ok, verdict
    assert town.kills == 1
    assert town.taken_over > 0
    assert list(verify_archive(ArchiveStore.open(str(town.archive)))) == []
    found = audit_archive(LocalTransport(), str(town.archive), str(tmp_path / "tables"))
    assert (found.violations, found.keys) == ({}, "room")
    # A message, its acceptance and its end at least, of everything sent.
    assert found.events >= 3 * total


def played(town: demo.DemoMesh, total: int) -> HistoryVerdict:
    with contextlib.ExitStack() as running:
        for gateway in town.gateways.values():
            running.enter_context(gateway)
        town.join_gateways()
        _, verdict = asyncio.run(demo.run_scenario(town, total))
    return verdict
