"""Whole lifecycles are measured between two real gateways."""

import io
from pathlib import Path

import msgspec
from rich.console import Console

from gatepost.bench.pipes import PipesBenchOptions, PipesBenchResult, bench_pipes, render_result


def test_every_lifecycle_is_counted_and_nothing_stays_behind(tmp_path: Path) -> None:
    result = bench_pipes(
        tmp_path, PipesBenchOptions(messages=500, outstanding=64, singles=20, fsyncs=20)
    )
    assert result.lifecycles.messages == 500
    assert result.lifecycles.per_sec > 0
    assert 0 < result.latency.accepted_p50_ms <= result.latency.accepted_p99_ms
    assert 0 < result.latency.processed_p50_ms <= result.latency.processed_p99_ms
    assert list(tmp_path.iterdir()) == []
    console = Console(width=110, record=True, file=io.StringIO())
    console.print(render_result(result))
    assert "64 outstanding" in console.export_text()
    assert msgspec.json.decode(msgspec.json.encode(result), type=PipesBenchResult) == result
