"""Computes the service levels and the traffic of one hour's deliveries.

A delivery belongs to the window of its `sent_at`, however late its other facts become known: a
laptop that was away for a week changes last week's windows. Percentiles are exact: a node sends few
enough deliveries in a window to sort them.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from gatepost.pipeline.kernels.columns import ABSENT, Flags, Numbers
from gatepost.pipeline.kernels.groups import (
    CodedColumns,
    Groups,
    SortedGroups,
    columns_to_table,
    decode_dictionaries,
    earliest_known,
)
from gatepost.pipeline.kernels.hour_deliveries import HourDeliveries
from gatepost.pipeline.objectives import Objectives
from gatepost.pipeline.tables.schemas import HOUR_MS, SLO, TRAFFIC

_PERCENTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
_TRAFFIC_KEY: Final = ("node", "from_agent", "to_node", "to_agent")


def window_start(at: Numbers, objectives: Objectives) -> Numbers:
    return at // objectives.window_ms * objectives.window_ms


def slo_window(sent_at: Numbers, hour: int, objectives: Objectives) -> Numbers:
    """The window of each delivery of an hour.

    Keep the window inside the hour of the id. They differ only if a clock went back: id times
    never do.
    """
    start, end = hour * HOUR_MS, (hour + 1) * HOUR_MS - objectives.window_ms
    return np.clip(window_start(sent_at, objectives), start, end)


def compute_slo(hour: HourDeliveries, objectives: Objectives) -> pa.Table:
    """Compute service levels by window, kind, node and capability."""
    width = objectives.window_ms
    window = slo_window(hour.sent_at, hour.hour, objectives)
    texts = {"kind": "kind", "node": "node", "capability_id": "task.capability_id"}
    groups = Groups.group_equal(window, *map(hour.text_codes, texts.values()))
    counts = _count_columns(hour, groups, window + width)
    columns = {
        **_key_columns(hour, groups, texts),
        "window_start": groups.first_values(window),
        "window_ms": np.full(len(groups), width),
        **counts,
        **_level_columns(hour, groups, objectives),
        "per_second": counts["sent"] / objectives.window,
        "retry_rate": counts["retried"] / counts["sent"],
        "duplicate_rate": counts["duplicates"] / counts["sent"],
        "dead_rate": counts["dead"] / counts["sent"],
    }
    return columns_to_table(columns, SLO.kernel_names)


def _key_columns(hour: HourDeliveries, groups: Groups, texts: dict[str, str]) -> dict[str, Any]:
    """The key columns of each group; `texts` maps names to columns of the hour."""
    keys = {
        name: hour.decode_texts(groups.first_values(hour.text_codes(column)))
        for name, column in texts.items()
    }
    return {"hour": np.full(len(groups), hour.hour), **keys}


def _count_columns(hour: HourDeliveries, groups: Groups, end: Numbers) -> dict[str, Numbers]:
    left_at = earliest_known(hour.number_column("accepted_at"), hour.number_column("dead_at"))
    counted: dict[str, Numbers | Flags] = {
        "accepted": hour.has_number("accepted_at"),
        "processed": hour.process_ms != ABSENT,
        "dead": hour.is_dead,
        "amended": hour.bool_column("amended"),
        "retried": hour.number_column("attempts") > 1,
        "open": ~hour.bool_column("closed"),
        "ack_lag": np.where(left_at == ABSENT, end, left_at) >= end,
        "duplicates": hour.number_column("duplicates"),
        "bytes": hour.number_column("size"),
    }
    sums = {name: groups.sum_values(values) for name, values in counted.items()}
    return {"sent": groups.sizes, **sums}


def _level_columns(hour: HourDeliveries, groups: Groups, objectives: Objectives) -> dict[str, Any]:
    accept = SortedGroups.from_groups(groups, hour.accept_ms)
    process = SortedGroups.from_groups(groups, hour.process_ms)
    soon = hour.has_number("accepted_at") & (hour.accept_ms <= objectives.online * 1000)
    online = accept.percentile(0.95, groups.sum_values(soon))
    objective = int(objectives.delivery_p95 * 1000)
    points = {
        f"{what}_{point}": times.percentile(share)
        for what, times in (("accept", accept), ("process", process))
        for point, share in _PERCENTILES.items()
    }
    return {
        **points,
        "online_p95": online,
        "objective_ms": np.full(len(groups), objective),
        "met": pa.array(online < objective, mask=online == ABSENT),
    }


def compute_traffic(hour: HourDeliveries) -> pa.Table:
    """Count deliveries by sender and receiver."""
    return finish_traffic([sum_traffic(hour)])


def sum_traffic(hour: HourDeliveries) -> pa.Table:
    """Sums by sender and receiver, of all deliveries of an hour or of some."""
    groups = Groups.group_equal(*map(hour.text_codes, _TRAFFIC_KEY))
    columns = {
        **_key_columns(hour, groups, {name: name for name in _TRAFFIC_KEY}),
        "sent": groups.sizes,
        "bytes": groups.sum_values(hour.number_column("size")),
        "ok": groups.sum_values(
            hour.has_number("replied_at") | hour.is_any("outcome", "ok", "kept")
        ),
        "dead": groups.sum_values(hour.is_dead),
        "open": groups.sum_values(~hour.bool_column("closed")),
        "accept_sum": groups.sum_values(hour.accept_ms),
        "accept_count": groups.sum_values(hour.accept_ms != ABSENT),
        "process_sum": groups.sum_values(hour.process_ms),
        "process_count": groups.sum_values(hour.process_ms != ABSENT),
        "process_max": groups.max_values(hour.process_ms),
    }
    return decode_dictionaries(columns_to_table(columns, list(columns)))


def finish_traffic(parts: Sequence[pa.Table]) -> pa.Table:
    """The rows of `traffic` from the sums of all parts of an hour."""
    sums = CodedColumns(pa.concat_tables(parts).combine_chunks())
    hour, names = sums.number_column("hour"), [*map(sums.text_codes, _TRAFFIC_KEY)]
    groups = Groups.group_equal(hour, *names)
    added = {
        name: groups.sum_values(sums.number_column(name))
        for name in sums.table.column_names
        if name not in ("hour", "process_max", *_TRAFFIC_KEY)
    }
    columns = {
        "hour": groups.first_values(hour),
        **{
            name: sums.decode_texts(groups.first_values(key))
            for name, key in zip(_TRAFFIC_KEY, names, strict=True)
        },
        **added,
        "accept_ms": _ratio(added["accept_sum"], added["accept_count"]),
        "process_ms": _ratio(added["process_sum"], added["process_count"]),
        "process_max": groups.max_values(sums.number_column("process_max")),
    }
    return columns_to_table(columns, TRAFFIC.kernel_names)


def _ratio(total: Numbers, count: Numbers) -> pa.Array:
    return pa.array(total / np.maximum(count, 1), mask=count == 0)
