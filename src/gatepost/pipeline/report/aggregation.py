"""Aggregation for a report, on executors: sums of table rows, and counted latencies.

Every aggregate is taken of a part of a table, and the aggregates of parts can be added up.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from gatepost.ledger import Ledger, add_ledgers
from gatepost.pipeline.kernels.columns import ABSENT, Codes, Numbers, to_numbers
from gatepost.pipeline.kernels.groups import SortedGroups
from gatepost.pipeline.kernels.hour_deliveries import HourDeliveries
from gatepost.pipeline.kernels.message_ledger import count_ledger
from gatepost.pipeline.kernels.rounded_times import round_up_times
from gatepost.pipeline.report.model import OTHERS

MAX_THROUGHPUT_NODES: Final = 12
MAX_LEVELS: Final = 30
MAX_GRAPH_NODES: Final = 30
MAX_EDGES: Final = 1000
TOP_ROWS: Final = 15

COUNT_COLUMNS: Final = ("sent", "processed", "dead", "retried", "open")
SLO_COLUMNS: Final = (
    *COUNT_COLUMNS,
    "met",
    "objective_ms",
    "kind",
    "node",
    "window_start",
    "online_p95",
)
"""The columns read of the table `slo`."""
_FLOW_COLUMNS = ("sent", "bytes", "dead", "open")
_PAIR_COLUMNS = ("node", "from_agent", "to_node", "to_agent")
TRAFFIC_COLUMNS: Final = (*_PAIR_COLUMNS, *_FLOW_COLUMNS, "process_ms")
"""The columns read of the table `traffic`."""
DELIVERY_COLUMNS: Final = (
    "kind",
    "node",
    "sent_at",
    "accepted_at",
    "processed_at",
    "replied_at",
    "outcome",
    "dead_at",
    "amended",
    "closed",
    "reason",
    "from_agent",
    "to_agent",
    "to_node",
    "state",
    "forwarded",
)
"""The columns read of the table `deliveries`."""
_PERCENTILES = (0.5, 0.95, 0.99)
_ACCEPT, _PROCESS = "accept", "process"
# The agents and the node of a delivery that did not end well.
_ENDS = ("from_agent", "to_agent", "to_node")
_ACCEPTED = "accepted, and the turn has not ended"
_NOT_ACCEPTED = "not accepted yet"
_MAX_REASON = 200
# Groups of unfinished deliveries that are kept of one part: reasons are free text.
_MAX_GROUPS = 2000
_WORST_FIRST = {
    "online_p95": "descending",
    "window_start": "ascending",
    "node": "ascending",
    "kind": "ascending",
}

SumRow = dict[str, Any]
SumTables = Mapping[str, pa.Table]


class ReportPeriod(Struct, frozen=True):
    """The period of a report, in `steps` steps. Times outside count in its first or last step."""

    start: int
    step: int
    steps: int

    def step_index(self, at: Numbers) -> Numbers:
        step: Numbers = np.clip((at - self.start) // self.step, 0, self.steps - 1)
        return step

    @property
    def starts(self) -> list[int]:
        return [self.start + number * self.step for number in range(self.steps)]


# -- sums


def sum_slo(rows: pa.Table, period: ReportPeriod) -> SumTables:
    met = rows["met"]
    judged = {
        "windows": met.is_valid().cast(pa.int64()),
        "met": met.fill_null(False).cast(pa.int64()),
    }
    known = {name: rows[name] for name in ("kind", "node", *COUNT_COLUMNS, "objective_ms")}
    at = pa.array(period.step_index(np.asarray(rows["window_start"])))
    lanes = {name: rows[name] for name in ("node", "sent", "dead")} | {"at": at}
    missed = rows.filter(pc.equal(met, False))
    return {
        "levels": _sum_by(pa.table(known | judged), "kind", "node"),
        "lanes": _sum_by(pa.table(lanes), "node", "at"),
        "missed": _worst_rows(missed.select([*_WORST_FIRST, "sent", "objective_ms"])),
    }


def sum_traffic(rows: pa.Table) -> SumTables:
    process_ms, sent = rows["process_ms"], rows["sent"]
    known = {name: rows[name] for name in (*_PAIR_COLUMNS, *_FLOW_COLUMNS)}
    known |= {
        "weighed": pc.multiply(process_ms, sent.cast(pa.float64())).fill_null(0.0),
        "weight": pc.if_else(process_ms.is_valid(), sent, 0),
    }
    return {"pairs": _sum_by(pa.table(known), *_PAIR_COLUMNS)}


def add_parts(parts: Sequence[SumTables]) -> SumTables:
    """Add up the sums of all parts."""

    def concat_parts(name: str) -> pa.Table:
        return pa.concat_tables([part[name] for part in parts if name in part])

    return {
        "levels": _sum_by(concat_parts("levels"), "kind", "node"),
        "lanes": _sum_by(concat_parts("lanes"), "node", "at"),
        "missed": _worst_rows(concat_parts("missed")),
        "pairs": _sum_by(concat_parts("pairs"), *_PAIR_COLUMNS),
    }


def _sum_by(rows: pa.Table, *by: str) -> pa.Table:
    """Sum up all other columns, one row for each combination of the columns `by`."""
    functions = {
        name: "max" if name == "objective_ms" else "sum"
        for name in rows.column_names
        if name not in by
    }
    made = rows.group_by(list(by), use_threads=False).aggregate(list(functions.items()))
    columns = {name: made[name] for name in by}
    for name, function in functions.items():
        column = made[f"{name}_{function}"]
        columns[name] = column.fill_null(0) if function == "sum" else column
    return pa.table(columns)


def _worst_rows(rows: pa.Table) -> pa.Table:
    return rows.sort_by(list(_WORST_FIRST.items())).slice(0, TOP_ROWS)


class ReportSums(Struct, frozen=True):
    """The sums that fit into a report, the busiest first.

    `throughput_nodes` have a row of `throughput` each; all other nodes share one, named "".
    `graph_nodes` appear by name in `edges`; the `merged_nodes` other nodes appear as OTHERS.
    """

    total: SumRow
    kinds: list[SumRow]
    nodes: list[SumRow]
    missed: list[SumRow]
    throughput: list[SumRow]
    throughput_nodes: list[str]
    graph_nodes: list[str]
    merged_nodes: int
    edges: list[SumRow]
    pairs: list[SumRow]

    @staticmethod
    def from_sums(sums: SumTables, node_count: int) -> "ReportSums":
        levels, pairs = sums["levels"], sums["pairs"]
        nodes = _busiest_rows(levels.drop_columns(["kind"]), MAX_LEVELS, "node")
        names = [row["node"] for row in nodes]
        alone = names if node_count <= MAX_THROUGHPUT_NODES else names[: MAX_THROUGHPUT_NODES - 1]
        every = _nodes_by_traffic(pairs)
        ends = every if len(every) <= MAX_GRAPH_NODES else every[: MAX_GRAPH_NODES - 1]
        between = _shown_node(pairs["node"], ends), _shown_node(pairs["to_node"], ends)
        agents = (
            _agent_at_node(pairs, "from_agent", "node"),
            _agent_at_node(pairs, "to_agent", "to_node"),
        )
        return ReportSums(
            total=_total_row(levels.drop_columns(["kind", "node"])),
            kinds=_busiest_rows(levels.drop_columns(["node"]), MAX_LEVELS, "kind"),
            nodes=nodes,
            missed=sums["missed"].to_pylist(),
            throughput=throughput_rows(sums["lanes"], alone),
            throughput_nodes=alone,
            graph_nodes=ends,
            merged_nodes=len(every) - len(ends),
            edges=_edge_rows(pairs, *between, MAX_EDGES),
            pairs=_edge_rows(pairs, *agents, TOP_ROWS),
        )


def _total_row(levels: pa.Table) -> SumRow:
    """The sums over all rows; an empty dict if there are no rows."""
    every = levels.append_column("of", pa.array(["all"] * len(levels), pa.string()))
    found: list[SumRow] = _sum_by(every, "of").to_pylist()
    return found[0] if found else {}


def _busiest_rows(rows: pa.Table, most: int, *by: str) -> list[SumRow]:
    order = [("sent", "descending"), *((name, "ascending") for name in by)]
    found: list[SumRow] = _sum_by(rows, *by).sort_by(order).slice(0, most).to_pylist()
    return found


def throughput_rows(lanes: pa.Table, alone: Sequence[str]) -> list[SumRow]:
    """Sums by node and step; nodes that are not in `alone` count as the node ""."""
    mine = pc.is_in(lanes["node"], value_set=pa.array(alone, pa.string()))
    node = pc.if_else(mine, lanes["node"], "")
    found: list[SumRow] = _sum_by(lanes.set_column(0, "node", node), "node", "at").to_pylist()
    return found


def _nodes_by_traffic(pairs: pa.Table) -> list[str]:
    """Nodes that send or receive, the busiest first."""
    node, to_node = pairs["node"], pairs["to_node"]
    same = pc.equal(node, to_node).fill_null(False)
    to = pa.table({"node": to_node, "sent": pairs["sent"]}).filter(pc.invert(same))
    both = pa.concat_tables([pairs.select(["node", "sent"]), to])
    named = both.filter(pc.greater(pc.utf8_length(both["node"]).fill_null(0), 0))
    return [row["node"] for row in _busiest_rows(named, len(named), "node")]


def _shown_node(node: pa.ChunkedArray, shown: Sequence[str]) -> pa.ChunkedArray:
    node = node.fill_null("")
    return pc.if_else(pc.is_in(node, value_set=pa.array([*shown, ""])), node, OTHERS)


def _agent_at_node(pairs: pa.Table, agent: str, node: str) -> pa.ChunkedArray:
    where = pairs[node].fill_null("nowhere")
    return pc.binary_join_element_wise(pairs[agent], where, " @ ", null_handling="skip")


def _edge_rows(
    pairs: pa.Table, source: pa.ChunkedArray, target: pa.ChunkedArray, most: int
) -> list[SumRow]:
    flows = pairs.drop_columns(list(_PAIR_COLUMNS))
    named = flows.append_column("source", source).append_column("target", target)
    rows = _busiest_rows(named, most, "source", "target")
    for row in rows:
        weighed, weight = row.pop("weighed"), row.pop("weight")
        row["process_ms"] = weighed / weight if weight else None
    return rows


# -- latencies


class LatencyGroups(Struct, frozen=True):
    """The groups of deliveries with percentiles of their own, each with an index.

    The groups are, in this order: each kind, each node, each step of time, and all deliveries.
    """

    kinds: list[str]
    nodes: list[str]
    period: ReportPeriod

    def __len__(self) -> int:
        return len(self.kinds) + len(self.nodes) + self.period.steps + 1

    def split_percentiles(self, times: "list[GroupPercentiles]") -> "SplitPercentiles":
        """Split the percentiles of all groups into those of kinds, nodes, steps and all."""
        *each, every = times
        nodes = each[len(self.kinds) :]
        return each[: len(self.kinds)], nodes[: len(self.nodes)], nodes[len(self.nodes) :], every

    def group_indexes(self, hour: HourDeliveries) -> list[Numbers | Codes]:
        """Four group indexes of each delivery: by kind, node, step and all.

        An index is negative where the kind or node has no group.
        """
        kinds = {name: index for index, name in enumerate(self.kinds)}
        nodes = {name: len(kinds) + index for index, name in enumerate(self.nodes)}
        return [
            hour.map_texts("kind", kinds),
            hour.map_texts("node", nodes),
            len(kinds) + len(nodes) + self.period.step_index(hour.sent_at),
            np.full(len(hour), len(self) - 1),
        ]


def count_latencies(hour: HourDeliveries, groups: LatencyGroups) -> pa.Table:
    """Count the deliveries of one hour by what happened, group, and time rounded up."""
    times = {_ACCEPT: hour.accept_ms, _PROCESS: hour.process_ms}
    return pa.concat_tables(
        _count_times(what, group, ms)
        for what, ms in times.items()
        for group in groups.group_indexes(hour)
    )


def _count_times(what: str, group: Numbers | Codes, ms: Numbers) -> pa.Table:
    known = (ms != ABSENT) & (group >= 0)
    rows = {"group": group[known].astype(np.int64), "ms": round_up_times(ms[known])}
    counted = pa.table(rows).group_by(["group", "ms"], use_threads=False)
    found = counted.aggregate([([], "count_all")]).rename_columns(["group", "ms", "count"])
    return found.add_column(0, "what", pa.repeat(pa.scalar(what, pa.string()), len(found)))


# -- deliveries that did not end well, or have not ended


def count_unfinished(hour: HourDeliveries) -> pa.Table:
    """Count dead letters by agents and reason, and open deliveries by agents and state."""
    is_open = ~hour.bool_column("closed") & ~hour.is_dead
    states = np.where(hour.is_dead, "dead", np.where(is_open, "open", ""))
    accepted = np.where(hour.has_number("accepted_at"), _ACCEPTED, _NOT_ACCEPTED)
    reason = hour.table["reason"].cast(pa.string())
    outcome = hour.table["outcome"].cast(pa.string())
    known = pc.utf8_slice_codeunits(pc.coalesce(reason, outcome, "unknown"), 0, _MAX_REASON)
    columns = {name: hour.table[name].cast(pa.string()).fill_null("") for name in _ENDS}
    columns |= {
        "state": pa.array(states, pa.string()),
        "reason": pc.if_else(pa.array(hour.is_dead), known, pa.array(accepted, pa.string())),
        "count": pa.array(np.ones(len(hour), np.int64)),
    }
    rows = pa.table(columns)
    return most_frequent(rows.filter(pc.not_equal(rows["state"], "")), _MAX_GROUPS)


def most_frequent(rows: pa.Table, most: int) -> pa.Table:
    by = ("state", *_ENDS, "reason")
    order = [("count", "descending"), *((name, "ascending") for name in by)]
    return _sum_by(rows, *by).sort_by(order).slice(0, most)


def count_throughput(hour: HourDeliveries, period: ReportPeriod) -> pa.Table:
    """Deliveries and dead letters by node and step, for steps shorter than a window."""
    rows = {
        "node": hour.table["node"].cast(pa.string()),
        "at": pa.array(period.step_index(hour.sent_at)),
        "sent": pa.array(np.ones(len(hour), np.int64)),
        "dead": pa.array(hour.is_dead.astype(np.int64)),
    }
    return _sum_by(pa.table(rows), "node", "at")


class DeliveryCounts(Struct, frozen=True):
    """Counts of the deliveries in some files; the counts of several files can be added up."""

    latencies: pa.Table
    lanes: pa.Table
    unfinished: pa.Table
    ledger: Ledger


class MeasuredDeliveries(Struct, frozen=True):
    """Percentiles of all groups, deliveries by node and step, unfinished ones, and the ledger."""

    percentiles: "list[GroupPercentiles]"
    lanes: pa.Table
    unfinished: list[SumRow]
    ledger: Ledger


_NO_LANES = pa.table(
    {
        "node": pa.array([], pa.string()),
        "at": pa.array([], pa.int64()),
        "sent": pa.array([], pa.int64()),
        "dead": pa.array([], pa.int64()),
    }
)
_LATENCY_KEY = ("what", "group", "ms")
_NO_LATENCIES = pa.table(
    {"what": pa.array([], pa.string())}
    | {name: pa.array([], pa.int64()) for name in ("group", "ms", "count")}
)
_NO_UNFINISHED = pa.table(
    {name: pa.array([], pa.string()) for name in ("state", *_ENDS, "reason")}
    | {"count": pa.array([], pa.int64())}
)


def count_deliveries(hours: Iterable[HourDeliveries], groups: LatencyGroups) -> DeliveryCounts:
    latencies = [_NO_LATENCIES]
    lanes, unfinished = [_NO_LANES], [_NO_UNFINISHED]
    ledgers = []
    for hour in hours:
        latencies.append(count_latencies(hour, groups))
        lanes.append(count_throughput(hour, groups.period))
        unfinished.append(count_unfinished(hour))
        ledgers.append(count_ledger(hour.table))
    return DeliveryCounts(
        _sum_by(pa.concat_tables(latencies), *_LATENCY_KEY),
        _sum_by(pa.concat_tables(lanes), "node", "at"),
        most_frequent(pa.concat_tables(unfinished), _MAX_GROUPS),
        add_ledgers(ledgers),
    )


def measure_deliveries(
    parts: Sequence[DeliveryCounts], groups: LatencyGroups, online_ms: int
) -> MeasuredDeliveries:
    latencies = pa.concat_tables([_NO_LATENCIES, *(each.latencies for each in parts)])
    lanes = pa.concat_tables([_NO_LANES, *(each.lanes for each in parts)])
    unfinished = pa.concat_tables([_NO_UNFINISHED, *(each.unfinished for each in parts)])
    kept = most_frequent(unfinished, _MAX_GROUPS)
    shown: list[SumRow] = [
        row
        for state in ("dead", "open")
        for row in kept.filter(pc.equal(kept["state"], state)).slice(0, TOP_ROWS).to_pylist()
    ]
    return MeasuredDeliveries(
        measure_percentiles(latencies, len(groups), online_ms),
        _sum_by(lanes, "node", "at"),
        shown,
        add_ledgers(each.ledger for each in parts),
    )


class GroupPercentiles(Struct, frozen=True):
    """Percentiles of one group in milliseconds; None where it has no deliveries."""

    accept: tuple[int | None, ...]
    process: tuple[int | None, ...]
    online: int | None


# Those of each kind, of each node, of each step, and of all deliveries.
SplitPercentiles = tuple[
    list[GroupPercentiles], list[GroupPercentiles], list[GroupPercentiles], GroupPercentiles
]


def measure_percentiles(latencies: pa.Table, groups: int, online_ms: int) -> list[GroupPercentiles]:
    """Percentiles of each of so many groups.

    Deliveries accepted after `online_ms` do not count for `online`: their node was away.
    """
    accept, process = (_select_times(latencies, what) for what in (_ACCEPT, _PROCESS))
    accepted, processed = (SortedGroups.from_counts(*each, groups) for each in (accept, process))
    group, ms, count = accept
    soon = ms <= round_up_times(np.array([online_ms]))
    online = np.bincount(group[soon], count[soon], groups).astype(np.int64)
    points = [
        list(zip(*(_known_times(each.percentile(share)) for share in _PERCENTILES), strict=True))
        for each in (accepted, processed)
    ]
    return list(map(GroupPercentiles, *points, _known_times(accepted.percentile(0.95, online))))


def _select_times(latencies: pa.Table, what: str) -> tuple[Numbers, Numbers, Numbers]:
    rows = latencies.filter(pc.equal(latencies["what"], what))
    group, ms, count = (to_numbers(rows[name]) for name in ("group", "ms", "count"))
    return group, ms, count


def _known_times(times: Numbers) -> list[int | None]:
    return [None if time == ABSENT else time for time in times.tolist()]
