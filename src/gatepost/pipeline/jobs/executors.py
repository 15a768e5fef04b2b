"""Runs work on executors, one share each; only file descriptions or small sums come back.

Spark carries shares and blocks without looking into them; Arrow and numpy process the rows, a
column at a time. These are RDDs and not DataFrames because there is nothing for a query planner to
decide, and a JVM that has just started plans for seconds.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from gatepost.pipeline.parquet import WrittenFile, write_files
from gatepost.pipeline.tables.schemas import TableSpec

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import RDD
    from pyspark.sql import SparkSession


class HasRows(Protocol):
    @property
    def rows(self) -> int: ...


Share = TypeVar("Share")
Made = TypeVar("Made")
Item = TypeVar("Item", bound=HasRows)


def pack_shares(items: Iterable[Item], rows: int) -> list[list[Item]]:
    """Pack consecutive items into shares of about `rows` rows."""
    shares: list[list[Item]] = []
    left = 0
    for item in items:
        if left <= 0:
            shares.append([])
            left = rows
        shares[-1].append(item)
        left -= item.rows
    return shares


def run_on_executors(
    spark: "SparkSession", shares: Sequence[Share], work: Callable[[Share], Iterable[Made]]
) -> list[Made]:
    """Apply `work` to each share on an executor, and collect all results."""
    return parallelize_shares(spark, shares).flatMap(work).collect() if shares else []


def write_on_executors(
    spark: "SparkSession",
    shares: Sequence[Share],
    make: "Callable[[Share], Iterable[tuple[TableSpec, pa.Table]]]",
    folders: Mapping[TableSpec, str],
) -> dict[TableSpec, list[WrittenFile]]:
    """Apply `make` to each share on an executor, and write its tables, each into its folder."""

    def write(share: Share) -> Iterator[tuple[str, bytes]]:
        for table, rows in make(share):
            by = [table.partition] if table.partition else []
            for file in write_files(rows.to_batches(), folders[table], table.names, by):
                yield table.name, file.encode()

    found = run_on_executors(spark, shares, write)
    return {
        table: [WrittenFile.decode(file) for name, file in found if name == table.name]
        for table in folders
    }


def exchange_on_executors(
    spark: "SparkSession",
    shares: Sequence[Share],
    read: Callable[[Share], Iterable[tuple[int, Any]]],
    parts: int,
    work: Callable[[Iterable[Any]], Iterable[Made]],
) -> list[Made]:
    """Run in two steps: `read` yields (part, block) pairs, `work` gets all blocks of a part."""
    if not shares:
        return []
    blocks = parallelize_shares(spark, shares).flatMap(read).partitionBy(parts, int)
    return blocks.values().mapPartitions(work).collect()


def parallelize_shares(spark: "SparkSession", shares: Sequence[Share]) -> "RDD[Share]":
    return spark.sparkContext.parallelize(shares, len(shares))
