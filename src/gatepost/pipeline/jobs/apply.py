"""One batch of events into all tables.

Deliveries of the hours that the events are about are merged with what is stored of them and
replaced; what is made of deliveries is made again for these hours only. Incidents, reviews and
ETA advice are made from what is unusual, of which there is little.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from msgspec import Struct
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from gatepost.pipeline.jobs import deliver
from gatepost.pipeline.jobs.deliver import Source
from gatepost.pipeline.jobs.ledger import APP
from gatepost.pipeline.objectives import Objectives
from gatepost.pipeline.sink import (
    Made,
    Transaction,
    count,
    files,
    largest,
    read_table,
    table_exists,
    write_table,
)
from gatepost.pipeline.tables import incidents, schemas, slo, tasks
from gatepost.pipeline.tables.schemas import Table

_HOURS_A_DAY = 24
# Below this many rows, compiling and spreading a query takes longer than just running it.
_FEW = 250_000

# A block is large; elsewhere no limit, because Spark measures after every row.
_LARGE_ROWS = {"spark.sql.execution.arrow.maxBytesPerBatch": str(64 * 1024**2)}
_PLAINLY = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


class Tables(Struct, frozen=True):
    """The folder of all tables."""

    root: str

    def path(self, table: Table) -> str:
        return f"{self.root.rstrip('/')}/{table.name}"

    def read(
        self, spark: SparkSession, table: Table, hours: Sequence[int] | None = None
    ) -> DataFrame:
        """The table, or the hours of it; empty if it was never written."""
        if table is schemas.TURNS:
            return tasks.turns(self.read(spark, schemas.DELIVERIES, hours))
        path = self.path(table)
        if not table_exists(path):
            return spark.createDataFrame([], table.ddl)
        if hours is None:
            return read_table(spark, path)
        return read_table(spark, path, where={"hour": [str(hour) for hour in hours]})


class Apply:
    """A batch on its way into the tables."""

    def __init__(self, spark: SparkSession, tables: Tables, objectives: Objectives) -> None:
        self._spark = spark
        self._tables = tables
        self._objectives = objectives

    def __call__(self, source: Source, number: int) -> None:
        batch = Transaction(APP, number)
        counted = deliver.activity(self._spark, source, number, self._objectives)
        write_table(counted, self._tables.path(schemas.ACTIVITY), transaction=batch)
        hours = self._deliver(source, batch)
        self._by_hour(batch, hours)
        self._overall(batch)

    def _deliver(self, source: Source, batch: Transaction) -> list[int] | None:
        """Returns the hours that changed, or None if all of them are new."""
        path = self._tables.path(schemas.DELIVERIES)
        hours = deliver.touched(self._spark, source) if table_exists(path) else None
        stored = [] if hours is None else files(path, "hour", set(hours))
        with _set(self._spark, _LARGE_ROWS):
            made = deliver.deliveries(self._spark, source, stored)
            self._replace(schemas.DELIVERIES, made, batch, hours)
        return hours

    def _by_hour(self, batch: Transaction, hours: list[int] | None) -> None:
        deliveries = self._read(schemas.DELIVERIES, hours)
        made = {
            schemas.SLO: slo.slo(deliveries, self._objectives),
            schemas.TRAFFIC: slo.traffic(deliveries),
            schemas.TASKS: tasks.tasks(deliveries),
            schemas.CASES: slo.cases(deliveries, self._objectives),
        }
        for table, frame in made.items():
            self._replace(table, frame, batch, hours)

    def _overall(self, batch: Transaction) -> None:
        needed = (schemas.CASES, schemas.TASKS, schemas.ACTIVITY)
        small = [table for table in needed if count(self._tables.path(table)) < _FEW]
        # What is in one partition is never shuffled.
        read = {
            table: self._read(table).coalesce(1) if table in small else self._read(table)
            for table in needed
        }
        with contextlib.ExitStack() as stack:
            stack.enter_context(_set(self._spark, _PLAINLY if len(small) == len(needed) else {}))
            self._whole(batch, read, stack)

    def _whole(
        self, batch: Transaction, read: Mapping[Table, DataFrame], stack: contextlib.ExitStack
    ) -> None:
        path = self._tables.path(schemas.ACTIVITY)
        latest = (largest(path, "last_at") or 0) - self._objectives.sealing * 1000
        since = latest // schemas.HOUR_MS - self._objectives.days * _HOURS_A_DAY
        recent = F.col("hour") >= since
        # Every class of incidents looks at these.
        activity = stack.enter_context(_kept(read[schemas.ACTIVITY]))
        cases = stack.enter_context(_kept(read[schemas.CASES].where(recent)))
        known = read[schemas.TASKS].where(recent)
        slow = incidents.slow(cases, latest, self._objectives)
        whole = {
            schemas.ETA: tasks.eta(known),
            schemas.REVIEWS: tasks.reviews(known, slow, latest, self._objectives),
            schemas.INCIDENTS: incidents.incidents(cases, activity, latest, self._objectives),
        }
        for table, frame in whole.items():
            path = self._tables.path(table)
            only = _shaped(frame, table).coalesce(1)
            write_table(only, path, mode="overwrite", transaction=batch)

    def _read(self, table: Table, hours: list[int] | None = None) -> DataFrame:
        return self._tables.read(self._spark, table, hours)

    def _replace(
        self,
        table: Table,
        rows: DataFrame | Made,
        batch: Transaction,
        hours: list[int] | None,
    ) -> None:
        path = self._tables.path(table)
        shaped = rows if isinstance(rows, Made) else _shaped(rows, table)
        write = partial(write_table, shaped, path, transaction=batch)
        if hours is None or not table_exists(path):
            write(partition_by=["hour"])
        elif hours:
            write(mode="replace", replace={"hour": hours})


def _shaped(frame: DataFrame, table: Table) -> DataFrame:
    """The table's columns exactly, whatever Spark knows about what is never null."""
    return frame.select(*(F.col(c.name).cast(c.type).alias(c.name) for c in table.columns))


@contextlib.contextmanager
def _kept(frame: DataFrame) -> Iterator[DataFrame]:
    """The frame, made once while the block lasts; on the executors, not here."""
    try:
        yield frame.persist()
    finally:
        frame.unpersist()


@contextlib.contextmanager
def _set(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """These settings, while the block lasts."""
    before = {name: spark.conf.get(name) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            spark.conf.set(name, str(old))
