"""The pipeline is measured on archives that are made for it."""

import io
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from gatepost.bench.pipeline import (
    PipelineBenchOptions,
    PipelineBenchResult,
    bench_pipeline,
    render_result,
    write_archive,
)


@pytest.mark.full
@pytest.mark.timeout(600)
def test_a_full_run_and_one_percent_more_take_in_every_event(tmp_path: Path) -> None:
    steps: list[str] = []
    options = PipelineBenchOptions(sizes=(20_000,), nodes=3, hours=48, engines=("local", "sql"))
    result = bench_pipeline(tmp_path, options, steps.append)
    (size,) = result.sizes
    assert {each.events for each in size.engines.values()} == {size.events}
    assert size.full.events + size.more.events == size.events
    assert 0 < size.more.events < size.events // 10
    assert min(size.full.per_sec, size.full.peak_mib, size.full.session_seconds, size.share) > 0
    assert len(steps) == 8
    assert list(tmp_path.iterdir()) == []
    archive = tmp_path / "kept"
    write_archive(archive, 20_000, PipelineBenchOptions(nodes=3, hours=2))
    kept = bench_pipeline(tmp_path / "work", PipelineBenchOptions(archives=(archive,) * 2))
    assert [(each.nodes, each.hours) for each in kept.sizes] == [(3, 2), (3, 2)]
    taken = {each.full.events + each.more.events for each in kept.sizes}
    assert taken == {kept.sizes[0].events}
    console = Console(width=110, record=True, file=io.StringIO())
    console.print(render_result(result))
    shown = console.export_text()
    assert all(row in shown for row in ("lifecycle + SLO", "full run", "one percent more"))
    assert "all tables, --engine sql" in shown and "3 nodes, 48 h" in shown
    assert msgspec.json.decode(msgspec.json.encode(result), type=PipelineBenchResult) == result
