"""What each node wrote in each window of its own clock, counted where it is read.

Counts of one window may come in parts, of one batch as of several.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from gatepost.pipeline.objectives import Objectives
from gatepost.pipeline.tables.facts import Column
from gatepost.pipeline.tables.schemas import ACTIVITY


def activity(batch: int, node: str, created_at: Column, objectives: Objectives) -> pa.RecordBatch:
    """Some of one node's events, by window."""
    width = objectives.window_ms
    at = np.sort(created_at)
    window, start = np.unique(at // width * width, return_index=True)
    end = np.append(start[1:], len(at))
    size = len(window)
    columns: Sequence[Any] = (
        np.full(size, batch),
        [node] * size,
        window,
        end - start,
        at[start],
        at[end - 1],
    )
    return pa.RecordBatch.from_arrays([pa.array(c) for c in columns], ACTIVITY.names)
