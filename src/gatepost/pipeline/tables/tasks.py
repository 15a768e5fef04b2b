"""One hour's deliveries into tasks, and into sums of these: how many, and how long they took.

What takes all tasks of a month to say is said by the sums of its hours.
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
    """Each task_create with all that its owner told about it later."""
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
    """Texts as they are, whatever way they were read."""
    for place, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):
            table = table.set_column(place, field.name, table[field.name].cast(pa.string()))
    return table


def paces(hour: Hour) -> pa.Table:
    """How many tasks there were under each pair of versions, and how long they took."""
    mine = np.flatnonzero(hour.is_task)
    keys = {name: hour.text(f"task.{name}")[mine] for name in VERSIONS}
    groups = Groups.alike(*keys.values())
    took, eta = hour.took_ms[mine], hour.number("task.eta_at")[mine]
    completed = took != ABSENT
    promised = completed & (eta != ABSENT)
    promise = np.where(promised, eta - hour.sent_at[mine], ABSENT)
    columns = {
        "hour": np.full(len(groups), hour.hour),
        **{name: hour.texts(groups.first(places)) for name, places in keys.items()},
        "tasks": groups.sizes,
        "completed": groups.sum(completed),
        "promised": groups.sum(promised),
        "kept": groups.sum(promised & (hour.task_ended_at[mine] <= eta)),
        "took": _counted(groups, took),
        "promises": _counted(groups, promise),
    }
    return listed(columns, PACES.names)


def _counted(groups: Groups, values: Column) -> pa.Array:
    """For each group its numbers, each with how often it is there."""
    there = np.flatnonzero(values != ABSENT)
    of, ms = groups.of[there], rounded(values[there])
    each = Groups.alike(of, ms)
    sizes = np.bincount(each.first(of), minlength=len(groups))
    pairs = [pa.array(each.first(ms)), pa.array(each.sizes)]
    return pa.ListArray.from_arrays(
        np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32),
        pa.StructArray.from_arrays(pairs, ["ms", "count"]),
    )
