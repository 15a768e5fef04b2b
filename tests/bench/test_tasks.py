"""The bench of tasks runs, and every task of it completes."""

from pathlib import Path

from gatepost.bench.tasks import TasksBenchOptions, bench_tasks, render_result


def test_every_rate_is_measured(tmp_path: Path) -> None:
    wanted = TasksBenchOptions(sessions=4, at_once=2, tasks=10, outstanding=4)
    result = bench_tasks(tmp_path, wanted)
    rates = (result.sessions_per_sec, result.live_per_sec, result.remote_per_sec)
    assert min(rates) > 0 and result.session_share > 0
    assert result.running_ms >= 0 and result.idle_session_kib > 100
    assert render_result(result).row_count == 4
