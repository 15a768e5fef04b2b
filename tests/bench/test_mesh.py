"""The bench of the mesh at small counts: its numbers are those of a mesh that works."""

import io
from collections.abc import Callable

import pytest
from rich.console import Console

from gatepost.bench.mesh import MeshBenchOptions, MeshBenchResult, bench_mesh, render_result


@pytest.fixture(scope="module")
def result(
    count: Callable[[int, int], int], tmp_path_factory: pytest.TempPathFactory
) -> MeshBenchResult:
    options = MeshBenchOptions(
        datagrams=count(1000, 20_000),
        nodes=count(12, 50),
        beats=3,
        kills=count(5, 100),
        process_kills=count(1, 100),
    )
    return bench_mesh(tmp_path_factory.mktemp("bench"), options)


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
    times = result.takeovers
    assert times is not None and times.kills == result.options.kills
    assert 0.9 <= times.p50 <= times.worst <= 1 + 2 / 12


def test_real_gateways_take_over_too(result: MeshBenchResult) -> None:
    times = result.process_takeovers
    assert times is not None and times.kills == result.options.process_kills
    assert 0 < times.p50 <= times.p99 <= times.worst


def test_the_result_is_drawn(result: MeshBenchResult) -> None:
    drawn = io.StringIO()
    Console(file=drawn, width=120).print(render_result(result))
    assert "rate_limited" in drawn.getvalue() and "takeover of real gateways" in drawn.getvalue()
