"""Events into deliveries, on executors.

Executors read segments and hand each other facts in blocks, by when the ids they are about were
drawn; whoever has all facts of a stretch of time folds them into deliveries and writes these.
Spark moves a few large blocks and looks into none of them; what is done to each of the rows is
done by Arrow and numpy, a column at a time.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from gatepost.pipeline import planning
from gatepost.pipeline.objectives import Objectives
from gatepost.pipeline.parquet import place_of
from gatepost.pipeline.planning import Slice, Stretch
from gatepost.pipeline.reading import Archive
from gatepost.pipeline.session import alike
from gatepost.pipeline.sink import Held, Made
from gatepost.pipeline.tables import lifecycle
from gatepost.pipeline.tables.activity import COLUMNS as COUNTED
from gatepost.pipeline.tables.activity import activity as counted
from gatepost.pipeline.tables.facts import COLUMNS, TEXTS, Facts, facts
from gatepost.pipeline.tables.schemas import ACTIVITY, DELIVERIES, HOUR_MS, Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Batches = Iterator[pa.RecordBatch]

# About how many events are read, and how many facts are folded, by one executor in one go.
_READ = 2_000_000
_FOLDED = 750_000
_AT_ONCE = 128 * 1024

# A block is large; elsewhere there is no limit, because Spark measures after every row.
_LARGE_ROWS = {"spark.sql.execution.arrow.maxBytesPerBatch": str(64 * 1024**2)}

_BLOCK = pa.schema(
    {"part": pa.int32(), "told": pa.binary(), "sent": pa.binary(), "words": pa.binary()}
)


class Source(Struct, frozen=True):
    """New events of an archive."""

    archive: str
    slices: list[Slice]


def activity(spark: "SparkSession", source: Source, batch: int, objectives: Objectives) -> Made:
    """How much was written when."""

    def count(events: pa.Table) -> Batches:
        yield from counted(events, batch, objectives).to_batches()

    reading = _Reading.of(spark, source, COUNTED, count)
    return Made(_numbered(spark, len(reading.shares)), _each(reading), _schema(ACTIVITY))


def touched(spark: "SparkSession", source: Source) -> list[int]:
    """The hours these events say something about: few, however many the events are."""

    def hours(events: pa.Table) -> Batches:
        hours = np.unique(facts(events).times() // HOUR_MS)
        yield pa.RecordBatch.from_arrays([pa.array(hours)], ["hour"])

    reading = _Reading.of(spark, source, COLUMNS, hours)
    shares = _numbered(spark, len(reading.shares))
    rows = shares.mapInArrow(_each(reading), "hour bigint").collect()
    return sorted({row.hour for row in rows})


def deliveries(spark: "SparkSession", source: Source, stored: list[Held]) -> Made:
    """What became of new events and of stored deliveries; those of an hour are in few files."""
    cores = spark.sparkContext.defaultParallelism
    stretches = [*map(_stretch, source.slices), *map(_hour, stored)]
    rows = sum(stretch.rows for stretch in stretches)
    cuts = planning.cuts(stretches, -(-max(1, rows // _FOLDED) // cores) * cores)

    def told(events: pa.Table) -> Batches:
        return _blocks(facts(events), cuts)

    reading = _Reading.of(spark, source, COLUMNS, told)
    fresh = len(reading.shares)

    def read(number: int) -> Batches:
        if number < fresh:
            yield from reading(number)
        else:
            for table in _stored(stored[number - fresh].uri):
                yield from _blocks(lifecycle.facts_of(table), cuts)

    shares = _numbered(alike(spark, _LARGE_ROWS), fresh + len(stored))
    blocks = shares.mapInArrow(_each(read), from_arrow_schema(_BLOCK))
    parts = blocks.repartitionById(len(cuts) + 1, "part")
    return Made(parts, _folded, _schema(DELIVERIES))


def _stretch(piece: Slice) -> Stretch:
    return Stretch(piece.segment.min_created_at, piece.segment.max_created_at, piece.rows)


def _hour(file: Held) -> Stretch:
    return Stretch(file.value * HOUR_MS, (file.value + 1) * HOUR_MS - 1, file.rows)


class _Reading(Struct, frozen=True):
    """Events cut into shares, and what is to be made of a share on an executor."""

    archive: str
    shares: list[list[Slice]]
    columns: Sequence[str]
    make: Callable[[pa.Table], Batches]

    @classmethod
    def of(
        cls,
        spark: "SparkSession",
        source: Source,
        columns: Sequence[str],
        make: Callable[[pa.Table], Batches],
    ) -> Self:
        cores = spark.sparkContext.defaultParallelism
        return cls(source.archive, planning.pack(source.slices, cores, _READ), columns, make)

    def __call__(self, number: int) -> Batches:
        archive = Archive(self.archive)
        tables = (
            table
            for piece in self.shares[number]
            for table in archive.tables(piece, self.columns, TEXTS)
        )
        for table in _gathered(tables):
            yield from self.make(table)


def _gathered(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Many small ones as few that are worth the effort."""
    waiting: list[pa.Table] = []
    for table in tables:
        waiting.append(table)
        if sum(map(len, waiting)) >= _AT_ONCE:
            yield pa.concat_tables(waiting)
            waiting = []
    if waiting:
        yield pa.concat_tables(waiting)


def _numbered(spark: "SparkSession", shares: int) -> "DataFrame":
    """One task for each share."""
    return spark.range(0, shares, 1, max(1, shares))


def _each(read: Callable[[int], Batches]) -> Callable[[Batches], Batches]:
    def task(batches: Batches) -> Batches:
        for batch in batches:
            for number in batch["id"].to_pylist():
                yield from read(number)

    return task


def _schema(table: Table) -> StructType:
    return cast("StructType", StructType.fromDDL(table.ddl))


def _stored(file: str) -> Iterator[pa.Table]:
    place, path = place_of(file)
    with pq.ParquetFile(path, filesystem=place) as parquet:
        for batch in parquet.iter_batches(_AT_ONCE, use_threads=False):
            yield pa.Table.from_batches([batch])


def _blocks(told: Facts, cuts: list[int]) -> Batches:
    for part, mine in told.split(cuts):
        yield pa.RecordBatch.from_pylist([{"part": part, **mine.encode()}], schema=_BLOCK)


def _folded(batches: Batches) -> Batches:
    """Blocks of one stretch of time into its deliveries."""
    parts = [part for batch in batches for part in _decoded(batch)]
    if parts:
        yield from lifecycle.deliveries(Facts.joined(parts)).to_batches(max_chunksize=_AT_ONCE)


def _decoded(batch: pa.RecordBatch) -> Iterator[Facts]:
    columns: list[Any] = [batch[name] for name in ("told", "sent", "words")]
    for row in range(batch.num_rows):
        yield Facts.decode(*(column[row].as_buffer() for column in columns))
