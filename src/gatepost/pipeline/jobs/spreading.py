"""Work in shares, each done by one executor; names of files come back, or a few sums.

Spark carries shares and blocks and looks into none of them; what is done to each of the rows is
done by Arrow and numpy, a column at a time. These are RDDs and not DataFrames because nothing
here is left for a query planner to decide, and a JVM that has just started plans for seconds.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from gatepost.pipeline.parquet import File, write_files
from gatepost.pipeline.tables.schemas import Table

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import RDD
    from pyspark.sql import SparkSession


class Sized(Protocol):
    @property
    def rows(self) -> int: ...


Share = TypeVar("Share")
Made = TypeVar("Made")
Item = TypeVar("Item", bound=Sized)


def packed(items: Iterable[Item], rows: int) -> list[list[Item]]:
    """Those that follow each other in shares of about so many rows."""
    shares: list[list[Item]] = []
    left = 0
    for item in items:
        if left <= 0:
            shares.append([])
            left = rows
        shares[-1].append(item)
        left -= item.rows
    return shares


def spread(
    spark: "SparkSession", shares: Sequence[Share], work: Callable[[Share], Iterable[Made]]
) -> list[Made]:
    """What the executors made of all shares."""
    return shared(spark, shares).flatMap(work).collect() if shares else []


def written(
    spark: "SparkSession",
    shares: Sequence[Share],
    make: "Callable[[Share], Iterable[tuple[Table, pa.Table]]]",
    folders: Mapping[Table, str],
) -> dict[Table, list[File]]:
    """The files of what the executors made of all shares, each table's in its folder."""

    def write(share: Share) -> Iterator[tuple[str, bytes]]:
        for table, rows in make(share):
            by = [table.partition] if table.partition else []
            for file in write_files(rows.to_batches(), folders[table], table.names, by):
                yield table.name, file.encode()

    found = spread(spark, shares, write)
    return {
        table: [File.decode(file) for name, file in found if name == table.name]
        for table in folders
    }


def exchanged(
    spark: "SparkSession",
    shares: Sequence[Share],
    told: Callable[[Share], Iterable[tuple[int, Any]]],
    parts: int,
    work: Callable[[Iterable[Any]], Iterable[Made]],
) -> list[Made]:
    """The same in two steps: what is told about one of the parts, whoever tells it, meets there."""
    if not shares:
        return []
    blocks = shared(spark, shares).flatMap(told).partitionBy(parts, int)
    return blocks.values().mapPartitions(work).collect()


def shared(spark: "SparkSession", shares: Sequence[Share]) -> "RDD[Share]":
    return spark.sparkContext.parallelize(shares, len(shares))
