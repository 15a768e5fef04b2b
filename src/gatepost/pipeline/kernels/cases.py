"""Selects the cases of an hour: the few deliveries that cause incidents and reviews."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gatepost.pipeline.kernels.columns import ABSENT, Flags
from gatepost.pipeline.kernels.facts import VERSION_COLUMNS
from gatepost.pipeline.kernels.groups import columns_to_table, decode_dictionaries
from gatepost.pipeline.kernels.hour_deliveries import HourDeliveries
from gatepost.pipeline.kernels.slo import window_start
from gatepost.pipeline.objectives import Objectives
from gatepost.pipeline.tables.schemas import CASES

# A task in one of these states is held to its promise.
PROMISED_STATES = ("completed", "running", "accepted", "failed", "cancelled")


def select_cases(hour: HourDeliveries, objectives: Objectives) -> pa.Table:
    """Select the deliveries that failed, or that may still fail."""
    accepted_at, ended_at = hour.number_column("accepted_at"), hour.ended_at
    waited = window_start(accepted_at, objectives) > window_start(hour.sent_at, objectives)
    slow = ended_at - accepted_at > objectives.sla * 1000
    unfinished = (accepted_at == ABSENT) | (ended_at == ABSENT)
    skewed = (accepted_at != ABSENT) & (hour.sent_at - accepted_at > objectives.clock_skew * 1000)
    unusual = hour.has_number("dead_at") | unfinished | waited | slow | skewed | _is_misfired(hour)
    dead_at = hour.number_column("dead_at")
    columns = {
        "hour": np.full(len(hour), hour.hour),
        **{name: hour.table[name] for name in ("node", "to_node", "to_agent", "corr_id", "reason")},
        **{
            name: hour.table[f"task.{name}"]
            for name in (*VERSION_COLUMNS, "eta_at", "failure_class")
        },
        "sent_at": hour.sent_at,
        "accepted_at": accepted_at,
        "ended_at": np.where(ended_at == ABSENT, dead_at, ended_at),
        "dead_at": dead_at,
        "task_ended_at": np.where(hour.is_task, hour.task_ended_at, ABSENT),
        "task_state": hour.task_state,
    }
    return decode_dictionaries(
        columns_to_table(columns, CASES.kernel_names).filter(pa.array(unusual))
    )


def _is_misfired(hour: HourDeliveries) -> Flags:
    """Whether each delivery is a task that failed, or that is not known to have kept its ETA."""
    eta_at, ended_at = hour.number_column("task.eta_at"), hour.task_ended_at
    held = np.asarray(pc.is_in(hour.task_state, value_set=pa.array(PROMISED_STATES)))
    promised = held & (eta_at != ABSENT)
    late = (ended_at == ABSENT) | (ended_at > eta_at)
    misfired: Flags = hour.is_task & ((promised & late) | hour.has_number("task.failed_at"))
    return misfired
