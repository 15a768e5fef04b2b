"""Reads small Delta tables without Spark."""

from collections import Counter
from typing import TYPE_CHECKING, Any

from gatepost.pipeline.tables.schemas import TableSpec
from gatepost.pipeline.tables.stored_rows import to_reckoned

if TYPE_CHECKING:
    import pyarrow.dataset as ds
    from deltalake import DeltaTable

Row = dict[str, Any]


def open_table(tables: str, table: TableSpec) -> "DeltaTable | None":
    """Open the table; None if it was never written."""
    from gatepost.pipeline.delta_tables import open_table as open_path

    return open_path(f"{tables.rstrip('/')}/{table.name}")


def open_dataset(table: "DeltaTable") -> "ds.Dataset":
    """The rows of a table, read by pyarrow's own filesystem.

    The one of `deltalake` is written in Python. A thread of pyarrow may drop its buffers while the
    interpreter ends, and that aborts the process after its work is done.
    """
    from pyarrow import fs

    from gatepost.archive.storage_uri import open_filesystem

    filesystem, path = open_filesystem(table.table_uri)
    return table.to_pyarrow_dataset(filesystem=fs.SubTreeFileSystem(path, filesystem))


def read_rows(tables: str, table: TableSpec) -> list[Row]:
    """All rows of a small table, with times as epoch milliseconds."""
    opened = open_table(tables, table)
    found: list[Row] = (
        [] if opened is None else to_reckoned(open_dataset(opened).to_table()).to_pylist()
    )
    return found


def last_written_at(table: "DeltaTable") -> int:
    """The time of the table's last commit, in epoch milliseconds."""
    at: int = table.history(1)[0]["timestamp"]
    return at


def count_values(table: "DeltaTable", column: str) -> dict[str, int]:
    """Value → number of rows with it in `column`; reads a table of any size in batches."""
    found: Counter[str] = Counter()
    for batch in open_dataset(table).to_batches(columns=[column]):
        for value in batch.column(0).value_counts().to_pylist():
            found[value["values"]] += value["counts"]
    return dict(sorted(found.items()))


def sample_rows(table: "DeltaTable", column: str, most: int) -> list[Row]:
    """At most `most` rows for each value of `column`, with times as epoch milliseconds.

    Reads a table of any size in batches.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    found: list[Row] = []
    taken: Counter[str] = Counter()
    for stored in open_dataset(table).to_batches():
        batch = to_reckoned(pa.Table.from_batches([stored]))
        for value in pc.unique(batch.column(column)).to_pylist():
            if taken[value] < most:
                rows = batch.filter(pc.equal(batch.column(column), value))
                fresh = rows.slice(0, most - taken[value]).to_pylist()
                taken[value] += len(fresh)
                found += fresh
    return found
