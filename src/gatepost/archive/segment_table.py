"""Reads columns of a segment whose file anybody may have written.

A node may sign what it likes. So the types of the columns are checked, and their values as far as
Arrow knows them: text is UTF-8, and required columns have no nulls.
"""

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from gatepost.archive.schema import EVENT_SCHEMA
from gatepost.errors import ArchiveError

# Errors of Arrow's reader, for files that are damaged or no Parquet at all.
_READ_ERRORS: Final = (
    *(pa.ArrowException, OSError, LookupError, ValueError, TypeError, OverflowError, MemoryError),
)


def read_segment_table(source: Any, columns: Sequence[str], where: str) -> pa.Table:
    """The columns of a segment; ArchiveError if they are not those of an archive."""
    try:
        table = pq.ParquetFile(source).read(columns=list(columns))
        table.validate(full=True)
    except _READ_ERRORS as error:
        raise ArchiveError(f"segment {where} cannot be read: {error}") from None
    for name in columns:
        _check_column(table, EVENT_SCHEMA.field(name), where)
    return table


def read_segment_schema(source: Any, where: str) -> pa.Schema:
    """The columns that a segment has; older ones lack some."""
    try:
        return pq.read_schema(source)
    except _READ_ERRORS as error:
        raise ArchiveError(f"segment {where} cannot be read: {error}") from None


def _check_column(table: pa.Table, field: pa.Field, where: str) -> None:
    if table.schema.names.count(field.name) != 1:
        raise ArchiveError(f"segment {where} has no column {field.name}, or several")
    column = table.column(field.name)
    if column.type != field.type:
        raise ArchiveError(f"segment {where}: {field.name} is {column.type}, not {field.type}")
    if not field.nullable and column.null_count:
        raise ArchiveError(f"segment {where}: {field.name} has rows without a value")
