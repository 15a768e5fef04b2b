"""Segments that their own node signed, each wrong or merely odd in one way.

A mutant changes the table of a segment, or how its file is written. Its effect says what has to
become of the segment:

harmless   `run` takes it in, and an audit finds nothing
aside      `run` sets it aside, and an audit does not say that all was kept
shown      `run` takes it in, and an audit finds that the chain does not match
believed   `run` takes it in; it may show as another broken promise, or not at all
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from gatepost.archive.schema import EVENT_SCHEMA
from gatepost.pipeline.kernels.evidence import EVIDENCE_COLUMNS
from tests.pipeline.bad_archives import change_column, null_column

Effect = Literal["harmless", "aside", "shown", "believed"]
Change = Callable[[pa.Table], pa.Table]

# Columns that an audit compares with others: their values may be odd, and break another promise.
_BELIEVED = {*EVIDENCE_COLUMNS, "body", "group_first", "chain", "signature", "digest"}
# Every value of these is that of the manifest.
_LISTED = {"incarnation", "seq", "created_at"}
_LARGEST = 2**53 - 1


class Mutant(NamedTuple):
    name: str
    effect: Effect
    change: Change = lambda table: table
    options: Mapping[str, Any] = MappingProxyType({})

    def write(self, path: Path) -> None:
        """Write the file anew, changed."""
        table = self.change(pq.ParquetFile(path).read())
        pq.write_table(table, path, **self.options)


def all_mutants() -> list[Mutant]:
    columns = [each for field in EVENT_SCHEMA for each in _column_mutants(field)]
    return [*columns, *_progress_mutants(), *_table_mutants(), *_encoding_mutants()]


def _column_mutants(field: pa.Field) -> Iterator[Mutant]:
    name, odd = field.name, _odd_effect(field.name)
    missing: Effect = _missing_effect(field)
    yield Mutant(f"drop {name}", missing, lambda table: table.drop_columns([name]))
    yield Mutant(f"null {name}", missing, null_column(name))
    yield Mutant(f"move {name}", "harmless", _move_last(name))
    yield Mutant(f"retype {name}", "aside", _retype(name, pa.list_(pa.string()), [[]]))
    yield Mutant(f"widen {name}", "harmless", _widen(name, field.type))
    if pa.types.is_integer(field.type):
        most = 2**63 - 1 if field.type == pa.int64() else None
        if most is not None:
            yield Mutant(f"most {name}", "aside", _first_value(name, most))
        yield Mutant(f"negative {name}", "aside", _first_value(name, -1))
        wrong = name in _LISTED or name == "blob_size"
        large = _LARGEST if field.type == pa.int64() else 2**31 - 1
        yield Mutant(f"large {name}", "aside" if wrong else odd, _first_value(name, large))
        yield Mutant(f"text {name}", "aside", _retype(name, pa.string(), ["1"]))
    if pa.types.is_string(field.type):
        said: Effect = "aside" if name in _LISTED else odd
        yield Mutant(f"long {name}", said, _first_value(name, "x" * 300_000))
        yield Mutant(f"empty {name}", said, _first_value(name, ""))
        yield Mutant(f"not UTF-8 {name}", "aside", _garble(name))
    if pa.types.is_binary(field.type):
        yield Mutant(f"short {name}", odd, _first_value(name, b"ab"))
        yield Mutant(f"zero {name}", odd, _first_value(name, bytes(16)))
        yield Mutant(
            f"ones {name}", odd, change_column(name, lambda values: [b"\xff" * 16] * len(values))
        )


def _missing_effect(field: pa.Field) -> Effect:
    if not field.nullable:
        return "aside"
    # The head of each commit group is gone.
    return "shown" if field.name in {"chain", "signature"} else _odd_effect(field.name)


def _odd_effect(name: str) -> Effect:
    return "believed" if name in _BELIEVED else "harmless"


def _progress_mutants() -> Iterator[Mutant]:
    for value in (float("nan"), float("inf"), -1.0, 2.0):
        yield Mutant(f"progress {value}", "aside", _first_value("progress", value))


def _table_mutants() -> Iterator[Mutant]:
    yield Mutant("names a node", "aside", _append("node", "node-01"))
    yield Mutant("names a date", "aside", _append("date", "2026-01-01"))
    yield Mutant("names seq twice", "aside", _append("SEQ", 1))
    yield Mutant("another column", "harmless", _append("more", {"a": [{"b": 1}]}))
    yield Mutant("reordered", "harmless", lambda table: table.select(table.column_names[::-1]))
    yield Mutant("one row less", "aside", lambda table: table.slice(0, len(table) - 1))
    yield Mutant(
        "one row more", "aside", lambda table: pa.concat_tables([table, table.slice(0, 1)])
    )
    yield Mutant("no rows", "aside", lambda table: table.slice(0, 0))
    yield Mutant(
        "rows turned round", "aside", lambda table: table.take(pa.array(range(len(table))[::-1]))
    )
    yield Mutant("another digest", "shown", _first_value("digest", bytes(32)))
    yield Mutant("times of a clock", "aside", _cast("created_at", pa.timestamp("ms")))
    yield Mutant("of a newer version", "harmless", _version("2"))
    yield Mutant("of no version", "harmless", _version("²" * 5000))


def _encoding_mutants() -> Iterator[Mutant]:
    plain = {"use_dictionary": False}
    encodings: dict[str, dict[str, Any]] = {
        "brotli": {"compression": "brotli"},
        "gzip": {"compression": "gzip"},
        "lz4": {"compression": "lz4"},
        "pages of version 2": {"data_page_version": "2.0"},
        "groups of seven": {"row_group_size": 7},
        "no dictionary": plain,
        "deltas": plain
        | {"column_encoding": {"seq": "DELTA_BINARY_PACKED", "corr_id": "DELTA_BYTE_ARRAY"}},
        "split bytes": plain | {"column_encoding": {"created_at": "BYTE_STREAM_SPLIT"}},
        "no Arrow schema": {"store_schema": False},
    }
    for name, options in encodings.items():
        yield Mutant(name, "harmless", options=options)


def _first_value(name: str, value: object) -> Change:
    return change_column(name, lambda values: [value, *values[1:]])


def _set_column(table: pa.Table, name: str, values: pa.Array) -> pa.Table:
    return table.set_column(table.schema.get_field_index(name), name, values)


def _retype(name: str, kind: pa.DataType, values: list[Any]) -> Change:
    return lambda table: _set_column(table, name, pa.array(values * len(table), kind))


def _cast(name: str, kind: pa.DataType) -> Change:
    return lambda table: _set_column(table, name, table[name].cast(kind))


def _widen(name: str, kind: pa.DataType) -> Change:
    """The same values in a kindred type."""
    if pa.types.is_string(kind):
        return lambda table: _set_column(table, name, table[name].dictionary_encode())
    if pa.types.is_binary(kind):
        return _cast(name, pa.large_binary())
    if pa.types.is_integer(kind):
        return _cast(name, pa.int64() if kind == pa.int32() else pa.uint64())
    return _cast(name, kind)


def _garble(name: str) -> Change:
    def change(table: pa.Table) -> pa.Table:
        garbled = pa.array([b"\xff\xfe"] * len(table), pa.binary()).view(pa.string())
        return _set_column(table, name, garbled)

    return change


def _append(name: str, value: object) -> Change:
    return lambda table: table.append_column(name, pa.array([value] * len(table)))


def _move_last(name: str) -> Change:
    return lambda table: table.select([*(n for n in table.column_names if n != name), name])


def _version(stated: str) -> Change:
    return lambda table: table.replace_schema_metadata({"gatepost.schema": stated})
