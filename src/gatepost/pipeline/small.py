"""Small tables, read without Spark: what is in them, and when they were made."""

from collections import Counter
from typing import TYPE_CHECKING, Any

from gatepost.pipeline.tables.schemas import Table

if TYPE_CHECKING:
    from deltalake import DeltaTable

Row = dict[str, Any]


def open_table(tables: str, table: Table) -> "DeltaTable | None":
    """None if it was never written."""
    from deltalake import DeltaTable
    from deltalake.exceptions import TableNotFoundError

    try:
        return DeltaTable(f"{tables.rstrip('/')}/{table.name}")
    except TableNotFoundError:
        return None


def rows(tables: str, table: Table) -> list[Row]:
    """All of a table that is replaced whole, because it is small."""
    opened = open_table(tables, table)
    found: list[Row] = [] if opened is None else opened.to_pyarrow_table().to_pylist()
    return found


def made_at(table: "DeltaTable") -> int:
    """When it was last written."""
    at: int = table.history(1)[0]["timestamp"]
    return at


def counts(table: "DeltaTable", column: str) -> dict[str, int]:
    """How often each value stands in a column, however long the table is."""
    found: Counter[str] = Counter()
    for batch in table.to_pyarrow_dataset().to_batches(columns=[column]):
        for value in batch.column(0).value_counts().to_pylist():
            found[value["values"]] += value["counts"]
    return dict(sorted(found.items()))


def first(table: "DeltaTable", most: int) -> list[Row]:
    """A few of its rows."""
    found: list[Row] = table.to_pyarrow_dataset().head(most).to_pylist()
    return found
