"""A batch that dies after any of its commits is finished by the next run."""

from pathlib import Path

import pyarrow as pa
import pytest

from gatepost.pipeline.delta_tables import CommitResult, TableWrite, files_since, list_files
from gatepost.pipeline.jobs import table_update as module
from gatepost.pipeline.jobs.findings import FindingsInput, _build_findings
from gatepost.pipeline.jobs.pipeline import Pipeline, RunSummary
from gatepost.pipeline.objectives import Objectives
from gatepost.pipeline.parquet import WrittenFile
from gatepost.pipeline.tables.schemas import ACTIVITY, CASES, HOUR_MS, INCIDENTS
from tests.pipeline.table_rows import write_known_rows
from tests.pipeline.worlds import World

pytestmark = pytest.mark.timeout(600)

# Activity, deliveries, five by the hour, and three of all.
COMMITS = 10


class Died(Exception):
    pass


def test_whatever_commit_is_the_last_the_tables_are_the_same(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, left, died = TableWrite.commit, [0], []

    def mortal(writing: TableWrite, files: list[WrittenFile]) -> CommitResult:
        if not writing.earlier_commit and left[0] == 0:
            died.append(Path(writing.path).name)
            raise Died
        left[0] -= not writing.earlier_commit
        return commit(writing, files)

    monkeypatch.setattr(TableWrite, "commit", mortal)
    tables = str(tmp_path / "tables")
    pipeline = Pipeline(world.transport, world.archive, tables)
    half = world.truth.events // 2
    # Through the first batch, which makes the tables, and the next, which replaces hours.
    for _ in range(2 * COMMITS):
        with pytest.raises(Died):
            pipeline.run(half)
        left[0] = 1
    assert len(set(died)) == COMMITS
    assert died == died[:COMMITS] * 2
    left[0] = 5 * COMMITS
    assert pipeline.run(half).events <= world.truth.events
    assert pipeline.run() == RunSummary(0, 0)
    world.assert_same(tables)


def test_however_many_batches_there_were_few_files_are_read(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MANY_FILES", 4)
    pipeline = Pipeline(world.transport, world.archive, str(tmp_path))
    assert pipeline.run(world.truth.events // 6).batches > 5
    assert len(files_since(str(tmp_path / "activity"), "last_at", 0)) < 4
    world.assert_same(str(tmp_path))


def test_what_lies_further_back_than_anybody_looks_is_left_alone(tmp_path: Path) -> None:
    day, now = 24 * 3_600_000, 1_772_490_600_000

    def incidents(last_heard: int) -> pa.Table:
        heard = {"node": "b", "window_start": 0, "first_at": last_heard, "last_at": last_heard}
        waits = {"node": "a", "to_node": "b", "to_agent": "bob", "sent_at": now - day}
        root = tmp_path / str(last_heard)
        write_known_rows(root, ACTIVITY, [heard])
        write_known_rows(root, CASES, [waits | {"hour": (now - day) // HOUR_MS}])
        activity = files_since(str(root / "activity"), "last_at", 0)
        cases = list_files(str(root / "cases"), "day")
        known = FindingsInput(now - 30 * day, now, activity, cases, [])
        return _build_findings(known, Objectives())[INCIDENTS]

    assert incidents(now - 29 * day)["class"].to_pylist() == ["silent_node"]
    assert incidents(now - 31 * day).num_rows == 0
