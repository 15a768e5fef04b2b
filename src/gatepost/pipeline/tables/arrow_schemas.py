"""The tables' schemas in Arrow's types."""

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from gatepost.pipeline.tables.schemas import TableSpec

_PLAIN_TYPES = {
    "string": pa.string(),
    "long": pa.int64(),
    "integer": pa.int32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "date": pa.date32(),
}


def arrow_schema(table: TableSpec) -> pa.Schema:
    return pa.schema(_arrow_fields(table.schema))


def rows_to_table(table: TableSpec, rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=arrow_schema(table))


def _arrow_fields(struct: Mapping[str, Any]) -> list[tuple[str, pa.DataType]]:
    return [(field["name"], _arrow_type(field["type"])) for field in struct["fields"]]


def _arrow_type(kind: Any) -> pa.DataType:
    if isinstance(kind, str):
        return _PLAIN_TYPES[kind]
    if kind["type"] == "array":
        return pa.list_(_arrow_type(kind["elementType"]))
    return pa.struct(_arrow_fields(kind))
