"""Brings all tables up to date with one batch of events.

The deliveries of the hours that the events refer to are merged with the stored ones and replaced.
Tables made of deliveries are made again for these hours only; a day of them is replaced, and the
rows of its other hours are copied. Incidents, reviews and ETA advice
are made anew from the few unusual deliveries (`cases`) and the sums of each hour (`paces`).
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from gatepost.pipeline.delta_tables import (
    BatchTransaction,
    StoredFile,
    TableWrite,
    WriteOptions,
    begin_write,
    compact_table,
    files_since,
    list_files,
    open_table,
    read_table,
    table_exists,
    values_since_batch,
)
from gatepost.pipeline.jobs import deliveries
from gatepost.pipeline.jobs.batch_ledger import APP_ID, PipelineBatch
from gatepost.pipeline.jobs.deliveries import NewEvents, SurveyRequest
from gatepost.pipeline.jobs.findings import FindingsInput, write_findings
from gatepost.pipeline.jobs.hourly_tables import HOURLY_TABLES as HOURLY
from gatepost.pipeline.jobs.hourly_tables import KeptRows, write_hourly_tables
from gatepost.pipeline.objectives import Objectives
from gatepost.pipeline.parquet import WrittenFile
from gatepost.pipeline.tables import schemas
from gatepost.pipeline.tables.schemas import HOURS_A_DAY, TableSpec, day_number, day_of
from gatepost.pipeline.transport import Transport

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Incidents come last: once that table has a batch, all tables have it (`BatchLedger.is_done`).
_FINDINGS: Final = (schemas.ETA, schemas.REVIEWS, schemas.INCIDENTS)
_MANY_FILES = 256


class TableFolder(Struct, frozen=True):
    """The folder that holds all tables."""

    root: str

    def table_path(self, table: TableSpec) -> str:
        return f"{self.root.rstrip('/')}/{table.name}"

    def read(self, spark: "SparkSession", table: TableSpec) -> "DataFrame":
        """Read the table; it is empty if it was never written."""
        from gatepost.pipeline.tables.turns import derive_turns

        if table is schemas.TURNS:
            return derive_turns(self.read(spark, schemas.DELIVERIES))
        path = self.table_path(table)
        if not table_exists(path):
            return spark.createDataFrame([], table.ddl)
        return read_table(spark, path)


class TableUpdater:
    """Writes a batch to all tables. A table that has the batch already is left as it is."""

    def __init__(self, transport: Transport, tables: TableFolder, objectives: Objectives) -> None:
        self._transport = transport
        self._tables = tables
        self._objectives = objectives

    def __call__(self, source: NewEvents, taken: PipelineBatch) -> None:
        batch = BatchTransaction(APP_ID, taken.number)
        hours = None
        if self.has_deliveries(taken):
            hours = self._rewritten_hours(taken)
        elif self.has_tables():
            hours = self._survey_events(source, batch)
            self._merge_deliveries(source, batch, hours)
        else:
            self._write_first_deliveries(source, batch)
        self._write_hourly_tables(batch, hours)
        self._write_findings(batch, taken)
        self._compact_activity()

    def has_tables(self) -> bool:
        return table_exists(self._tables.table_path(schemas.DELIVERIES))

    def has_deliveries(self, taken: PipelineBatch) -> bool:
        """Whether deliveries have this batch: no other table is made of its events."""
        table = open_table(self._tables.table_path(schemas.DELIVERIES))
        return table is not None and (table.transaction_version(APP_ID) or 0) >= taken.number

    def _rewritten_hours(self, taken: PipelineBatch) -> set[int]:
        """The hours of which this batch wrote deliveries, before a process died."""
        path = self._tables.table_path(schemas.DELIVERIES)
        return set(values_since_batch(path, "hour", APP_ID, taken.number - 1))

    def _compact_activity(self) -> None:
        """Merge the files of activity: every batch adds to them and reads all recent ones."""
        path = self._tables.table_path(schemas.ACTIVITY)
        if len(files_since(path, "last_at", 0)) >= _MANY_FILES:
            compact_table(path)

    def _survey_events(self, source: NewEvents, batch: BatchTransaction) -> set[int]:
        """Count activity; returns the hours that change."""
        activity, wanted = self._begin_activity(batch, hours=True)
        found = deliveries.survey_events(self._transport, source, wanted)
        activity.commit(found.activity)
        return found.hours

    def _begin_activity(
        self, batch: BatchTransaction, *, hours: bool
    ) -> tuple[TableWrite, SurveyRequest]:
        activity = begin_write(
            self._tables.table_path(schemas.ACTIVITY),
            schemas.ACTIVITY.schema,
            transaction=batch,
            comment=schemas.ACTIVITY.meaning,
        )
        folder = None if activity.earlier_commit else activity.path
        return activity, SurveyRequest(batch.batch, self._objectives, folder, hours)

    def _merge_deliveries(
        self, source: NewEvents, batch: BatchTransaction, hours: set[int]
    ) -> None:
        writing = self._begin_replacing(schemas.DELIVERIES, batch, hours)
        if not writing.earlier_commit:
            stored = self._hour_files(hours) if hours else []
            made = deliveries.write_deliveries(self._transport, source, stored, writing.path)
            writing.commit(made.deliveries)

    def _write_first_deliveries(self, source: NewEvents, batch: BatchTransaction) -> None:
        """Count activity in the same pass: no stored hour has to be known before it."""
        activity, wanted = self._begin_activity(batch, hours=False)
        writing = self._begin_replacing(schemas.DELIVERIES, batch, None)
        survey = wanted if wanted.activity else None
        made = deliveries.write_deliveries(self._transport, source, [], writing.path, survey)
        activity.commit(made.activity)
        writing.commit(made.deliveries)

    def _write_hourly_tables(self, batch: BatchTransaction, hours: set[int] | None) -> None:
        writes = {table: self._begin_replacing(table, batch, hours) for table in HOURLY}
        changed = self._hour_files(hours)
        kept = list(self._kept_rows(hours)) if hours else []
        _write_uncommitted(
            writes,
            lambda folders: write_hourly_tables(
                self._transport, changed, folders, self._objectives, kept
            ),
        )

    def _kept_rows(self, hours: set[int]) -> Iterator[KeptRows]:
        """The rows to keep of the days of these hours, for each table and day."""
        days = {hour // HOURS_A_DAY: list[int]() for hour in hours}
        for hour in sorted(hours):
            days[hour // HOURS_A_DAY].append(hour)
        for table in HOURLY:
            path = self._tables.table_path(table)
            of_day: dict[int, list[StoredFile]] = {}
            for file in (
                list_files(path, "day", unless=("hour", hours)) if table_exists(path) else ()
            ):
                of_day.setdefault(day_number(file.value), []).append(file)
            for day, changed in days.items():
                if files := of_day.get(day):
                    rows = sum(file.rows for file in files)
                    yield KeptRows(table.name, [file.uri for file in files], changed, rows)

    def _write_findings(self, batch: BatchTransaction, taken: PipelineBatch) -> None:
        writes = {
            table: begin_write(
                self._tables.table_path(table),
                table.schema,
                mode="overwrite",
                transaction=batch,
                comment=table.meaning,
            )
            for table in _FINDINGS
        }
        known = self._findings_input(taken)
        _write_uncommitted(
            writes,
            lambda folders: write_findings(self._transport, known, folders, self._objectives),
        )

    def _findings_input(self, taken: PipelineBatch) -> FindingsInput:
        activity = self._tables.table_path(schemas.ACTIVITY)
        as_of = taken.as_of - self._objectives.archiving * 1000
        since = as_of // schemas.HOUR_MS - self._objectives.days * HOURS_A_DAY
        recent = files_since(activity, "last_at", since * schemas.HOUR_MS)
        return FindingsInput(
            since * schemas.HOUR_MS,
            as_of,
            activity=recent,
            cases=self._recent_files(schemas.CASES, since),
            paces=self._recent_files(schemas.PACES, since),
            aside=(*taken.aside, *taken.repaired),
        )

    def _recent_files(self, table: TableSpec, since: int) -> list[StoredFile]:
        """The files of all days from that of this hour on."""
        stored = list_files(self._tables.table_path(table), "day")
        return [file for file in stored if day_number(file.value) >= since // HOURS_A_DAY]

    def _hour_files(self, hours: Collection[int] | None) -> list[StoredFile]:
        stored = list_files(self._tables.table_path(schemas.DELIVERIES), "hour")
        return [file for file in stored if hours is None or file.value in hours]

    def _begin_replacing(
        self, table: TableSpec, batch: BatchTransaction, hours: set[int] | None
    ) -> TableWrite:
        """Begin to replace the partitions of these hours; if that is None, to create the table."""
        how: WriteOptions = {
            "partition_by": table.partitions,
            "transaction": batch,
            "comment": table.meaning,
        }
        if hours is not None:
            days = {day_of(hour // HOURS_A_DAY) for hour in hours}
            replaced = hours if table.partition == "hour" else days
            how |= {"mode": "replace", "replace": {table.partitions[0]: sorted(replaced)}}
        return begin_write(self._tables.table_path(table), table.schema, **how)


def _write_uncommitted(
    writes: Mapping[TableSpec, TableWrite],
    make: Callable[[dict[TableSpec, str]], Mapping[TableSpec, Sequence[WrittenFile]]],
) -> None:
    """Have `make` write files for the tables that lack this batch, and commit them."""
    folders = {
        table: writing.path for table, writing in writes.items() if not writing.earlier_commit
    }
    made = make(folders) if folders else {}
    for table, written in made.items():
        writes[table].commit(written)
