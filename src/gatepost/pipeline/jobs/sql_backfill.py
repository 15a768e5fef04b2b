"""Makes the tables of a first batch in Spark SQL, for clusters that accelerate SQL and not Python.

The queries are the definitions of the tables. Each table takes the batch in the usual transaction,
so later runs can continue from any point as if kernels had made the tables.
"""

from typing import TYPE_CHECKING, Final

from gatepost.pipeline.archive_source import read_events
from gatepost.pipeline.delta_tables import BatchTransaction, begin_write, read_table, write_frame
from gatepost.pipeline.jobs.batch_ledger import APP_ID, PipelineBatch
from gatepost.pipeline.jobs.table_update import TableFolder
from gatepost.pipeline.objectives import Objectives
from gatepost.pipeline.sql import EVENT_COLUMNS, definition_values, select_view
from gatepost.pipeline.tables import schemas
from gatepost.pipeline.tables.schemas import TableSpec
from gatepost.pipeline.transport import SparkTransport

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_OF_DELIVERIES: Final = (
    *(schemas.SLO, schemas.TRAFFIC, schemas.TASKS, schemas.PACES, schemas.CASES),
)


class SqlBackfill:
    """Writes the tables that are made of events and of deliveries."""

    def __init__(
        self, transport: SparkTransport, archive: str, tables: TableFolder, objectives: Objectives
    ) -> None:
        self._transport = transport
        self._spark = transport.spark
        self._archive = archive
        self._tables = tables
        self._objectives = objectives

    def write_batch(self, batch: PipelineBatch, rows: int) -> None:
        """Write a batch of so many events, which is the first one of these tables."""
        values = definition_values(self._objectives, batch.as_of, batch.number)
        events = read_events(
            self._spark,
            self._archive,
            tables=self._tables.root,
            batch=batch.number,
            columns=EVENT_COLUMNS,
        )
        self._transport.input_rows += 2 * rows
        transaction = BatchTransaction(APP_ID, batch.number)
        for table in (schemas.ACTIVITY, schemas.DELIVERIES):
            made = select_view(self._spark, table.name, values, events=events)
            self._write(table, made, transaction)
        deliveries = read_table(self._spark, self._tables.table_path(schemas.DELIVERIES))
        for table in _OF_DELIVERIES:
            made = select_view(self._spark, table.name, values, deliveries=deliveries)
            self._write(table, made, transaction)

    def _write(self, table: TableSpec, rows: "DataFrame", transaction: BatchTransaction) -> None:
        path = self._tables.table_path(table)
        writing = begin_write(
            path,
            table.schema,
            partition_by=table.partitions,
            transaction=transaction,
            comment=table.meaning,
        )
        if not writing.earlier_commit:
            writing.commit(write_frame(rows, writing))
