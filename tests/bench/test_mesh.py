"""The bench of the mesh at small counts: its numbers are those of a mesh that works."""

import io
from collections.abc import Callable

import pytest
from rich.console import Console

from gatepost.bench.mesh import MeshBenchOptions, MeshBenchResult, bench_mesh, render_result


@pytest.fixture(scope="module")
def result(count: Callable[[int, int], int]) -> MeshBenchResult:
    options = MeshBenchOptions(
        datagrams=count(1000, 20_000), nodes=count(12, 50), beats=3, kills=count(5, 100)
    )
    return bench_mesh(options)


def test_every_sort_of_datagram_has_its_verdict(result: MeshBenchResult) -> None:
    assert {each.sort: each.verdict for each in result.judged} == {
        "heartbeats of a member": "accepted",
        "flood of a member": "rate_limited",
        "forged": "rate_limited",
        "unknown sender": "unknown_sender",
        "no message": "malformed",
    }
    assert all(each.per_sec > 0 for each in result.judged)


def test_a_join_is_known_within_three_heartbeats(result: MeshBenchResult) -> None:
    assert result.gossip_beats <= 3


def test_an_idle_node_takes_less_than_a_hundredth_of_a_core(result: MeshBenchResult) -> None:
    assert 0 < result.idle_percent < 1


def test_takeovers_take_suspicion_and_grace_and_at_most_two_heartbeats(
    result: MeshBenchResult,
) -> None:
    assert result.takeovers == result.options.kills
    assert 0.9 <= result.takeover_secs[0] <= result.takeover_secs[2] <= 1 + 2 / 12


def test_the_result_is_drawn(result: MeshBenchResult) -> None:
    drawn = io.StringIO()
    Console(file=drawn, width=120).print(render_result(result))
    assert "rate_limited" in drawn.getvalue() and "of a core" in drawn.getvalue()
