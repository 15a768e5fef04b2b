"""Brings all tables up to date with one batch of events.

The deliveries of the hours that the events refer to are merged with the stored ones and replaced.
Tables made of deliveries are made again for these hours only. Incidents, reviews and ETA advice
are made anew from the few unusual deliveries (`cases`) and the sums of each hour (`paces`).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from msgspec import Struct
from pyspark.sql import DataFrame, SparkSession

from gatepost.pipeline.jobs import deliver
from gatepost.pipeline.jobs.deliver import Source, Survey
from gatepost.pipeline.jobs.hourly import TABLES as HOURLY
from gatepost.pipeline.jobs.hourly import hourly
from gatepost.pipeline.jobs.ledger import APP
from gatepost.pipeline.jobs.overall import Known, overall
from gatepost.pipeline.objectives import Objectives
from gatepost.pipeline.parquet import File
from gatepost.pipeline.sink import (
    Held,
    How,
    Transaction,
    Writing,
    begin,
    compact,
    files,
    files_since,
    largest,
    read_table,
    table_exists,
)
from gatepost.pipeline.tables import schemas
from gatepost.pipeline.tables.schemas import Table
from gatepost.pipeline.tables.turns import turns

# Incidents come last: once that table has a batch, all tables have it (`BatchLedger.is_done`).
_OVERALL: Final = (schemas.ETA, schemas.REVIEWS, schemas.INCIDENTS)
_HOURS_A_DAY = 24
_MANY_FILES = 256


class Tables(Struct, frozen=True):
    """The folder that holds all tables."""

    root: str

    def path(self, table: Table) -> str:
        return f"{self.root.rstrip('/')}/{table.name}"

    def read(self, spark: SparkSession, table: Table) -> DataFrame:
        """Read the table; it is empty if it was never written."""
        if table is schemas.TURNS:
            return turns(self.read(spark, schemas.DELIVERIES))
        path = self.path(table)
        if not table_exists(path):
            return spark.createDataFrame([], table.ddl)
        return read_table(spark, path)


class Apply:
    """Writes a batch to all tables. A table that has the batch already is left as it is."""

    def __init__(self, spark: SparkSession, tables: Tables, objectives: Objectives) -> None:
        self._spark = spark
        self._tables = tables
        self._objectives = objectives

    def __call__(self, source: Source, number: int) -> None:
        batch = Transaction(APP, number)
        hours = self._survey(source, batch)
        self._deliver(source, batch, hours)
        self._hourly(batch, hours)
        self._overall(batch)
        self._tidy()

    def _tidy(self) -> None:
        """Merge the files of activity: every batch adds to them and reads all recent ones."""
        path = self._tables.path(schemas.ACTIVITY)
        if len(files_since(path, "last_at", 0)) >= _MANY_FILES:
            compact(self._spark, path)

    def _survey(self, source: Source, batch: Transaction) -> set[int] | None:
        """Count activity; returns the hours that change, or None if the tables are still empty."""
        activity = begin(
            self._tables.path(schemas.ACTIVITY), schemas.ACTIVITY.schema, transaction=batch
        )
        wanted = Survey(
            batch.batch,
            self._objectives,
            activity=None if activity.done else activity.path,
            hours=table_exists(self._tables.path(schemas.DELIVERIES)),
        )
        found = deliver.survey(self._spark, source, wanted)
        activity.commit(found.activity)
        return found.hours if wanted.hours else None

    def _deliver(self, source: Source, batch: Transaction, hours: set[int] | None) -> None:
        writing = self._replacing(schemas.DELIVERIES, batch, hours)
        if not writing.done:
            stored = self._held(schemas.DELIVERIES, hours) if hours else []
            writing.commit(deliver.deliveries(self._spark, source, stored, writing.path))

    def _hourly(self, batch: Transaction, hours: set[int] | None) -> None:
        writes = {table: self._replacing(table, batch, hours) for table in HOURLY}
        changed = self._held(schemas.DELIVERIES, hours)
        _write(writes, lambda folders: hourly(self._spark, changed, folders, self._objectives))

    def _overall(self, batch: Transaction) -> None:
        writes = {
            table: begin(
                self._tables.path(table), table.schema, mode="overwrite", transaction=batch
            )
            for table in _OVERALL
        }
        known = self._known()
        _write(writes, lambda folders: overall(self._spark, known, folders, self._objectives))

    def _known(self) -> Known:
        activity = self._tables.path(schemas.ACTIVITY)
        as_of = (largest(activity, "last_at") or 0) - self._objectives.sealing * 1000
        since = as_of // schemas.HOUR_MS - self._objectives.days * _HOURS_A_DAY
        recent = files_since(activity, "last_at", since * schemas.HOUR_MS)
        return Known(
            since * schemas.HOUR_MS,
            as_of,
            activity=[file.uri for file in recent],
            cases=self._recent(schemas.CASES, since),
            paces=self._recent(schemas.PACES, since),
        )

    def _recent(self, table: Table, since: int) -> list[str]:
        stored = files(self._tables.path(table), "hour")
        return [file.uri for file in stored if file.value >= since]

    def _held(self, table: Table, hours: Collection[int] | None) -> list[Held]:
        stored = files(self._tables.path(table), "hour")
        return [file for file in stored if hours is None or file.value in hours]

    def _replacing(self, table: Table, batch: Transaction, hours: set[int] | None) -> Writing:
        """Begin to replace these hours of the table, or to create the table if `hours` is None."""
        how: How = {"partition_by": ["hour"], "transaction": batch}
        if hours is not None:
            how |= {"mode": "replace", "replace": {"hour": sorted(hours)}}
        return begin(self._tables.path(table), table.schema, **how)


def _write(
    writes: Mapping[Table, Writing],
    make: Callable[[dict[Table, str]], Mapping[Table, Sequence[File]]],
) -> None:
    """Have `make` write files for the tables that lack this batch, and commit them."""
    folders = {table: writing.path for table, writing in writes.items() if not writing.done}
    made = make(folders) if folders else {}
    for table, written in made.items():
        writes[table].commit(written)
