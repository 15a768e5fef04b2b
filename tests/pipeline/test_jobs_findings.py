"""Findings are the same on one executor and on several."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pytest

from gatepost.pipeline import small_tables
from gatepost.pipeline.delta_tables import list_files
from gatepost.pipeline.jobs import findings
from gatepost.pipeline.jobs.pipeline import backfill_tables
from gatepost.pipeline.tables.schemas import CASES, ETA, INCIDENTS, REVIEWS
from gatepost.pipeline.transport import FoldStep, LocalTransport, PartBlock, Share
from tests.pipeline.worlds import World


class CountingTransport(LocalTransport):
    """Counts the parts that were folded in each job."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[int] = []

    def run(
        self,
        shares: Sequence[Share],
        read: Callable[[Share], Iterable[PartBlock]],
        *folds: FoldStep,
    ) -> list[bytes]:
        self.parts += [fold.parts for fold in folds]
        return super().run(shares, read, *folds)


def test_many_cases_are_divided_and_the_findings_are_the_same(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(findings, "_AT_ONCE", 50)
    tables, transport = str(tmp_path / "tables"), CountingTransport()
    backfill_tables(transport, world.archive, tables)
    cases = sum(file.rows for file in list_files(f"{tables}/{CASES.name}", "day"))
    assert transport.parts[-1] == -(-cases // 50) > 5
    world.assert_same(tables)
    for table in (INCIDENTS, REVIEWS, ETA):
        assert list(small_tables.read_rows(tables, table)), table.name
