"""What nodes wrote when, counted a table of events at a time."""

import pyarrow as pa

from gatepost.pipeline.kernels.activity import count_activity
from gatepost.pipeline.objectives import Objectives
from gatepost.pipeline.tables.schemas import ACTIVITY

T = 1_767_614_400_000
WINDOW = Objectives().window_ms


def test_events_are_counted_by_node_and_window() -> None:
    # As they come from several segments: each with a dictionary of its own.
    parts = [
        pa.table({"node": pa.array([node] * len(at)).dictionary_encode(), "created_at": at})
        for node, at in (("a", [T, T + 5]), ("b", [T + 1]), ("a", [T + WINDOW, T + 2]))
    ]
    found = count_activity(pa.concat_tables(parts), 7, Objectives())
    assert found.column_names == ACTIVITY.names
    rows = sorted(tuple(row.values()) for row in found.to_pylist())
    assert rows == [
        (7, "a", T, 3, T, T + 5),
        (7, "a", T + WINDOW, 1, T + WINDOW, T + WINDOW),
        (7, "b", T, 1, T + 1, T + 1),
    ]


def test_of_nothing_there_is_nothing_to_count() -> None:
    empty = pa.table({"node": pa.array([], pa.string()), "created_at": pa.array([], pa.int64())})
    assert count_activity(empty, 1, Objectives()).num_rows == 0
