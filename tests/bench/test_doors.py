"""The bench of doors runs, and every way to call a tool answers."""

from pathlib import Path

from gatepost.bench.doors import DoorsBenchOptions, bench_doors, render_result


def test_every_figure_is_measured(tmp_path: Path) -> None:
    result = bench_doors(tmp_path, DoorsBenchOptions(calls=5, sessions=5, wait_secs=1))
    assert min(result.websocket_ms, result.stdio_ms, result.http_ms) > 0
    assert min(result.task_ms, result.a2a_ms) > 0
    assert result.waiting_core_share >= 0
    assert render_result(result).row_count == 5
