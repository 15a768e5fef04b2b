"""Reads columns of a segment from an untrusted file.

A node can sign any content, and an older or later version may have written the file. So every
segment is *projected* to `EVENT_SCHEMA`: the columns are taken by name and cast to their type if no
value is lost. An optional column that the file lacks is null. A file that cannot be projected is
refused: it lacks a required column, has a column of another kind of type, or names its own node.
"""

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pat

from gatepost.archive.schema import EVENT_SCHEMA, SCHEMA_VERSION
from gatepost.errors import ArchiveError, ArchiveTooNew

READ_ERRORS: Final = (
    *(pa.ArrowException, OSError, LookupError, ValueError, TypeError, OverflowError, MemoryError),
)
"""Errors of Arrow's reader, for files that are damaged or not Parquet at all."""

# The folder of a segment names these. A file that does too speaks for another node or day.
_PATH_COLUMNS: Final = ("node", "date")
_MOST_DIGITS: Final = 10

Column = TypeVar("Column", pa.Array, pa.ChunkedArray)


def read_segment_table(source: Any, columns: Sequence[str], where: str) -> pa.Table:
    """The columns of a segment, projected; an error as of `require_columns` if it cannot be."""
    try:
        with pq.ParquetFile(source) as file:
            require_columns(file, f"segment {where} cannot be read")
            present = set(file.schema_arrow.names)
            table = file.read(columns=[name for name in columns if name in present])
        table = _project_table(table, columns)
        table.validate(full=True)
    except READ_ERRORS as error:
        raise ArchiveError(f"segment {where} cannot be read: {error}") from None
    for name in columns:
        if table[name].null_count and not EVENT_SCHEMA.field(name).nullable:
            raise ArchiveError(f"segment {where}: {name} has rows without a value")
    return table


def require_columns(file: pq.ParquetFile, problem: str) -> None:
    """Raise ArchiveError if the file cannot be projected, ArchiveTooNew if a newer one wrote it."""
    fault = find_wrong_columns(file.schema_arrow.remove_metadata())
    if fault is None:
        return
    stated = (file.metadata.metadata or {}).get(b"gatepost.schema", b"")
    version = int(stated) if stated.isdigit() and len(stated) < _MOST_DIGITS else 0
    if version > SCHEMA_VERSION:
        raise ArchiveTooNew(
            f"{problem}: {fault}; it has version {version}, this Gatepost reads {SCHEMA_VERSION}"
        )
    raise ArchiveError(f"{problem}: {fault}")


# The many files of an archive have the columns of a few versions.
@lru_cache(maxsize=64)
def find_wrong_columns(schema: pa.Schema) -> str | None:
    """The reason why a file with these columns cannot be projected; None if it can."""
    names = Counter(name.lower() for name in schema.names)
    for name in _PATH_COLUMNS:
        if name in names:
            return f"the file has a column {name}, which only its folder may name"
    for name, count in names.items():
        if count > 1:
            return f"the file has several columns {name}"
    for field in EVENT_SCHEMA:
        if field.name not in schema.names:
            if not field.nullable:
                return f"the file lacks the column {field.name}"
            continue
        found = schema.field(field.name).type
        found = found.value_type if pat.is_dictionary(found) else found
        if not _is_castable(found, field.type):
            return f"the column {field.name} is {found}, not {field.type}"
    return None


def project_column(column: Column, kind: pa.DataType) -> Column:
    """The column as this type; raise if a value would be lost."""
    return column if column.type == kind else column.cast(kind)


def _project_table(table: pa.Table, columns: Sequence[str]) -> pa.Table:
    present = set(table.column_names)
    fields = [EVENT_SCHEMA.field(name).with_nullable(True) for name in columns]
    arrays = [
        project_column(table[field.name], field.type)
        if field.name in present
        else pa.nulls(table.num_rows, field.type)
        for field in fields
    ]
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def _is_castable(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether both are the same kind of type. Casting then shows whether a value is lost.

    Arrow would cast more, such as texts to numbers and seconds to milliseconds of another meaning.
    """
    if pat.is_null(found):
        return True
    return any(
        is_kind(wanted) and is_kind(found)
        for is_kind in (_is_text, _is_bytes, pat.is_integer, pat.is_floating, pat.is_boolean)
    )


def _is_text(kind: pa.DataType) -> bool:
    return any(
        is_kind(kind) for is_kind in (pat.is_string, pat.is_large_string, pat.is_string_view)
    )


def _is_bytes(kind: pa.DataType) -> bool:
    kinds = (pat.is_binary, pat.is_large_binary, pat.is_fixed_size_binary, pat.is_binary_view)
    return any(is_kind(kind) for is_kind in kinds)
