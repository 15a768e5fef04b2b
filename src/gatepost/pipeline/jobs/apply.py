"""One batch of events into all tables.

Deliveries of the hours that the events are about are merged with what is stored of them and
replaced; what is made of deliveries is made again for these hours only. Incidents, reviews and
ETA advice are made from what is unusual, of which there is little.
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

# Incidents come last: who has them has all of the batch.
_OVERALL: Final = (schemas.ETA, schemas.REVIEWS, schemas.INCIDENTS)
_HOURS_A_DAY = 24
_MANY_FILES = 256


class Tables(Struct, frozen=True):
    """The folder of all tables."""

    root: str

    def path(self, table: Table) -> str:
        return f"{self.root.rstrip('/')}/{table.name}"

    def read(self, spark: SparkSession, table: Table) -> DataFrame:
        """The table; empty if it was never written."""
        if table is schemas.TURNS:
            return turns(self.read(spark, schemas.DELIVERIES))
        path = self.path(table)
        if not table_exists(path):
            return spark.createDataFrame([], table.ddl)
        return read_table(spark, path)


class Apply:
    """A batch on its way into the tables. What of it is there already is not done again."""

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
        """Every batch adds to activity, and every batch reads all of it that is recent."""
        path = self._tables.path(schemas.ACTIVITY)
        if len(files_since(path, "last_at", 0)) >= _MANY_FILES:
            compact(self._spark, path)

    def _survey(self, source: Source, batch: Transaction) -> set[int] | None:
        """Counts events; returns the hours that change, or None if all of them are new."""
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
        every = {table: self._replacing(table, batch, hours) for table in HOURLY}
        changed = self._held(schemas.DELIVERIES, hours)
        _write(every, lambda todo: hourly(self._spark, changed, todo, self._objectives))

    def _overall(self, batch: Transaction) -> None:
        every = {
            table: begin(
                self._tables.path(table), table.schema, mode="overwrite", transaction=batch
            )
            for table in _OVERALL
        }
        known = self._known()
        _write(every, lambda todo: overall(self._spark, known, todo, self._objectives))

    def _known(self) -> Known:
        activity = self._tables.path(schemas.ACTIVITY)
        as_of = (largest(activity, "last_at") or 0) - self._objectives.sealing * 1000
        since = as_of // schemas.HOUR_MS - self._objectives.days * _HOURS_A_DAY
        alive = files_since(activity, "last_at", since * schemas.HOUR_MS)
        return Known(
            since * schemas.HOUR_MS,
            as_of,
            activity=[file.uri for file in alive],
            cases=self._recent(schemas.CASES, since),
            paces=self._recent(schemas.PACES, since),
        )

    def _recent(self, table: Table, since: int) -> list[str]:
        every = files(self._tables.path(table), "hour")
        return [file.uri for file in every if file.value >= since]

    def _held(self, table: Table, hours: Collection[int] | None) -> list[Held]:
        every = files(self._tables.path(table), "hour")
        return [file for file in every if hours is None or file.value in hours]

    def _replacing(self, table: Table, batch: Transaction, hours: set[int] | None) -> Writing:
        """The table is made by this batch, or these hours of it are replaced."""
        how: How = {"partition_by": ["hour"], "transaction": batch}
        if hours is not None:
            how |= {"mode": "replace", "replace": {"hour": sorted(hours)}}
        return begin(self._tables.path(table), table.schema, **how)


def _write(
    every: Mapping[Table, Writing],
    make: Callable[[dict[Table, str]], Mapping[Table, Sequence[File]]],
) -> None:
    """What is made for the folders of these tables, unless they have it already."""
    todo = {table: writing.path for table, writing in every.items() if not writing.done}
    made = make(todo) if todo else {}
    for table, fresh in made.items():
        every[table].commit(fresh)
