"""The tables and events as SQL views, all of them as one batch left them.

Every batch commits to every table once, so there is a version of each table for each batch. A view
shows that version, while jobs go on to write later ones. `events` shows the archived events that
the batch and those before it have taken in.
"""

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from gatepost.errors import PipelineError
from gatepost.pipeline.archive_reader import ROW_SCHEMA
from gatepost.pipeline.archive_source import read_events, spark_schema
from gatepost.pipeline.delta_tables import read_table, table_exists, version_of_batch
from gatepost.pipeline.jobs.batch_ledger import APP_ID, BatchLedger
from gatepost.pipeline.package_upload import is_connect
from gatepost.pipeline.tables import schemas
from gatepost.pipeline.tables.schemas import TABLES, TableSpec
from gatepost.pipeline.tables.turns import derive_turns

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

# Views of other tables and of the archive, which are not stored.
_UNSTORED = (schemas.EVENTS, schemas.TURNS)


class TableVersions(Struct, frozen=True):
    """Table → its version at the end of `batch`."""

    batch: int
    versions: dict[str, int]


def find_versions(tables: str, batch: int | None = None) -> TableVersions:
    """The versions of all tables at the end of a batch; by default of the last one that is done."""
    done = BatchLedger(tables).last_done_batch().number
    if done < 1:
        raise PipelineError(f"{tables} holds no tables yet: run `gatepost pipeline run` first")
    wanted = done if batch is None else batch
    if not 1 <= wanted <= done:
        raise PipelineError(f"there is no batch {wanted}: {tables} has batches 1 to {done}")
    versions = {}
    for table in _stored_tables():
        path = f"{tables.rstrip('/')}/{table.name}"
        if not table_exists(path):
            continue
        # An audit does not belong to a batch: the last one is shown.
        version = None if table is schemas.VIOLATIONS else version_of_batch(path, APP_ID, wanted)
        if version is not None:
            versions[table.name] = version
    return TableVersions(wanted, versions)


def create_views(
    spark: "SparkSession", tables: str, batch: int | None = None, archive: str | None = None
) -> TableVersions:
    """Make a view of each table, named like it; with the archive also the view `events`."""
    found = find_versions(tables, batch)
    for table in _stored_tables():
        _read_version(spark, tables, table, found).createOrReplaceTempView(table.name)
    deliveries = _read_version(spark, tables, schemas.DELIVERIES, found)
    derive_turns(deliveries).createOrReplaceTempView(schemas.TURNS.name)
    if archive is not None:
        _create_events_view(spark, tables, archive, found.batch)
    return found


def _create_events_view(
    spark: "SparkSession",
    tables: str,
    archive: str,
    batch: int,
    columns: Collection[str] | None = None,
) -> None:
    from pyspark.sql import functions as F

    events = read_events(spark, archive, tables=tables, batch=batch, columns=columns)
    if columns is not None:
        # The names stay known; their values are not read.
        absent = {field.name: F.lit(None).cast(field.dataType) for field in spark_schema()}
        events = events.select(
            *(name if name in columns else absent[name].alias(name) for name in absent)
        )
    events.createOrReplaceTempView(schemas.EVENTS.name)


def query_views(
    spark: "SparkSession",
    sql: str,
    tables: str,
    batch: int | None = None,
    archive: str | None = None,
) -> "tuple[TableVersions, DataFrame]":
    """A query over the views. `events` reads only the columns that the query needs.

    Spark tells a Python source the filters of a query, but not its columns, so they are found in
    the plan of the same query over a view without rows. A Spark Connect server keeps its plans to
    itself: there `events` reads all columns.
    """
    found = create_views(spark, tables, batch)
    if archive is None or schemas.EVENTS.name not in sql.lower():
        return found, spark.sql(sql)
    columns = None
    if not is_connect(spark):
        unread = spark.range(1).mapInArrow(_no_rows, spark_schema())
        unread.createOrReplaceTempView(schemas.EVENTS.name)
        needed = _needed_event_columns(spark.sql(sql))
        columns = [name for name in ROW_SCHEMA.names if name in needed] or ["seq"]
    _create_events_view(spark, tables, archive, found.batch, columns)
    return found, spark.sql(sql)


def _no_rows(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
    return iter(())


def _needed_event_columns(query: "DataFrame") -> set[str]:
    """The columns of the view without rows that the plan of a query refers to."""
    plans = [query._jdf.queryExecution().optimizedPlan()]
    used = _attributes(plans[0].output())
    ours: dict[int, str] = {}
    while plans:
        plan = plans.pop()
        if plan.nodeName() == "MapInArrow":
            ours |= _attributes(plan.output())
        else:
            used |= _attributes(plan.references().toSeq())
            plans += [*_elements(plan.children()), *_elements(plan.subqueries())]
    return {name for id, name in ours.items() if id in used}


def _attributes(attributes: Any) -> dict[int, str]:
    """The names of these attributes of a plan, by id."""
    return {each.exprId().id(): each.name() for each in _elements(attributes)}


def _elements(sequence: Any) -> list[Any]:
    return [sequence.apply(index) for index in range(sequence.size())]


def register_tables(spark: "SparkSession", tables: str, database: str) -> list[str]:
    """Register all tables in a database of the catalog; needs Delta's connector in that Spark."""
    BatchLedger(tables).require_known_layout()
    spark.sql(f"CREATE DATABASE IF NOT EXISTS `{database}`")
    names = []
    for table in _stored_tables():
        path = f"{tables.rstrip('/')}/{table.name}"
        if table_exists(path):
            name = f"`{database}`.`{table.name}`"
            spark.sql(f"CREATE TABLE IF NOT EXISTS {name} USING DELTA LOCATION '{path}'")
            names.append(f"{database}.{table.name}")
    return names


def _stored_tables() -> list[TableSpec]:
    return [table for table in TABLES.values() if table not in _UNSTORED]


def _read_version(
    spark: "SparkSession", tables: str, table: TableSpec, found: TableVersions
) -> "DataFrame":
    path = f"{tables.rstrip('/')}/{table.name}"
    if table.name in found.versions:
        return read_table(spark, path, version=found.versions[table.name])
    if table is schemas.VIOLATIONS and table_exists(path):
        return read_table(spark, path)
    return spark.createDataFrame([], table.ddl)
