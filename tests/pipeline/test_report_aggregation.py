"""What executors sum up for a report, however the tables were cut."""

import math
import random
from typing import Any

import pyarrow as pa
import pytest

from gatepost.pipeline.kernels.hour_deliveries import HourDeliveries
from gatepost.pipeline.report import aggregation
from gatepost.pipeline.report.aggregation import (
    LatencyGroups,
    ReportPeriod,
    ReportSums,
)
from gatepost.pipeline.report.model import OTHERS
from gatepost.pipeline.tables.arrow_schemas import arrow_schema, rows_to_table
from gatepost.pipeline.tables.schemas import DELIVERIES, HOUR_MS, SLO, TRAFFIC
from tests.pipeline.reckoning import three_digits

HOUR = 500_000
AT = HOUR * HOUR_MS
PERIOD = ReportPeriod(AT, HOUR_MS, 3)
Row = dict[str, Any]


@pytest.fixture
def rows() -> random.Random:
    return random.Random(4)


def level(rows: random.Random) -> Row:
    counts = {name: rows.randrange(9) for name in aggregation.COUNT_COLUMNS}
    where = {"kind": rows.choice(("message", "reply")), "node": f"n{rows.randrange(40):02}"}
    met = {"met": rows.choice((True, False, None)), "online_p95": rows.randrange(99)}
    at = AT + rows.randrange(-1, 4) * HOUR_MS
    return counts | where | met | {"window_start": at, "objective_ms": 5000}


def exchange(rows: random.Random) -> Row:
    ends: Row = {"node": f"n{rows.randrange(40):02}", "from_agent": "ann"}
    ends["to_node"] = rows.choice((f"n{rows.randrange(40):02}", None))
    counts = dict.fromkeys(("dead", "open", "bytes"), 1)
    took = {"sent": rows.randrange(1, 9), "process_ms": rows.choice((None, 7.5, 100.0))}
    return ends | counts | took | {"to_agent": rows.choice(("bob", "bea"))}


def test_parts_add_up_to_the_whole(rows: random.Random) -> None:
    levels = rows_to_table(SLO, [level(rows) for _ in range(500)])
    traffic = rows_to_table(TRAFFIC, [exchange(rows) for _ in range(500)])
    cuts = [(0, 100), (100, 0), (100, 400)]
    parts = [
        *(aggregation.sum_slo(levels.slice(*cut), PERIOD) for cut in cuts),
        *(aggregation.sum_traffic(traffic.slice(*cut)) for cut in cuts),
    ]
    whole = [aggregation.sum_slo(levels, PERIOD), aggregation.sum_traffic(traffic)]
    shown, other = (
        ReportSums.from_sums(aggregation.add_parts(parts), 40),
        ReportSums.from_sums(aggregation.add_parts(whole), 40),
    )
    assert shown.total == other.total
    assert (shown.nodes, shown.kinds, shown.missed) == (other.nodes, other.kinds, other.missed)
    assert (shown.edges, shown.pairs, shown.graph_nodes) == (
        other.edges,
        other.pairs,
        other.graph_nodes,
    )
    assert shown.total["sent"] == sum(levels["sent"].to_pylist())
    assert shown.total["windows"] == sum(met is not None for met in levels["met"].to_pylist())
    assert sum(row["sent"] for row in shown.throughput) == shown.total["sent"]
    assert {row["at"] for row in shown.throughput} == {0, 1, 2}
    # No more than can be drawn.
    assert (len(shown.nodes), len(shown.graph_nodes), shown.merged_nodes) == (30, 29, 11)
    assert len({row["node"] for row in shown.throughput}) == 12
    assert len(shown.missed) == len(shown.pairs) == aggregation.TOP_ROWS
    assert sum(row["sent"] for row in shown.edges) == sum(traffic["sent"].to_pylist())
    assert {row["source"] for row in shown.edges} == {*shown.graph_nodes, OTHERS}
    assert any(row["target"] == "" for row in shown.edges)
    assert [row["online_p95"] for row in shown.missed] == sorted(
        (row["online_p95"] for row in shown.missed), reverse=True
    )


def test_a_mean_is_weighed_by_what_it_is_of() -> None:
    ends = {"node": "a", "from_agent": "ann", "to_node": "b", "to_agent": "bob"}
    took = [(3, 10.0), (1, 50.0), (9, None)]
    rows = [ends | {"sent": sent, "process_ms": ms} for sent, ms in took]
    none = aggregation.sum_slo(arrow_schema(SLO).empty_table(), PERIOD)
    shown = ReportSums.from_sums(
        aggregation.add_parts([none, aggregation.sum_traffic(rows_to_table(TRAFFIC, rows))]), 2
    )
    (pair,) = shown.pairs
    assert (pair["source"], pair["target"]) == ("ann @ a", "bob @ b")
    assert (pair["sent"], pair["process_ms"]) == (13, 20.0)
    assert (shown.total, shown.nodes, shown.throughput) == ({}, [], [])


def test_percentiles_are_exact_to_three_digits(rows: random.Random) -> None:
    def delivery() -> Row:
        sent_at = AT + rows.randrange(3 * HOUR_MS)
        took = rows.choice((None, rows.randrange(50), rows.randrange(200_000)))
        known = {"sent_at": sent_at, "accepted_at": None if took is None else sent_at + took}
        where = {"kind": rows.choice(("message", "reply")), "node": rows.choice("abc")}
        return known | where | {"took": took}

    every = [delivery() for _ in range(900)]
    keys = LatencyGroups(["message", "reply"], ["a", "b"], PERIOD)
    # What is no column is left out.
    table = rows_to_table(DELIVERIES, every).select(_times())
    parts = [
        aggregation.count_latencies(HourDeliveries(HOUR, table.slice(start, 300)), keys)
        for start in range(0, 900, 300)
    ]
    times = aggregation.measure_percentiles(pa.concat_tables(parts), len(keys), 60_000)
    assert len(times) == len(keys) == 2 + 2 + 3 + 1

    def expected(mine: list[Row], most: float = math.inf) -> list[int]:
        took = sorted(row["took"] for row in mine if row["took"] is not None)
        some = [ms for ms in took if ms <= most]
        return [three_digits(some[math.ceil(p * len(some)) - 1]) for p in (0.5, 0.95, 0.99)]

    groups = [
        *([row for row in every if row["kind"] == kind] for kind in keys.kinds),
        *([row for row in every if row["node"] == node] for node in keys.nodes),
        *([row for row in every if row["sent_at"] // HOUR_MS == HOUR + step] for step in range(3)),
        every,
    ]
    for mine, found in zip(groups, times, strict=True):
        assert list(found.accept) == expected(mine)
        assert found.online == expected(mine, 60_000)[1]
        assert found.process == (None, None, None)


def _times() -> list[str]:
    return list(aggregation.DELIVERY_COLUMNS)


def test_of_nothing_there_are_no_percentiles() -> None:
    keys = LatencyGroups([], [], PERIOD)
    hour = HourDeliveries(HOUR, pa.table(arrow_schema(DELIVERIES).empty_table()).select(_times()))
    counted = aggregation.count_latencies(hour, keys)
    for times in aggregation.measure_percentiles(counted, len(keys), 60_000):
        assert (times.accept, times.online) == ((None, None, None), None)


def _delivery(second: int, **fields: Any) -> Row:
    ends = {"from_agent": "ann", "to_agent": "bob", "to_node": "n2", "outcome": "ok"}
    times = {"sent_at": AT + second * 1000, "accepted_at": AT + second * 1000 + 5}
    return {"kind": "message", "node": "n1", "closed": True} | ends | times | fields


def _count(found: list[Row], period: ReportPeriod = PERIOD) -> aggregation.DeliveryCounts:
    groups = LatencyGroups(["message"], ["n1"], period)
    table = rows_to_table(DELIVERIES, found).select(list(aggregation.DELIVERY_COLUMNS))
    return aggregation.count_deliveries([HourDeliveries(HOUR, table)], groups)


def test_dead_and_open_deliveries_are_counted_by_agents_and_reason() -> None:
    dead = {"outcome": "dead_letter", "reason": "failed 4 times"}
    found = [
        *(_delivery(n, **dead) for n in range(3)),
        _delivery(4, outcome=None, dead_at=AT, reason="expired", accepted_at=None),
        _delivery(5, outcome=None, closed=False),
        _delivery(6, outcome=None, closed=False, accepted_at=None, to_node=None),
        _delivery(7),
    ]
    groups = LatencyGroups(["message"], ["n1"], PERIOD)
    parts = [_count(found[:2]), _count(found[2:])]
    measured = aggregation.measure_deliveries(parts, groups, 1000)
    shown = [(r["state"], r["to_node"], r["reason"], r["count"]) for r in measured.unfinished]
    assert shown == [
        ("dead", "n2", "failed 4 times", 3),
        ("dead", "n2", "expired", 1),
        ("open", "", "not accepted yet", 1),
        ("open", "n2", "accepted, and the turn has not ended", 1),
    ]


def test_steps_shorter_than_a_window_are_counted_from_the_deliveries() -> None:
    seconds = ReportPeriod(AT, 1000, 4)
    found = [_delivery(0), _delivery(2), _delivery(2, outcome="expired"), _delivery(3, node="n2")]
    lanes = _count(found, seconds).lanes.sort_by([("node", "ascending"), ("at", "ascending")])
    assert lanes.to_pylist() == [
        {"node": "n1", "at": 0, "sent": 1, "dead": 0},
        {"node": "n1", "at": 2, "sent": 2, "dead": 1},
        {"node": "n2", "at": 3, "sent": 1, "dead": 0},
    ]
