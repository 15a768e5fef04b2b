"""Turns rows that kernels make into rows that tables store, and back.

A time outside of the range of microseconds wraps instead of failing: only a row that nobody checked
can hold one, and one such row must not stop the others.
"""

from typing import Final

import numpy as np
import pyarrow as pa

from gatepost.pipeline.tables.arrow_schemas import replace_times, stored_schema
from gatepost.pipeline.tables.schemas import TableSpec

_HOURS_A_DAY: Final = 24
_MILLISECONDS: Final = pa.timestamp("ms", "UTC")


def to_stored(table: TableSpec, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Rows of a kernel as the table stores them, with `day` for the partition."""
    schema = stored_schema(table)
    arrays = [
        _days_of(rows["hour"])
        if field.name not in rows.schema.names
        else store_times(rows[field.name], field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def store_times(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """The column with this type; where that is a TIMESTAMP, the column has epoch milliseconds."""
    if column.type == kind:
        return column
    return column.cast(replace_times(kind, _MILLISECONDS)).cast(kind, safe=False)


def _days_of(hours: pa.Array) -> pa.Array:
    return pa.array((np.asarray(hours) // _HOURS_A_DAY).astype(np.int32)).cast(pa.date32())


def to_reckoned(rows: pa.Table) -> pa.Table:
    """Stored rows with all times as epoch milliseconds."""
    return pa.table({field.name: _reckon(rows[field.name], field) for field in rows.schema})


def _reckon(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    counted = replace_times(field.type, pa.int64())
    if counted == field.type:
        return column
    return column.cast(replace_times(field.type, _MILLISECONDS), safe=False).cast(counted)
