"""Counts each node's events in each window of its clock, on the executor that reads them.

One window can have several rows, from one batch or from several.
"""

import numpy as np
import pyarrow as pa

from gatepost.pipeline.kernels.columns import to_numbers
from gatepost.pipeline.objectives import Objectives
from gatepost.pipeline.tables.schemas import ACTIVITY

ACTIVITY_COLUMNS = ("node", "created_at")


def count_activity(events: pa.Table, batch: int, objectives: Objectives) -> pa.Table:
    """Count these events by node and window."""
    width = objectives.window_ms
    at = to_numbers(events["created_at"])
    # As plain texts, because the chunks do not share one dictionary.
    node = events["node"].cast(pa.string())
    rows = pa.table({"node": node, "window_start": at // width * width, "at": at})
    by_window = rows.group_by(["node", "window_start"], use_threads=False)
    counted = by_window.aggregate([("at", how) for how in ("count", "min", "max")])
    numbered = counted.add_column(0, "batch", pa.array(np.full(len(counted), batch)))
    return numbered.rename_columns(ACTIVITY.names)
