"""The bench of large rooms joins a room that has all its gateways and agents."""

import io

import pytest
from rich.console import Console

from gatepost.bench.scale import (
    ScaleOptions,
    bench_scale,
    build_room,
    records_per_second,
    render_scale,
)
from gatepost.room import SharedRoom


def test_a_room_has_its_gateways_and_agents_and_hears_their_heartbeats() -> None:
    built = build_room(3, 12)
    room = SharedRoom(built.genesis, records=[built.founder])
    for update in built.updates:
        room.apply_update(update)
    assert sorted(room.effective.nodes) == ["gateway-0", "gateway-1", "gateway-2"]
    assert {agent.gateway for agent in room.effective.agents.values()} == {*room.effective.nodes}
    assert len(room.effective.agents) == 12
    changes = [room.apply_update(update) for update in built.heartbeats]
    assert [len(change.changed) for change in changes] == [1, 1, 1]


@pytest.mark.parametrize(
    ("gateways", "agents", "rate"),
    [(60, 0, 1.0), (60, 60, 2.0), (1, 300, 1 / 60 + 1 / 0.6), (600, 120_000, 10.0 + 20.0)],
)
def test_many_agents_of_a_gateway_or_a_room_beat_less_often_each(
    gateways: int, agents: int, rate: float
) -> None:
    assert records_per_second(gateways, agents) == pytest.approx(rate)


def test_every_room_has_a_column_and_a_computed_mesh_says_so() -> None:
    result = bench_scale(ScaleOptions((2, 3), agents=7, mesh_nodes=2))
    assert [(row.gateways, row.agents) for row in result.rows] == [(2, 6), (3, 6)]
    assert [row.is_mesh_computed for row in result.rows] == [False, True]
    assert all(row.joined.secs > 0 and row.room_bytes > 1000 for row in result.rows)
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(render_scale(result))
    text = console.export_text()
    assert "3 gateways" in text
    assert "%*" in text
