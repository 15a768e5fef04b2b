"""Three real gateways, one killed and one switched off: their archives keep every promise."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from examples import demo
from examples.delegation import DelegationResult
from gatepost.archive.archive_store import ArchiveStore
from gatepost.archive.verification import verify_archive
from gatepost.ledger import Ledger
from gatepost.pipeline.jobs.audit import audit_archive
from gatepost.pipeline.jobs.pipeline import update_tables
from gatepost.pipeline.report.gatherer import gather_report
from gatepost.pipeline.small_tables import open_table
from gatepost.pipeline.tables import schemas
from gatepost.pipeline.transport import SparkTransport
from simulation.history import HistoryVerdict
from tests.waiting import wait_until


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
    delegated, verdict, ledger = played(town, total)
    assert verdict.ok, verdict
    assert delegated.fine, delegated
    assert town.kills == 1
    assert town.taken_over > 0
    assert list(verify_archive(ArchiveStore.open(str(town.archive)))) == []
    transport, tables = SparkTransport(spark), str(tmp_path / "tables")
    found = audit_archive(transport, str(town.archive), tables)
    assert (found.violations, found.keys) == ({}, "room")
    # A message, its acceptance and its end at least, of everything sent.
    assert found.events >= 3 * total
    assert (found.ledger, ledger) == (None, verdict.ledger)
    assert update_tables(transport, str(town.archive), tables).events == found.events
    check_tables_of_tasks(tables, delegated)
    check_ledger(transport, str(town.archive), tables, ledger)


def check_tables_of_tasks(tables: str, delegated: DelegationResult) -> None:
    """The tables of tasks come from the hub's own events, and find the reviews it has open."""
    tasks = [row for row in all_rows(tables, schemas.TASKS) if row["capability_id"] == "review"]
    assert sorted(row["state"] for row in tasks) == ["cancelled", "completed", "failed"]
    assert all(row["eta_at"] and row["node"] == "vps-jane" for row in tasks)
    skills = [row for row in all_rows(tables, schemas.TASKS) if row["task_type"]]
    assert {row["to_agent"] for row in skills} == {"architect", "builder", "tester"}
    assert "review" in {row["capability_id"] for row in all_rows(tables, schemas.PACES)}
    (eta,) = (row for row in all_rows(tables, schemas.ETA) if row["capability_id"] == "review")
    assert (eta["completed"], eta["promised_seconds"] > 0) == (1, True)
    reviews = all_rows(tables, schemas.REVIEWS)
    ids = {row["class"]: row["review_id"] for row in reviews if row["capability_id"] == "review"}
    assert ids == delegated.reviews, "one item for one misfire, whoever finds it"


def check_ledger(transport: SparkTransport, archive: str, tables: str, of_gateways: Ledger) -> None:
    """The report and the audit count what the gateways count, in the same terms."""
    assert gather_report(transport, tables).ledger == of_gateways
    assert audit_archive(transport, archive, tables).ledger == of_gateways
    assert of_gateways.adds_up and of_gateways.processed


def all_rows(tables: str, table: schemas.TableSpec) -> list[dict[str, Any]]:
    opened = open_table(tables, table)
    assert opened is not None, table.name
    found: list[dict[str, Any]] = opened.to_pyarrow_table().to_pylist()
    return found


def played(town: demo.DemoMesh, total: int) -> tuple[DelegationResult, HistoryVerdict, Ledger]:
    with contextlib.ExitStack() as running:
        for gateway in town.gateways.values():
            running.enter_context(gateway)
        town.join_gateways()
        _, delegated, verdict = asyncio.run(demo.run_scenario(town, total))
        calls = [gateway.start() for gateway in town.gateways.values()]
        # Each gateway tells the ledger of the whole room, once it is linked with the others.
        wait_until(lambda: all(call.get("/v1/ledger")["unknown"] == [] for call in calls))
        rooms = [call.get("/v1/ledger") for call in calls]
    assert [room["ledger"] for room in rooms] == [rooms[0]["ledger"]] * len(rooms)
    return delegated, verdict, Ledger(**rooms[0]["ledger"])
