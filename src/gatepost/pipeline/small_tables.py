"""Reads small Delta tables without Spark."""

from collections import Counter
from typing import TYPE_CHECKING, Any

from gatepost.pipeline.tables.schemas import TableSpec

if TYPE_CHECKING:
    from deltalake import DeltaTable

Row = dict[str, Any]


def open_table(tables: str, table: TableSpec) -> "DeltaTable | None":
    """Open the table; None if it was never written."""
    from deltalake import DeltaTable
    from deltalake.exceptions import TableNotFoundError

    try:
        return DeltaTable(f"{tables.rstrip('/')}/{table.name}")
    except TableNotFoundError:
        return None


def read_rows(tables: str, table: TableSpec) -> list[Row]:
    """All rows of a table without partitions, which is small."""
    opened = open_table(tables, table)
    found: list[Row] = [] if opened is None else opened.to_pyarrow_table().to_pylist()
    return found


def last_written_at(table: "DeltaTable") -> int:
    """The time of the table's last commit, in epoch milliseconds."""
    at: int = table.history(1)[0]["timestamp"]
    return at


def count_values(table: "DeltaTable", column: str) -> dict[str, int]:
    """Value → number of rows with it in `column`; reads a table of any size in batches."""
    found: Counter[str] = Counter()
    for batch in table.to_pyarrow_dataset().to_batches(columns=[column]):
        for value in batch.column(0).value_counts().to_pylist():
            found[value["values"]] += value["counts"]
    return dict(sorted(found.items()))


def first_rows(table: "DeltaTable", most: int) -> list[Row]:
    """The first rows of the table, at most `most`."""
    found: list[Row] = table.to_pyarrow_dataset().head(most).to_pylist()
    return found
