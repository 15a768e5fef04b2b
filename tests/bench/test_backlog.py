"""Catching up is measured with a gateway that ends and comes back."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from gatepost.bench.backlog import BacklogOptions, bench_backlog, render_backlog


@pytest.mark.parametrize("fallbacks", [False, True])
def test_all_messages_that_waited_arrive_once_and_in_order(tmp_path: Path, fallbacks: bool) -> None:
    result = bench_backlog(tmp_path, BacklogOptions(500, 64, 32, fallbacks))
    assert (result.messages, result.fallbacks) == (500, fallbacks)
    assert 0 < result.first_ms <= result.seconds * 1e3
    assert result.per_sec > 0
    assert result.longest_call_ms > 0
    assert list(tmp_path.iterdir()) == []
    console = Console(width=110, record=True, file=io.StringIO())
    console.print(render_backlog(result))
    assert "500 messages waited" in console.export_text()


@pytest.mark.full
def test_catching_up_with_offers_is_half_as_fast_and_begins_within_a_second(
    tmp_path: Path,
) -> None:
    plain, offers = (
        bench_backlog(tmp_path / name, BacklogOptions(80_000, 64, 256, name == "offers"))
        for name in ("plain", "offers")
    )
    print(plain, offers, sep="\n")
    assert offers.per_sec >= plain.per_sec / 2
    for result in (plain, offers):
        assert result.first_ms < 1_000
        assert result.longest_call_ms < 1_000
