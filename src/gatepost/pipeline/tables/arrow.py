"""The tables' schemas in Arrow's types."""

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from gatepost.pipeline.tables.schemas import Table

_PLAIN = {
    "string": pa.string(),
    "long": pa.int64(),
    "integer": pa.int32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "date": pa.date32(),
}


def schema_of(table: Table) -> pa.Schema:
    return pa.schema(_fields(table.schema))


def table_of(table: Table, rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=schema_of(table))


def _fields(struct: Mapping[str, Any]) -> list[tuple[str, pa.DataType]]:
    return [(field["name"], _type(field["type"])) for field in struct["fields"]]


def _type(kind: Any) -> pa.DataType:
    if isinstance(kind, str):
        return _PLAIN[kind]
    if kind["type"] == "array":
        return pa.list_(_type(kind["elementType"]))
    return pa.struct(_fields(kind))
