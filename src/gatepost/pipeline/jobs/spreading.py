"""Work in shares, each done by one executor, of which only names of files come back.

Spark carries shares and blocks and looks into none of them; what is done to each of the rows is
done by Arrow and numpy, a column at a time. These are RDDs and not DataFrames because nothing
here is left for a query planner to decide, and a JVM that has just started plans for seconds.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
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
    for item in items:
        if not shares or sum(each.rows for each in shares[-1]) >= rows:
            shares.append([])
        shares[-1].append(item)
    return shares


def spread(
    spark: "SparkSession", shares: Sequence[Share], work: Callable[[Share], Iterable[Made]]
) -> list[Made]:
    """What the executors made of all shares."""
    return shared(spark, shares).flatMap(work).collect() if shares else []


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
