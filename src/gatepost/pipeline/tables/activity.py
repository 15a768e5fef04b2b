"""What each node wrote in each window of its own clock, counted where it is read.

Counts of one window may come in parts, of one batch as of several.
"""

import numpy as np
import pyarrow as pa

from gatepost.pipeline.objectives import Objectives
from gatepost.pipeline.tables.facts import numbers
from gatepost.pipeline.tables.schemas import ACTIVITY

COLUMNS = ("node", "created_at")


def activity(events: pa.Table, batch: int, objectives: Objectives) -> pa.Table:
    """How many of these events there are by node and window."""
    width = objectives.window_ms
    at = numbers(events["created_at"])
    # As texts: one dictionary for all of them there is not.
    node = events["node"].cast(pa.string())
    rows = pa.table({"node": node, "window_start": at // width * width, "at": at})
    by_window = rows.group_by(["node", "window_start"], use_threads=False)
    counted = by_window.aggregate([("at", how) for how in ("count", "min", "max")])
    numbered = counted.add_column(0, "batch", pa.array(np.full(len(counted), batch)))
    return numbered.rename_columns(ACTIVITY.names)
