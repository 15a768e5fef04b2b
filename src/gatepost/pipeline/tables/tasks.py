"""Makes tasks of one hour's deliveries, and paces: their number and how long they took.

The paces of all its hours replace the tasks of a whole month.
"""

import numpy as np
import pyarrow as pa

from gatepost.pipeline.tables.facts import ABSENT, TASK, VERSIONS, Column
from gatepost.pipeline.tables.groups import Groups, listed
from gatepost.pipeline.tables.hours import Hour
from gatepost.pipeline.tables.schemas import PACES, TASKS
from gatepost.pipeline.tables.steps import rounded

_SAME = ("node", "event_id", "corr_id", "from_agent", "to_agent", "to_node", "reason")
_TOLD = (*TASK, "eta_at", "progress", "failure_class")


def tasks(hour: Hour) -> pa.Table:
    """Select each task_create, with all facts that its owner stated later."""
    columns = {
        "hour": np.full(len(hour), hour.hour),
        **{name: hour.table[name] for name in (*_SAME, "accepted_at")},
        **{name: hour.table[f"task.{name}"] for name in _TOLD},
        "created_at": hour.sent_at,
        "ended_at": hour.task_ended_at,
        "took_ms": hour.took_ms,
        "state": hour.task_state,
    }
    return plain(listed(columns, TASKS.names).filter(pa.array(hour.is_task)))


def plain(table: pa.Table) -> pa.Table:
    """Turn dictionary-encoded columns into plain texts."""
    for index, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):
            table = table.set_column(index, field.name, table[field.name].cast(pa.string()))
    return table


def paces(hour: Hour) -> pa.Table:
    """Count the tasks under each pair of skill versions, and how long they took."""
    rows = np.flatnonzero(hour.is_task)
    keys = {name: hour.text(f"task.{name}")[rows] for name in VERSIONS}
    groups = Groups.alike(*keys.values())
    took, eta = hour.took_ms[rows], hour.number("task.eta_at")[rows]
    completed = took != ABSENT
    promised = completed & (eta != ABSENT)
    promise = np.where(promised, eta - hour.sent_at[rows], ABSENT)
    columns = {
        "hour": np.full(len(groups), hour.hour),
        **{name: hour.texts(groups.first(codes)) for name, codes in keys.items()},
        "tasks": groups.sizes,
        "completed": groups.sum(completed),
        "promised": groups.sum(promised),
        "kept": groups.sum(promised & (hour.task_ended_at[rows] <= eta)),
        "took": _counted(groups, took),
        "promises": _counted(groups, promise),
    }
    return listed(columns, PACES.names)


def _counted(groups: Groups, values: Column) -> pa.Array:
    """For each group its rounded times, each with its count."""
    known = np.flatnonzero(values != ABSENT)
    group, ms = groups.of[known], rounded(values[known])
    equal = Groups.alike(group, ms)
    sizes = np.bincount(equal.first(group), minlength=len(groups))
    pairs = [pa.array(equal.first(ms)), pa.array(equal.sizes)]
    return pa.ListArray.from_arrays(
        np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32),
        pa.StructArray.from_arrays(pairs, ["ms", "count"]),
    )
