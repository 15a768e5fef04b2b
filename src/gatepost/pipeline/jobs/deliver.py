"""Makes activity and deliveries of events, on executors.

Executors read segments, turn events into facts, and exchange the facts in blocks by the time the
event ids were drawn. The executor that receives all facts of a stretch of time folds them into
deliveries and writes these.
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

# About how many events one executor reads at once, and how many facts it folds at once.
_READ = 2_000_000
_FOLDED = 750_000
_AT_ONCE = 128 * 1024


class Source(Struct, frozen=True):
    """The new events of an archive."""

    archive: str
    slices: list[Slice]


class Survey(Struct, frozen=True):
    """The results wanted from one pass over a few columns of the new events.

    `activity` is the folder to write activity to, or None. `hours` asks for the hours of the
    deliveries that the events refer to.
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

    def survey_share(share: list[Slice]) -> Iterator[tuple[list[bytes], list[int]]]:
        counted: list[pa.Table] = []
        hours: set[int] = set()
        for events in _events(archive, share, columns):
            if wanted.activity:
                counted.append(activity.activity(events, wanted.batch, wanted.objectives))
            if wanted.hours:
                hours.update(hours_of(events).tolist())
        yield [file.encode() for file in _written(counted, wanted.activity)], sorted(hours)

    found = spread(spark, _shares(spark, source), survey_share)
    files = [File.decode(file) for files, _ in found for file in files]
    return Surveyed(files, {hour for _, hours in found for hour in hours})


def _written(counted: Sequence[pa.Table], folder: str | None) -> Iterable[File]:
    batches = [batch for table in counted for batch in table.to_batches()]
    return write_files(batches, folder, ACTIVITY.names, ()) if folder else ()


def deliveries(
    spark: "SparkSession", source: Source, stored: Sequence[Held], folder: str
) -> list[File]:
    """Merge new events into stored deliveries, and write those to few files for each hour."""
    archive, cores = source.archive, spark.sparkContext.defaultParallelism
    estimates = [*map(_stretch, source.slices), *map(_hour, stored)]
    rows = sum(estimate.rows for estimate in estimates)
    cuts = planning.cuts(estimates, -(-max(1, rows // _FOLDED) // cores) * cores)

    def read_blocks(share: list[Slice] | Held) -> Iterator[tuple[int, dict[str, bytes]]]:
        """The facts of a share as blocks, each with the number of its stretch of time."""
        for read in _facts(archive, share):
            for part, block in read.split(cuts):
                yield part, block.encode()

    def fold_blocks(blocks: Iterable[dict[str, bytes]]) -> Iterator[bytes]:
        """Write the deliveries of one stretch of time, from all its blocks."""
        parts = [Facts.decode(**block) for block in blocks]
        rows = lifecycle.deliveries(Facts.joined(parts)).to_batches(_AT_ONCE) if parts else []
        for file in write_files(rows, folder, DELIVERIES.names, ("hour",)):
            yield file.encode()

    shares: list[list[Slice] | Held] = [*_shares(spark, source), *stored]
    files = exchanged(spark, shares, read_blocks, len(cuts) + 1, fold_blocks)
    return [File.decode(file) for file in files]


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
    filesystem, path = place_of(file)
    with pq.ParquetFile(path, filesystem=filesystem) as parquet:
        for batch in parquet.iter_batches(_AT_ONCE, use_threads=False):
            yield pa.Table.from_batches([batch])


def _events(root: str, share: list[Slice], columns: Sequence[str]) -> Iterator[pa.Table]:
    """The events of a share, small tables joined into larger ones."""
    archive = Archive(root)
    pending: list[pa.Table] = []
    for piece in share:
        for table in archive.tables(piece, columns, TEXTS):
            pending.append(table)
            if sum(map(len, pending)) >= _AT_ONCE:
                yield pa.concat_tables(pending)
                pending = []
    if pending:
        yield pa.concat_tables(pending)
