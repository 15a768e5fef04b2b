"""Selects the cases of an hour: the few deliveries that incidents and reviews are made of."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gatepost.pipeline.objectives import Objectives
from gatepost.pipeline.tables.facts import ABSENT, VERSIONS, Column
from gatepost.pipeline.tables.groups import listed
from gatepost.pipeline.tables.hours import Hour
from gatepost.pipeline.tables.schemas import CASES
from gatepost.pipeline.tables.slo import window_of
from gatepost.pipeline.tables.tasks import plain

# A task in one of these states is held to its promise.
PROMISED = ("completed", "running", "accepted")


def cases(hour: Hour, objectives: Objectives) -> pa.Table:
    """Select the deliveries that went wrong, or still may."""
    accepted_at, ended_at = hour.number("accepted_at"), hour.ended_at
    waited = window_of(accepted_at, objectives) > window_of(hour.sent_at, objectives)
    slow = ended_at - accepted_at > objectives.sla * 1000
    unfinished = (accepted_at == ABSENT) | (ended_at == ABSENT)
    unusual = hour.there("dead_at") | unfinished | waited | slow | _misfired(hour)
    dead_at = hour.number("dead_at")
    columns = {
        "hour": np.full(len(hour), hour.hour),
        **{name: hour.table[name] for name in ("node", "to_node", "to_agent", "corr_id", "reason")},
        **{name: hour.table[f"task.{name}"] for name in (*VERSIONS, "eta_at", "failure_class")},
        "sent_at": hour.sent_at,
        "accepted_at": accepted_at,
        "ended_at": np.where(ended_at == ABSENT, dead_at, ended_at),
        "dead_at": dead_at,
        "task_ended_at": np.where(hour.is_task, hour.task_ended_at, ABSENT),
        "task_state": hour.task_state,
    }
    return plain(listed(columns, CASES.names).filter(pa.array(unusual)))


def _misfired(hour: Hour) -> Column:
    """Whether each delivery is a task that failed, or that is not known to have kept its ETA."""
    eta_at, ended_at = hour.number("task.eta_at"), hour.task_ended_at
    held = np.asarray(pc.is_in(hour.task_state, value_set=pa.array(PROMISED)))
    promised = held & (eta_at != ABSENT)
    late = (ended_at == ABSENT) | (ended_at > eta_at)
    misfired: Column = hour.is_task & ((promised & late) | hour.there("task.failed_at"))
    return misfired
