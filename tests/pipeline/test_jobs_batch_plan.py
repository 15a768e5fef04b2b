"""A batch that cannot be read is planned anew, without what cannot be read and with the rest."""

from pathlib import Path

import pyarrow as pa
import pytest

from gatepost.pipeline import file_check
from gatepost.pipeline.archive_reader import ArchiveReader
from gatepost.pipeline.file_check import read_trial
from gatepost.pipeline.jobs import deliveries
from gatepost.pipeline.jobs.batch_ledger import BatchLedger
from gatepost.pipeline.jobs.batch_plan import BatchPlanner
from gatepost.pipeline.jobs.pipeline import Pipeline
from gatepost.pipeline.jobs.table_update import TableUpdater
from gatepost.pipeline.kernels.facts import Facts, facts_from_events
from gatepost.pipeline.read_plan import SegmentFile, SetAside
from gatepost.pipeline.transport import LocalTransport
from tests.pipeline.archives import DAY, NOON, write_node


@pytest.fixture
def archive(tmp_path: Path) -> str:
    for node in ("x", "y"):
        write_node(tmp_path / "archive", node, range(NOON, NOON + 30), segment_rows=10)
    return str(tmp_path / "archive")


@pytest.fixture
def tables(tmp_path: Path) -> str:
    return str(tmp_path / "tables")


def refuse_second_segment_of_y(events: pa.Table, id_age: int) -> Facts:
    """A fault that no check foresees; a batch reads several segments at once."""
    rows = zip(events["node"].to_pylist(), events["created_at"].to_pylist(), strict=True)
    if ("y", NOON + 10) in rows:
        raise KeyError("unforeseen")
    return facts_from_events(events, id_age)


def break_kernels(patch: pytest.MonkeyPatch) -> None:
    for module in (file_check, deliveries):
        patch.setattr(module, "facts_from_events", refuse_second_segment_of_y)


def faults(archive: str, segments: list[SegmentFile]) -> dict[str, str]:
    """Path → fault. The ids of these events are odd, which is none."""
    found = read_trial(LocalTransport(), archive, segments, 31 * DAY)
    return {path: each.fault for path, each in found.items() if each.fault}


def whole(aside: tuple[SetAside, ...]) -> list[SetAside]:
    return [each for each in aside if not each.events]


def batch_files(tables: str) -> list[str]:
    return sorted(file.name for file in Path(tables, "_batches").iterdir())


def test_a_trial_names_the_segments_that_cannot_be_read(
    archive: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    segments = ArchiveReader(archive).list_segments()
    assert faults(archive, segments) == {}
    break_kernels(monkeypatch)
    found = faults(archive, segments)
    (path,) = found
    assert path.startswith("node=y/") and path.endswith("11-00000000000000000020.parquet")
    assert found[path] == "its events cannot be read: KeyError: 'unforeseen'"


def test_a_batch_is_amended_without_what_cannot_be_read(
    archive: str, tables: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        break_kernels(patch)
        ran = Pipeline(LocalTransport(), archive, tables).run()
    (aside,) = whole(ran.aside)
    assert (ran.batches, ran.events) == (1, 50)
    assert (aside.node, aside.first, aside.last) == ("y", 11, 20)
    assert batch_files(tables) == ["000000000001.json", "000000000001_001.json"]
    batch = BatchLedger(tables).read_batch(1)
    assert [(each.node, each.first, each.last) for each in batch.left_out] == [("y", 11, 20)]
    assert batch.end == {"x": {"a1": 30}, "y": {"a1": 30}}
    again = Pipeline(LocalTransport(), archive, tables).run()
    assert (again.batches, again.events, whole(again.aside)) == (1, 10, [])
    recovered = BatchLedger(tables).read_batch(2)
    assert [(each.first, each.last) for each in recovered.recovered] == [(11, 20)]
    assert [(each.first, each.ended is not None) for each in recovered.repaired] == [(11, True)]


def test_an_error_that_no_segment_causes_is_raised_as_it_is(
    archive: str, tables: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise KeyError("of the job")

    with monkeypatch.context() as patch, pytest.raises(KeyError, match="of the job"):
        patch.setattr(TableUpdater, "_write_first_deliveries", fail)
        Pipeline(LocalTransport(), archive, tables).run()
    assert batch_files(tables) == ["000000000001.json"]
    assert Pipeline(LocalTransport(), archive, tables).run().events == 60


def test_a_batch_that_deliveries_have_is_not_planned_anew(
    archive: str, tables: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise KeyError("of the job")

    with monkeypatch.context() as patch, pytest.raises(KeyError, match="of the job"):
        patch.setattr(TableUpdater, "_write_findings", fail)
        patch.setattr(BatchPlanner, "plan_again", lambda *_: pytest.fail("planned anew"))
        Pipeline(LocalTransport(), archive, tables).run()
    ran = Pipeline(LocalTransport(), archive, tables).run()
    assert (ran.batches, ran.events) == (1, 0)
