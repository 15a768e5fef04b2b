"""Computes the service levels and the traffic of one hour's deliveries.

A delivery belongs to the window of its `sent_at`, however late its other facts become known: a
laptop that was away for a week changes last week's windows. Percentiles are exact: a node sends few
enough deliveries in a window to sort them.
"""

from typing import Any

import numpy as np
import pyarrow as pa

from gatepost.pipeline.objectives import Objectives
from gatepost.pipeline.tables.facts import ABSENT, Column
from gatepost.pipeline.tables.groups import Groups, Sorted, earlier, listed
from gatepost.pipeline.tables.hours import Hour
from gatepost.pipeline.tables.schemas import HOUR_MS, SLO, TRAFFIC

_POINTS = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


def window_of(at: Column, objectives: Objectives) -> Column:
    return at // objectives.window_ms * objectives.window_ms


def slo(hour: Hour, objectives: Objectives) -> pa.Table:
    """Compute service levels by window, kind, node and capability."""
    start, width = hour.hour * HOUR_MS, objectives.window_ms
    # Keep the window inside the hour of the id. They differ only if a clock went back: id times
    # never do.
    window = np.clip(window_of(hour.sent_at, objectives), start, start + HOUR_MS - width)
    texts = {"kind": "kind", "node": "node", "capability_id": "task.capability_id"}
    groups = Groups.alike(window, *map(hour.text, texts.values()))
    counts = _counts(hour, groups, window + width)
    columns = {
        **_key(hour, groups, texts),
        "window_start": groups.first(window),
        "window_ms": np.full(len(groups), width),
        **counts,
        **_levels(hour, groups, objectives),
        "per_second": counts["sent"] / objectives.window,
        "retry_rate": counts["retried"] / counts["sent"],
        "duplicate_rate": counts["duplicates"] / counts["sent"],
        "dead_rate": counts["dead"] / counts["sent"],
    }
    return listed(columns, SLO.names)


def _key(hour: Hour, groups: Groups, texts: dict[str, str]) -> dict[str, Any]:
    """The key columns of each group; `texts` maps names to columns of the hour."""
    keys = {name: hour.texts(groups.first(hour.text(column))) for name, column in texts.items()}
    return {"hour": np.full(len(groups), hour.hour), **keys}


def _counts(hour: Hour, groups: Groups, end: Column) -> dict[str, Column]:
    left_at = earlier(hour.number("accepted_at"), hour.number("dead_at"))
    counted = {
        "accepted": hour.there("accepted_at"),
        "processed": hour.process_ms != ABSENT,
        "failed": hour.is_any("outcome", "failed"),
        "dead": hour.dead,
        "amended": hour.truth("amended"),
        "retried": hour.number("attempts") > 1,
        "open": ~hour.truth("closed"),
        "ack_lag": np.where(left_at == ABSENT, end, left_at) >= end,
        "duplicates": hour.number("duplicates"),
        "bytes": hour.number("size"),
    }
    sums = {name: groups.sum(values) for name, values in counted.items()}
    return {"sent": groups.sizes, **sums}


def _levels(hour: Hour, groups: Groups, objectives: Objectives) -> dict[str, Any]:
    accept = Sorted.of(groups, hour.accept_ms)
    process = Sorted.of(groups, hour.process_ms)
    soon = hour.there("accepted_at") & (hour.accept_ms <= objectives.online * 1000)
    online = accept.percentile(0.95, groups.sum(soon))
    objective = int(objectives.delivery_p95 * 1000)
    points = {
        f"{what}_{point}": times.percentile(share)
        for what, times in (("accept", accept), ("process", process))
        for point, share in _POINTS.items()
    }
    return {
        **points,
        "online_p95": online,
        "objective_ms": np.full(len(groups), objective),
        "met": pa.array(online < objective, mask=online == ABSENT),
    }


def traffic(hour: Hour) -> pa.Table:
    """Count deliveries by sender and receiver."""
    texts = {name: name for name in ("node", "from_agent", "to_node", "to_agent")}
    groups = Groups.alike(*map(hour.text, texts))
    columns = {
        **_key(hour, groups, texts),
        "sent": groups.sizes,
        "bytes": groups.sum(hour.number("size")),
        "ok": groups.sum(hour.there("replied_at") | hour.is_any("outcome", "ok")),
        "failed": groups.sum(hour.is_any("outcome", "failed")),
        "dead": groups.sum(hour.dead),
        "open": groups.sum(~hour.truth("closed")),
        "accept_ms": _mean(groups, hour.accept_ms),
        "process_ms": _mean(groups, hour.process_ms),
        "process_max": groups.most(hour.process_ms),
    }
    return listed(columns, TRAFFIC.names)


def _mean(groups: Groups, values: Column) -> pa.Array:
    count = groups.sum(values != ABSENT)
    return pa.array(groups.sum(values) / np.maximum(count, 1), mask=count == 0)
