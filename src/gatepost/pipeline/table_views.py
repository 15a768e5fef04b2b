"""The tables as SQL views, all of them as one batch left them.

Every batch commits to every table once, so there is a version of each table for each batch. A view
shows that version, while jobs go on to write later ones.
"""

from typing import TYPE_CHECKING

from msgspec import Struct

from gatepost.errors import PipelineError
from gatepost.pipeline.delta_tables import read_table, table_exists, version_of_batch
from gatepost.pipeline.jobs.batch_ledger import APP_ID, BatchLedger
from gatepost.pipeline.tables import schemas
from gatepost.pipeline.tables.schemas import TABLES, TableSpec
from gatepost.pipeline.tables.turns import derive_turns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Views of other tables and of the archive, which are not stored.
_UNSTORED = (schemas.EVENTS, schemas.TURNS)


class TableVersions(Struct, frozen=True):
    """Table → its version at the end of `batch`."""

    batch: int
    versions: dict[str, int]


def find_versions(tables: str, batch: int | None = None) -> TableVersions:
    """The versions of all tables at the end of a batch; by default of the last one that is done."""
    ledger = BatchLedger(tables)
    last = ledger.last_batch()
    done = 0 if last is None else last.number - (not ledger.is_done(last))
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
        # An audit is no part of a batch: the last one is shown.
        version = None if table is schemas.VIOLATIONS else version_of_batch(path, APP_ID, wanted)
        if version is not None:
            versions[table.name] = version
    return TableVersions(wanted, versions)


def create_views(spark: "SparkSession", tables: str, batch: int | None = None) -> TableVersions:
    """Make a view of each table, named like it."""
    found = find_versions(tables, batch)
    for table in _stored_tables():
        _read_version(spark, tables, table, found).createOrReplaceTempView(table.name)
    deliveries = _read_version(spark, tables, schemas.DELIVERIES, found)
    derive_turns(deliveries).createOrReplaceTempView(schemas.TURNS.name)
    return found


def register_tables(spark: "SparkSession", tables: str, database: str) -> list[str]:
    """Register all tables in a database of the catalog; needs Delta's connector in that Spark."""
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
