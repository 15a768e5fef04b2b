"""What a report shows, made of tables on executors: sums of sums, and times counted in steps.

Every function here takes a part of a table, and what it makes of two parts can be added up.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from gatepost.pipeline.report.facts import OTHERS
from gatepost.pipeline.tables.facts import ABSENT, Column
from gatepost.pipeline.tables.hours import Hour
from gatepost.pipeline.tables.steps import MANY, steps_of, times_of

MOST_LANES: Final = 12
MOST_LEVELS: Final = 30
MOST_NODES: Final = 30
MOST_EDGES: Final = 1000
TOP: Final = 15

COUNTS: Final = ("sent", "processed", "failed", "dead", "retried", "open")
LEVELS: Final = (*COUNTS, "met", "objective_ms", "kind", "node", "window_start", "online_p95")
"""What is read of `slo`."""
_FLOWS = ("sent", "bytes", "failed", "dead", "open")
_AGENTS = ("node", "from_agent", "to_node", "to_agent")
TRAFFIC: Final = (*_AGENTS, *_FLOWS, "process_ms")
"""What is read of `traffic`."""
TIMES: Final = ("kind", "node", "sent_at", "accepted_at", "processed_at", "replied_at", "outcome")
"""What is read of `deliveries`."""
_POINTS = (0.5, 0.95, 0.99)
_WORST = {
    "online_p95": "descending",
    "window_start": "ascending",
    "node": "ascending",
    "kind": "ascending",
}

Row = dict[str, Any]
Parts = Mapping[str, pa.Table]


class Period(Struct, frozen=True):
    """Of so many steps. Clocks that went wrong count where it ends."""

    start: int
    step: int
    steps: int

    def step_of(self, at: Column) -> Column:
        step: Column = np.clip((at - self.start) // self.step, 0, self.steps - 1)
        return step

    @property
    def starts(self) -> list[int]:
        return [self.start + number * self.step for number in range(self.steps)]


# -- sums


def of_slo(rows: pa.Table, period: Period) -> Parts:
    met = rows["met"]
    judged = {
        "windows": met.is_valid().cast(pa.int64()),
        "met": met.fill_null(False).cast(pa.int64()),
    }
    known = {name: rows[name] for name in ("kind", "node", *COUNTS, "objective_ms")}
    at = pa.array(period.step_of(np.asarray(rows["window_start"])))
    lanes = {name: rows[name] for name in ("node", "sent", "dead")} | {"at": at}
    missed = rows.filter(pc.equal(met, False))
    return {
        "levels": _summed(pa.table(known | judged), "kind", "node"),
        "lanes": _summed(pa.table(lanes), "node", "at"),
        "missed": _worst(missed.select([*_WORST, "sent", "objective_ms"])),
    }


def of_traffic(rows: pa.Table) -> Parts:
    took, sent = rows["process_ms"], rows["sent"]
    known = {name: rows[name] for name in (*_AGENTS, *_FLOWS)}
    known |= {
        "weighed": pc.multiply(took, sent.cast(pa.float64())).fill_null(0.0),
        "weight": pc.if_else(took.is_valid(), sent, 0),
    }
    return {"pairs": _summed(pa.table(known), *_AGENTS)}


def added(parts: Sequence[Parts]) -> Parts:
    """All parts as one."""

    def every(name: str) -> pa.Table:
        return pa.concat_tables([part[name] for part in parts if name in part])

    return {
        "levels": _summed(every("levels"), "kind", "node"),
        "lanes": _summed(every("lanes"), "node", "at"),
        "missed": _worst(every("missed")),
        "pairs": _summed(every("pairs"), *_AGENTS),
    }


def _summed(rows: pa.Table, *by: str) -> pa.Table:
    """One row for each of what they are the sums by."""
    how = {
        name: "max" if name == "objective_ms" else "sum"
        for name in rows.column_names
        if name not in by
    }
    made = rows.group_by(list(by), use_threads=False).aggregate(list(how.items()))
    columns = {name: made[name] for name in by}
    for name, what in how.items():
        column = made[f"{name}_{what}"]
        columns[name] = column.fill_null(0) if what == "sum" else column
    return pa.table(columns)


def _worst(rows: pa.Table) -> pa.Table:
    return rows.sort_by(list(_WORST.items())).slice(0, TOP)


class Shown(Struct, frozen=True):
    """What of all sums a report has room for, the busiest first.

    Nodes that are not `alone` share a lane, as do all ends that are merged.
    """

    total: Row
    kinds: list[Row]
    nodes: list[Row]
    missed: list[Row]
    lanes: list[Row]
    alone: list[str]
    ends: list[str]
    ends_merged: int
    edges: list[Row]
    pairs: list[Row]

    @classmethod
    def of(cls, sums: Parts, node_count: int) -> Self:
        levels, pairs = sums["levels"], sums["pairs"]
        nodes = _busiest(levels.drop_columns(["kind"]), MOST_LEVELS, "node")
        names = [row["node"] for row in nodes]
        alone = names if node_count <= MOST_LANES else names[: MOST_LANES - 1]
        every = _ends(pairs)
        ends = every if len(every) <= MOST_NODES else every[: MOST_NODES - 1]
        between = _end(pairs["node"], ends), _end(pairs["to_node"], ends)
        agents = _agent(pairs, "from_agent", "node"), _agent(pairs, "to_agent", "to_node")
        return cls(
            total=_total(levels.drop_columns(["kind", "node"])),
            kinds=_busiest(levels.drop_columns(["node"]), MOST_LEVELS, "kind"),
            nodes=nodes,
            missed=sums["missed"].to_pylist(),
            lanes=_lanes(sums["lanes"], alone),
            alone=alone,
            ends=ends,
            ends_merged=len(every) - len(ends),
            edges=_edges(pairs, *between, MOST_EDGES),
            pairs=_edges(pairs, *agents, TOP),
        )


def _total(levels: pa.Table) -> Row:
    """Of all of them; nothing, if there are none."""
    every = levels.append_column("of", pa.array(["all"] * len(levels), pa.string()))
    found: list[Row] = _summed(every, "of").to_pylist()
    return found[0] if found else {}


def _busiest(rows: pa.Table, most: int, *by: str) -> list[Row]:
    order = [("sent", "descending"), *((name, "ascending") for name in by)]
    found: list[Row] = _summed(rows, *by).sort_by(order).slice(0, most).to_pylist()
    return found


def _lanes(lanes: pa.Table, alone: Sequence[str]) -> list[Row]:
    """By node and step; nodes that have no lane of their own are the empty one."""
    mine = pc.is_in(lanes["node"], value_set=pa.array(alone, pa.string()))
    node = pc.if_else(mine, lanes["node"], "")
    found: list[Row] = _summed(lanes.set_column(0, "node", node), "node", "at").to_pylist()
    return found


def _ends(pairs: pa.Table) -> list[str]:
    """Nodes that send or are sent to, by how much."""
    node, to_node = pairs["node"], pairs["to_node"]
    same = pc.equal(node, to_node).fill_null(False)
    to = pa.table({"node": to_node, "sent": pairs["sent"]}).filter(pc.invert(same))
    both = pa.concat_tables([pairs.select(["node", "sent"]), to])
    named = both.filter(pc.greater(pc.utf8_length(both["node"]).fill_null(0), 0))
    return [row["node"] for row in _busiest(named, len(named), "node")]


def _end(node: pa.ChunkedArray, shown: Sequence[str]) -> pa.ChunkedArray:
    node = node.fill_null("")
    return pc.if_else(pc.is_in(node, value_set=pa.array([*shown, ""])), node, OTHERS)


def _agent(pairs: pa.Table, agent: str, node: str) -> pa.ChunkedArray:
    where = pairs[node].fill_null("nowhere")
    return pc.binary_join_element_wise(pairs[agent], where, " @ ", null_handling="skip")


def _edges(
    pairs: pa.Table, source: pa.ChunkedArray, target: pa.ChunkedArray, most: int
) -> list[Row]:
    flows = pairs.drop_columns(list(_AGENTS))
    named = flows.append_column("source", source).append_column("target", target)
    rows = _busiest(named, most, "source", "target")
    for row in rows:
        weighed, weight = row.pop("weighed"), row.pop("weight")
        row["process_ms"] = weighed / weight if weight else None
    return rows


# -- times


class Keys(Struct, frozen=True):
    """What percentiles are taken of: each of these kinds and nodes, each step of time, and all."""

    kinds: list[str]
    nodes: list[str]
    period: Period

    def __len__(self) -> int:
        return len(self.kinds) + len(self.nodes) + self.period.steps + 1

    def nothing(self) -> Column:
        """How many there are of each time, accepted and done, before any was counted."""
        return np.zeros((2, len(self), MANY), np.int64)

    def split(self, times: "list[Times]") -> "tuple[list[Times], list[Times], list[Times], Times]":
        """What was measured of kinds, nodes, steps and all, apart."""
        *each, every = times
        nodes = each[len(self.kinds) :]
        return each[: len(self.kinds)], nodes[: len(self.nodes)], nodes[len(self.nodes) :], every

    def places(self, hour: Hour) -> list[Column]:
        """Where each delivery counts, four times at most; NONE where it does not."""
        kinds = {name: place for place, name in enumerate(self.kinds)}
        nodes = {name: len(kinds) + place for place, name in enumerate(self.nodes)}
        return [
            hour.chosen("kind", kinds),
            hour.chosen("node", nodes),
            len(kinds) + len(nodes) + self.period.step_of(hour.sent_at),
            np.full(len(hour), len(self) - 1),
        ]


class Counts(Struct, frozen=True):
    """Those that are not 0, and where."""

    places: tuple[Column, ...]
    counts: Column

    @classmethod
    def of(cls, every: Column) -> Self:
        places = np.nonzero(every)
        return cls(places, every[places])


def counted(hour: Hour, keys: Keys) -> Column:
    """How many were accepted, and done, by key and time."""
    places = keys.places(hour)
    both = [_counted(places, ms, len(keys)) for ms in (hour.accept_ms, hour.process_ms)]
    return np.stack(both)


def _counted(places: Sequence[Column], ms: Column, keys: int) -> Column:
    there = ms != ABSENT
    step = steps_of(ms[there])
    code = np.concatenate([place[there].astype(np.int64) * MANY + step for place in places])
    return np.bincount(code[code >= 0], minlength=keys * MANY).reshape(keys, MANY)


class Times(Struct, frozen=True):
    """Milliseconds of one key; None where nothing happened."""

    accept: tuple[int | None, ...]
    process: tuple[int | None, ...]
    online: int | None


def measured(counts: Column, online_ms: int) -> list[Times]:
    """Percentiles of each key."""
    accept, process = counts
    soon = accept[:, : int(steps_of(np.array(online_ms))) + 1]
    points = [
        list(zip(*(_percentile(each, point) for point in _POINTS), strict=True))
        for each in (accept, process)
    ]
    return list(map(Times, *points, _percentile(soon, 0.95)))


def _percentile(counts: Column, share: float) -> list[int | None]:
    """The time that this share of each row's is not above."""
    until = np.cumsum(counts, axis=1)
    total = until[:, -1]
    step = (until < np.ceil(total * share)[:, None]).sum(axis=1)
    found = zip(times_of(step).tolist(), total, strict=True)
    return [time if some else None for time, some in found]
