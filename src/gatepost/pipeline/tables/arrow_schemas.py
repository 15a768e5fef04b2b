"""The tables' schemas in Arrow's types: what kernels make, and what files store.

Kernels reckon with times as epoch milliseconds. Files store TIMESTAMPs, and `day` beside `hour`.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import pyarrow as pa

from gatepost.pipeline.tables.schemas import TableSpec

STORED_TIME: Final = pa.timestamp("us", "UTC")
_STORED_TYPES = {
    "string": pa.string(),
    "long": pa.int64(),
    "integer": pa.int32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": STORED_TIME,
}


def arrow_schema(table: TableSpec) -> pa.Schema:
    """The columns that kernels make and read, with times as epoch milliseconds."""
    stored = pa.schema(_arrow_fields(table.schema))
    return pa.schema([_with_times(stored.field(name), pa.int64()) for name in table.kernel_names])


def stored_schema(table: TableSpec) -> pa.Schema:
    """The columns of the table, those of its partition included."""
    return pa.schema(_arrow_fields(table.schema))


def rows_to_table(table: TableSpec, rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=arrow_schema(table))


def replace_times(kind: pa.DataType, time: pa.DataType) -> pa.DataType:
    """The type with `time` instead of every TIMESTAMP in it."""
    if pa.types.is_timestamp(kind):
        return time
    if pa.types.is_list(kind):
        return pa.list_(_with_times(kind.value_field, time))
    if pa.types.is_struct(kind):
        return pa.struct([_with_times(each, time) for each in kind])
    return kind


def _with_times(field: pa.Field, time: pa.DataType) -> pa.Field:
    return field.with_type(replace_times(field.type, time))


def _arrow_fields(struct: Mapping[str, Any]) -> list[tuple[str, pa.DataType]]:
    return [(field["name"], _arrow_type(field["type"])) for field in struct["fields"]]


def _arrow_type(kind: Any) -> pa.DataType:
    if isinstance(kind, str):
        return _STORED_TYPES[kind]
    if kind["type"] == "array":
        return pa.list_(_arrow_type(kind["elementType"]))
    return pa.struct(_arrow_fields(kind))
