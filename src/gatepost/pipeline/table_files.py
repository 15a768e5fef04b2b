"""Reads and writes the files of our tables: kernels reckon with times as epoch milliseconds.

A column that a file lacks, because it was added to the table later, is null in all its rows.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from gatepost.pipeline.parquet import (
    PartitionedFiles,
    WrittenFile,
    resolve_filesystem,
)
from gatepost.pipeline.tables.arrow_schemas import STORED_TIME, arrow_schema, stored_schema
from gatepost.pipeline.tables.schemas import TableSpec
from gatepost.pipeline.tables.stored_rows import to_reckoned, to_stored

_BATCH_ROWS: Final = 128 * 1024


class TableFiles:
    """Writes rows of a table below a folder, one file for each run of equal partition values."""

    def __init__(self, table: TableSpec, folder: str) -> None:
        self._table = table
        self._files = PartitionedFiles(folder, table.names, table.partitions)

    def add_rows(self, rows: pa.Table) -> Iterator[WrittenFile]:
        """Write the rows; yields the files of partitions that are complete before these rows."""
        for batch in rows.to_batches():
            yield from self._files.add_batch(to_stored(self._table, batch))

    def close(self) -> Iterator[WrittenFile]:
        return self._files.close()


def write_rows(table: TableSpec, rows: pa.Table, folder: str) -> Iterator[WrittenFile]:
    files = TableFiles(table, folder)
    yield from files.add_rows(rows)
    yield from files.close()


def read_columns(
    table: TableSpec, uri: str, columns: Sequence[str], encoded: Sequence[str] = ()
) -> pa.Table:
    """Read these columns of a file; `encoded` texts stay dictionaries."""
    filesystem, path = resolve_filesystem(uri)
    with filesystem.open_input_file(path) as source:
        metadata = pq.read_metadata(source)
        present = set(metadata.schema.to_arrow_schema().names)
        with pq.ParquetFile(
            source,
            metadata=metadata,
            read_dictionary=[name for name in encoded if name in present],
        ) as file:
            wanted = [name for name in columns if name in present]
            found = to_reckoned(file.read(columns=wanted, use_threads=False))
    types, rows = arrow_schema(table), metadata.num_rows
    return pa.table(
        {
            name: found[name] if name in present else pa.nulls(rows, types.field(name).type)
            for name in columns
        }
    )


def read_batches(table: TableSpec, uri: str) -> Iterator[pa.Table]:
    """All columns of a file but its partition, some rows at a time."""
    names = [name for name in table.names if name not in table.partitions]
    for batch in _stored_batches(table, [uri], names):
        yield to_reckoned(pa.Table.from_batches([batch]))


def read_files(table: TableSpec, uris: Sequence[str], where: ds.Expression | None) -> pa.Table:
    """All rows of these files for which a condition on stored columns holds, in one chunk.

    Taking a few rows of a chunked table searches all its chunks.
    """
    names = [name for name in table.kernel_names if name not in table.partitions]
    batches = _stored_batches(table, uris, names, where)
    schema = pa.schema([stored_schema(table).field(name) for name in names])
    return to_reckoned(pa.Table.from_batches(batches, schema).combine_chunks())


def copy_rows(
    table: TableSpec, uris: Sequence[str], where: ds.Expression, folder: str
) -> Iterator[WrittenFile]:
    """Write the rows of these files, of one day, for which the condition holds, to one file."""
    names = [name for name in table.kernel_names if name not in table.partitions]
    schema = pa.schema([stored_schema(table).field(name) for name in names])
    files = TableFiles(table, folder)
    for batch in _stored_batches(table, uris, names, where):
        rows = to_reckoned(pa.Table.from_batches([batch], schema))
        yield from files.add_rows(rows)
    yield from files.close()


def at_least(column: str, ms: int) -> ds.Expression:
    """The condition that a stored time is this epoch millisecond or later."""
    moment = pa.scalar(ms, pa.timestamp("ms", "UTC")).cast(STORED_TIME)
    return ds.field(column) >= moment


def _stored_batches(
    table: TableSpec,
    uris: Sequence[str],
    names: Iterable[str],
    where: ds.Expression | None = None,
) -> Iterator[pa.RecordBatch]:
    if not uris:
        return
    located = [resolve_filesystem(uri) for uri in uris]
    schema = pa.schema([stored_schema(table).field(name) for name in names])
    paths = [path for _, path in located]
    dataset = ds.dataset(paths, schema=schema, format="parquet", filesystem=located[0][0])
    batches = dataset.to_batches(
        filter=where,
        batch_size=_BATCH_ROWS,
        batch_readahead=1,
        fragment_readahead=1,
        use_threads=False,
    )
    yield from (batch for batch in batches if batch.num_rows)
