"""The jobs that bring tables up to date: once, as a stream, or from nothing."""

from msgspec import Struct
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from gatepost.errors import PipelineError
from gatepost.pipeline import planning, sink
from gatepost.pipeline.jobs import retention
from gatepost.pipeline.jobs.apply import Apply, Tables
from gatepost.pipeline.jobs.deliver import Source
from gatepost.pipeline.jobs.ledger import Batch, Ledger
from gatepost.pipeline.objectives import Objectives
from gatepost.pipeline.planning import Offsets, Selection
from gatepost.pipeline.reading import Archive
from gatepost.pipeline.source import read_stream
from gatepost.pipeline.tables.schemas import TABLES

_ALL = Selection()
_MAX_ROWS = 100_000_000
# A stream reads only its position; `TableUpdater` reads the events themselves.
_POSITION = ("node", "incarnation", "seq")


class Ran(Struct, frozen=True):
    """The result of a run; `events` counts the new ones."""

    batches: int
    events: int


class Pipeline:
    """Keeps the tables of one archive up to date, with one Spark session."""

    def __init__(
        self,
        spark: SparkSession,
        archive: str,
        tables: str,
        objectives: Objectives | None = None,
    ) -> None:
        self._spark = spark
        self._archive = Archive(archive)
        self.tables = Tables(tables)
        self._ledger = Ledger(tables)
        self._objectives = self._ledger.objectives(objectives)
        self._apply = Apply(spark, self.tables, self._objectives)

    def run(self, max_rows: int = _MAX_ROWS) -> Ran:
        """Take in all events that were archived since the last run."""
        with self._ledger.held():
            ran = self._recover()
            while (batch := self._next(max_rows)) is not None:
                rows = self._take(batch)
                ran = Ran(ran.batches + 1, ran.events + rows)
            return ran

    def recover(self) -> Ran:
        """Finish the last batch if the process that began it ended before it was done."""
        with self._ledger.held():
            return self._recover()

    def _recover(self) -> Ran:
        last = self._ledger.last()
        if last is None or self._ledger.is_done(last):
            return Ran(0, 0)
        return Ran(1, self._take(last))

    def stream(
        self, checkpoint: str, *, every: str | None = None, max_rows: int = 1_000_000
    ) -> StreamingQuery:
        """Run in micro-batches: over all events available now, or repeatedly `every` "30 seconds".

        The ledger, not the checkpoint, says which events are in the tables, so `run` and `stream`
        may take turns.
        """
        self.recover()
        events = read_stream(self._spark, self._archive.uri, columns=_POSITION, max_rows=max_rows)
        writer = events.writeStream.foreachBatch(self._micro_batch)
        writer = writer.option("checkpointLocation", checkpoint)
        return (
            writer.trigger(processingTime=every) if every else writer.trigger(availableNow=True)
        ).start()

    def _micro_batch(self, events: DataFrame, _id: int) -> None:
        """Take in the events of a Spark micro-batch that are not in the tables yet."""
        with self._ledger.held():
            self._take_new(events)

    def _take_new(self, events: DataFrame) -> None:
        self._recover()
        last = self._ledger.last()
        known = last.end if last else {}
        tops = events.groupBy("node", "incarnation").agg(F.max("seq").alias("seq")).collect()
        end: Offsets = {node: dict(seqs) for node, seqs in known.items()}
        for row in tops:
            lane = end.setdefault(row.node, {})
            lane[row.incarnation] = max(lane.get(row.incarnation, 0), row.seq)
        if end != known:
            self._take(self._ledger.begin(end, self._objectives))

    def _next(self, max_rows: int) -> Batch | None:
        last = self._ledger.last()
        start = last.end if last else {}
        lanes = planning.pending(self._archive.segments(), start, _ALL)
        end = planning.advance(lanes, start, times=self._archive.times, budget=max_rows)
        return self._ledger.begin(end, self._objectives) if end != start else None

    def _take(self, batch: Batch) -> int:
        slices = planning.between(self._archive.segments(), batch.start, batch.end, _ALL)
        self._apply(Source(self._archive.uri, slices), batch.number)
        return sum(piece.rows for piece in slices)


def run(
    spark: SparkSession, archive: str, tables: str, objectives: Objectives | None = None
) -> Ran:
    """Bring the tables up to date; the cost grows with the number of new events."""
    return Pipeline(spark, archive, tables, objectives).run()


def backfill(
    spark: SparkSession, archive: str, tables: str, objectives: Objectives | None = None
) -> Ran:
    """Make the tables in an empty folder; they equal tables made in many runs."""
    if Ledger(tables).last() is not None:
        raise PipelineError(f"{tables} already holds tables: choose an empty folder")
    return run(spark, archive, tables, objectives)


def stream(
    spark: SparkSession,
    archive: str,
    tables: str,
    objectives: Objectives | None = None,
    *,
    every: str | None = None,
    max_rows: int = 1_000_000,
) -> StreamingQuery:
    """Keep the tables up to date until the caller stops the returned query."""
    pipeline = Pipeline(spark, archive, tables, objectives)
    checkpoint = f"{tables.rstrip('/')}/_checkpoint"
    return pipeline.stream(checkpoint, every=every, max_rows=max_rows)


def compact(
    spark: SparkSession, tables: str, *, keep_hours: int = 7 * 24, keep_days: int | None = None
) -> dict[str, int]:
    """Merge small files and delete replaced ones; returns table → number of files removed.

    Files replaced within `keep_hours` stay for readers that still use an older version. Hours more
    than `keep_days` older than the latest event are dropped; by default all are kept.
    """
    with Ledger(tables).held():
        return _compact(spark, tables, keep_hours, keep_days)


def _compact(
    spark: SparkSession, tables: str, keep_hours: int, keep_days: int | None
) -> dict[str, int]:
    if keep_days is not None and (before := retention.oldest(tables, keep_days)) is not None:
        retention.forget(tables, before)
    folder, removed = Tables(tables), {}
    for table in TABLES.values():
        path = folder.path(table)
        if sink.table_exists(path):
            merged = sink.compact(spark, path)
            removed[table.name] = merged + len(sink.vacuum(path, older_than_hours=keep_hours))
    return removed
