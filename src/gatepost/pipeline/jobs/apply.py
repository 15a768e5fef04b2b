"""One batch of events into all tables.

Deliveries of the hours that the events are about are merged with what is stored of them and
replaced; what is made of deliveries is made again for these hours only. Incidents, reviews and
ETA advice are made from what is unusual, of which there is little.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from msgspec import Struct
from pyspark import inheritable_thread_target
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from gatepost.pipeline.jobs import deliver
from gatepost.pipeline.jobs.deliver import Source
from gatepost.pipeline.jobs.ledger import APP
from gatepost.pipeline.objectives import Objectives
from gatepost.pipeline.session import alike
from gatepost.pipeline.sink import (
    Made,
    Pending,
    Transaction,
    count,
    files,
    largest,
    read_table,
    table_exists,
    write_files_of,
    write_table,
)
from gatepost.pipeline.tables import incidents, schemas, slo, tasks
from gatepost.pipeline.tables.schemas import Table

_HOURS_A_DAY = 24
# Below this many rows, compiling and spreading a query takes longer than just running it.
_FEW = 250_000

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
        _, hours = self._together(
            partial(self._count, source, batch), partial(self._deliver, source, batch)
        )
        changed = self._tables.read(self._spark, schemas.DELIVERIES, hours)
        *_, pending = self._together(
            partial(self._by_hour, schemas.SLO, changed, batch, hours),
            partial(self._by_hour, schemas.TRAFFIC, changed, batch, hours),
            partial(self._unusual, changed, batch, hours),
        )
        # Incidents come last: who has them has all of the batch.
        for table in pending:
            table.commit()

    def _count(self, source: Source, batch: Transaction) -> None:
        counted = deliver.activity(self._spark, source, batch.batch, self._objectives)
        write_table(counted, self._tables.path(schemas.ACTIVITY), transaction=batch)

    def _deliver(self, source: Source, batch: Transaction) -> list[int] | None:
        """Returns the hours that changed, or None if all of them are new."""
        path = self._tables.path(schemas.DELIVERIES)
        hours = deliver.touched(self._spark, source) if table_exists(path) else None
        stored = [] if hours is None else files(path, "hour", set(hours))
        made = deliver.deliveries(self._spark, source, stored)
        self._replace(schemas.DELIVERIES, made, batch, hours)
        return hours

    def _by_hour(
        self, table: Table, deliveries: DataFrame, batch: Transaction, hours: list[int] | None
    ) -> None:
        rows = {
            schemas.SLO: lambda: slo.slo(deliveries, self._objectives),
            schemas.TRAFFIC: lambda: slo.traffic(deliveries),
            schemas.TASKS: lambda: tasks.tasks(deliveries),
            schemas.CASES: lambda: slo.cases(deliveries, self._objectives),
        }[table]()
        self._replace(table, rows, batch, hours)

    def _unusual(
        self, deliveries: DataFrame, batch: Transaction, hours: list[int] | None
    ) -> list[Pending]:
        """Tasks and cases; and what is made of all of them, but for the commit."""
        self._together(
            partial(self._by_hour, schemas.TASKS, deliveries, batch, hours),
            partial(self._by_hour, schemas.CASES, deliveries, batch, hours),
        )
        return self._overall(batch)

    def _overall(self, batch: Transaction) -> list[Pending]:
        path = self._tables.path(schemas.ACTIVITY)
        latest = (largest(path, "last_at") or 0) - self._objectives.sealing * 1000
        since = latest // schemas.HOUR_MS - self._objectives.days * _HOURS_A_DAY
        recent = F.col("hour") >= since
        (known,) = self._gathered(schemas.TASKS)
        activity, cases = self._gathered(schemas.ACTIVITY, schemas.CASES)
        # Every class of incidents looks at these.
        with _kept(activity) as activity, _kept(cases.where(recent)) as cases:
            slow = incidents.slow(cases, latest, self._objectives)
            tasked = known.where(recent)
            made = {
                schemas.ETA: lambda: tasks.eta(tasked),
                schemas.REVIEWS: lambda: tasks.reviews(tasked, slow, latest, self._objectives),
                schemas.INCIDENTS: lambda: incidents.incidents(
                    cases, activity, latest, self._objectives
                ),
            }
            whole = [partial(self._whole, table, rows, batch) for table, rows in made.items()]
            return self._together(*whole)

    def _gathered(self, *tables: Table) -> list[DataFrame]:
        """All of these tables; where they are small, to be worked on without ado."""
        small = all(count(self._tables.path(table)) < _FEW for table in tables)
        session = alike(self._spark, _PLAINLY) if small else self._spark
        frames = [self._tables.read(session, table) for table in tables]
        # What is in one partition is never shuffled.
        return [frame.coalesce(1) for frame in frames] if small else frames

    def _whole(self, table: Table, rows: Callable[[], DataFrame], batch: Transaction) -> Pending:
        only = _shaped(rows(), table).coalesce(1)
        path = self._tables.path(table)
        return write_files_of(only, path, mode="overwrite", transaction=batch)

    def _together(self, *tasks: Callable[[], Any]) -> list[Any]:
        """All of them side by side: while one is planned, others run."""
        inherit = inheritable_thread_target(self._spark)
        with ThreadPoolExecutor(len(tasks)) as pool:
            begun = [pool.submit(inherit(task)) for task in tasks]
        return [task.result() for task in begun]

    def _replace(
        self, table: Table, rows: DataFrame | Made, batch: Transaction, hours: list[int] | None
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
