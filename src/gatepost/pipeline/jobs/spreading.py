"""Work in shares, each done by one executor, of which only names of files come back.

Spark carries shares and blocks and looks into none of them; what is done to each of the rows is
done by Arrow and numpy, a column at a time. These are RDDs and not DataFrames because nothing
here is left for a query planner to decide, and a JVM that has just started plans for seconds.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from pyspark import RDD
    from pyspark.sql import SparkSession

Share = TypeVar("Share")
Made = TypeVar("Made")


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
