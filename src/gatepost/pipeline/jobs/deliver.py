"""Events into activity and deliveries, on executors.

Executors read segments and hand each other facts in blocks, by when the ids they are about were
drawn; whoever has all facts of a stretch of time folds them into deliveries and writes these.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct

from gatepost.pipeline import planning
from gatepost.pipeline.jobs.spreading import exchanged, spread
from gatepost.pipeline.objectives import Objectives
from gatepost.pipeline.parquet import File, place_of, write_files
from gatepost.pipeline.planning import Slice, Stretch
from gatepost.pipeline.reading import Archive
from gatepost.pipeline.sink import Held
from gatepost.pipeline.tables import activity, lifecycle
from gatepost.pipeline.tables.facts import COLUMNS, IDS, TEXTS, Facts, facts, hours_of
from gatepost.pipeline.tables.schemas import ACTIVITY, DELIVERIES, HOUR_MS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# About how many events are read, and how many facts are folded, by one executor in one go.
_READ = 2_000_000
_FOLDED = 750_000
_AT_ONCE = 128 * 1024


class Source(Struct, frozen=True):
    """New events of an archive."""

    archive: str
    slices: list[Slice]


class Survey(Struct, frozen=True):
    """What to find out about new events, in one look at few of their columns.

    How much was written when, in files in this folder; and which hours these events are about.
    """

    batch: int
    objectives: Objectives
    activity: str | None
    hours: bool


class Surveyed(Struct, frozen=True):
    activity: list[File]
    hours: set[int]


def survey(spark: "SparkSession", source: Source, wanted: Survey) -> Surveyed:
    archive = source.archive
    columns = (*(activity.COLUMNS if wanted.activity else ()), *(IDS if wanted.hours else ()))
    if not columns:
        return Surveyed([], set())

    def look(share: list[Slice]) -> Iterator[tuple[list[bytes], list[int]]]:
        counted: list[pa.Table] = []
        hours: set[int] = set()
        for events in _events(archive, share, columns):
            if wanted.activity:
                counted.append(activity.activity(events, wanted.batch, wanted.objectives))
            if wanted.hours:
                hours.update(hours_of(events).tolist())
        yield [file.encode() for file in _written(counted, wanted.activity)], sorted(hours)

    found = spread(spark, _shares(spark, source), look)
    files = [File.decode(file) for files, _ in found for file in files]
    return Surveyed(files, {hour for _, hours in found for hour in hours})


def _written(counted: Sequence[pa.Table], folder: str | None) -> Iterable[File]:
    batches = [batch for table in counted for batch in table.to_batches()]
    return write_files(batches, folder, ACTIVITY.names, ()) if folder else ()


def deliveries(
    spark: "SparkSession", source: Source, stored: Sequence[Held], folder: str
) -> list[File]:
    """What became of new events and of stored deliveries; those of an hour are in few files."""
    archive, cores = source.archive, spark.sparkContext.defaultParallelism
    stretches = [*map(_stretch, source.slices), *map(_hour, stored)]
    rows = sum(stretch.rows for stretch in stretches)
    cuts = planning.cuts(stretches, -(-max(1, rows // _FOLDED) // cores) * cores)

    def told(share: list[Slice] | Held) -> Iterator[tuple[int, dict[str, bytes]]]:
        for each in _facts(archive, share):
            for part, mine in each.split(cuts):
                yield part, mine.encode()

    def folded(blocks: Iterable[dict[str, bytes]]) -> Iterator[bytes]:
        """Blocks of one stretch of time into its deliveries."""
        parts = [Facts.decode(**block) for block in blocks]
        rows = lifecycle.deliveries(Facts.joined(parts)).to_batches(_AT_ONCE) if parts else []
        for file in write_files(rows, folder, DELIVERIES.names, ("hour",)):
            yield file.encode()

    shares: list[list[Slice] | Held] = [*_shares(spark, source), *stored]
    return [File.decode(file) for file in exchanged(spark, shares, told, len(cuts) + 1, folded)]


def _stretch(piece: Slice) -> Stretch:
    return Stretch(piece.segment.min_created_at, piece.segment.max_created_at, piece.rows)


def _hour(file: Held) -> Stretch:
    return Stretch(file.value * HOUR_MS, (file.value + 1) * HOUR_MS - 1, file.rows)


def _shares(spark: "SparkSession", source: Source) -> list[list[Slice]]:
    return planning.pack(source.slices, spark.sparkContext.defaultParallelism, _READ)


def _facts(archive: str, share: list[Slice] | Held) -> Iterator[Facts]:
    if isinstance(share, Held):
        yield from map(lifecycle.facts_of, _stored(share.uri))
    else:
        yield from map(facts, _events(archive, share, COLUMNS))


def _stored(file: str) -> Iterator[pa.Table]:
    place, path = place_of(file)
    with pq.ParquetFile(path, filesystem=place) as parquet:
        for batch in parquet.iter_batches(_AT_ONCE, use_threads=False):
            yield pa.Table.from_batches([batch])


def _events(root: str, share: list[Slice], columns: Sequence[str]) -> Iterator[pa.Table]:
    """The events of a share: many small tables as few that are worth the effort."""
    archive = Archive(root)
    waiting: list[pa.Table] = []
    for piece in share:
        for table in archive.tables(piece, columns, TEXTS):
            waiting.append(table)
            if sum(map(len, waiting)) >= _AT_ONCE:
                yield pa.concat_tables(waiting)
                waiting = []
    if waiting:
        yield pa.concat_tables(waiting)
