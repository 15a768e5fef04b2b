"""Computes an hour's tasks, and their paces: how many there were and how long they took.

The paces of all its hours replace the tasks of a whole month.
"""

import numpy as np
import pyarrow as pa

from gatepost.pipeline.kernels.columns import ABSENT, Numbers
from gatepost.pipeline.kernels.facts import TASK_COLUMNS, VERSION_COLUMNS
from gatepost.pipeline.kernels.groups import Groups, columns_to_table, decode_dictionaries
from gatepost.pipeline.kernels.hour_deliveries import HourDeliveries
from gatepost.pipeline.kernels.rounded_times import round_up_times
from gatepost.pipeline.tables.schemas import PACES, TASKS

_DELIVERY_COLUMNS = ("node", "event_id", "corr_id", "from_agent", "to_agent", "to_node", "reason")
_TASK_STRUCT_COLUMNS = (*TASK_COLUMNS, "eta_at", "progress", "failure_class")


def select_tasks(hour: HourDeliveries) -> pa.Table:
    """Select each task_create, with all facts that its owner stated later."""
    columns = {
        "hour": np.full(len(hour), hour.hour),
        **{name: hour.table[name] for name in (*_DELIVERY_COLUMNS, "accepted_at")},
        **{name: hour.table[f"task.{name}"] for name in _TASK_STRUCT_COLUMNS},
        "created_at": hour.sent_at,
        "ended_at": hour.task_ended_at,
        "took_ms": hour.took_ms,
        "state": hour.task_state,
    }
    return decode_dictionaries(
        columns_to_table(columns, TASKS.kernel_names).filter(pa.array(hour.is_task))
    )


def compute_paces(hour: HourDeliveries) -> pa.Table:
    """Count the tasks under each pair of skill versions, and how long they took."""
    rows = np.flatnonzero(hour.is_task)
    keys = {name: hour.text_codes(f"task.{name}")[rows] for name in VERSION_COLUMNS}
    groups = Groups.group_equal(*keys.values())
    took, eta = hour.took_ms[rows], hour.number_column("task.eta_at")[rows]
    completed = took != ABSENT
    promised = completed & (eta != ABSENT)
    promise = np.where(promised, eta - hour.sent_at[rows], ABSENT)
    columns = {
        "hour": np.full(len(groups), hour.hour),
        **{name: hour.decode_texts(groups.first_values(codes)) for name, codes in keys.items()},
        "tasks": groups.sizes,
        "completed": groups.sum_values(completed),
        "promised": groups.sum_values(promised),
        "kept": groups.sum_values(promised & (hour.task_ended_at[rows] <= eta)),
        "took": _count_times(groups, took),
        "promises": _count_times(groups, promise),
    }
    return columns_to_table(columns, PACES.kernel_names)


def _count_times(groups: Groups, values: Numbers) -> pa.Array:
    """For each group its rounded times, each with its count."""
    known = np.flatnonzero(values != ABSENT)
    group, ms = groups.group_numbers[known], round_up_times(values[known])
    equal = Groups.group_equal(group, ms)
    sizes = np.bincount(equal.first_values(group), minlength=len(groups))
    pairs = [pa.array(equal.first_values(ms)), pa.array(equal.sizes)]
    return pa.ListArray.from_arrays(
        np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32),
        pa.StructArray.from_arrays(pairs, ["ms", "count"]),
    )
