"""Compares the tables with their definitions, in Spark SQL, for some hours.

The definitions read the archived events themselves. They share no code with the kernels, so a
difference shows an error of one of them, or tables that were changed by hand.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from gatepost.errors import PipelineError
from gatepost.pipeline.archive_source import read_events
from gatepost.pipeline.delta_tables import list_files, read_table
from gatepost.pipeline.jobs.batch_ledger import BatchLedger, PipelineBatch
from gatepost.pipeline.jobs.table_update import TableFolder
from gatepost.pipeline.sql import EVENT_COLUMNS, definition_values, select_view
from gatepost.pipeline.table_views import TableVersions, find_versions
from gatepost.pipeline.tables import schemas
from gatepost.pipeline.tables.schemas import HOUR_MS, TableSpec
from gatepost.pipeline.tables.spark_rows import to_reckoned
from gatepost.pipeline.transport import SparkTransport

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_DAY_MS: Final = 24 * HOUR_MS
_SAMPLES: Final = 3
_DIGITS: Final = 6
# State for later batches, which depends on the order of work and is not defined.
_UNDEFINED: Final = {"told"}
_OF_DELIVERIES: Final = (
    *(schemas.TASKS, schemas.SLO, schemas.TRAFFIC, schemas.CASES, schemas.PACES),
)
_OF_HOURS: Final = (schemas.REVIEWS, schemas.ETA)


class TableVerdict(Struct, frozen=True):
    """`missing` rows are defined and not in the table, `unexpected` ones the other way round."""

    table: str
    rows: int
    missing: int
    unexpected: int
    samples: list[dict[str, Any]]


class Verification(Struct, frozen=True):
    """`hours` of the hours that the tables have were compared."""

    batch: int
    hours: list[int]
    of: int
    tables: list[TableVerdict]

    @property
    def is_right(self) -> bool:
        return not any(each.missing or each.unexpected for each in self.tables)


def verify_tables(
    transport: SparkTransport, archive: str, tables: str, most_hours: int
) -> Verification:
    """Compare the tables of the last batch that is done, in at most so many hours."""
    found = find_versions(tables)
    batch = BatchLedger(tables).read_batch(found.batch)
    known = _known_hours(tables, found)
    if not known:
        return Verification(found.batch, [], 0, [])
    hours = choose_hours(known, most_hours)
    verifier = _Verifier(transport, archive, tables, found, batch)
    return Verification(found.batch, hours, len(known), verifier.compare(hours))


def choose_hours(known: Sequence[int], most: int) -> list[int]:
    """At most so many of these hours, evenly spread, the first and the last among them."""
    if most >= len(known):
        return list(known)
    if most == 1:
        return [known[-1]]
    return [known[round(place * (len(known) - 1) / (most - 1))] for place in range(most)]


def _known_hours(tables: str, found: TableVersions) -> list[int]:
    path = TableFolder(tables).table_path(schemas.DELIVERIES)
    version = found.versions.get(schemas.DELIVERIES.name)
    if version is None:
        raise PipelineError(f"the deliveries of batch {found.batch} are gone")
    return sorted({file.value for file in list_files(path, "hour", version)})


class _Verifier:
    def __init__(
        self,
        transport: SparkTransport,
        archive: str,
        tables: str,
        found: TableVersions,
        batch: PipelineBatch,
    ) -> None:
        self._transport = transport
        self._spark = transport.spark
        self._archive = archive
        self._tables = tables
        self._found = found
        self._objectives = batch.objectives
        as_of = batch.as_of - batch.objectives.archiving * 1000
        self._since = as_of // HOUR_MS - batch.objectives.days * 24
        self._values = definition_values(batch.objectives, as_of, batch.number)

    def compare(self, hours: Sequence[int]) -> list[TableVerdict]:
        events = self._read_events(hours)
        made = select_view(self._spark, "deliveries", self._values, events=events)
        deliveries = made.where(made["hour"].isin(list(hours))).drop(*_UNDEFINED).persist()
        try:
            verdicts = [self._compare(schemas.DELIVERIES, deliveries, hours)]
            for table in _OF_DELIVERIES:
                made = select_view(self._spark, table.name, self._values, deliveries=deliveries)
                verdicts.append(self._compare(table, made, hours))
        finally:
            deliveries.unpersist()
        recent = {
            f"recent_{table.name}": self._read_table(table).where(f"hour >= {self._since}")
            for table in (schemas.CASES, schemas.PACES)
        }
        for table in _OF_HOURS:
            made = select_view(self._spark, table.name, self._values, **recent)
            verdicts.append(self._compare(table, made, None))
        return verdicts

    def _read_events(self, hours: Sequence[int]) -> "DataFrame":
        """The events about these hours; segments that are too old or too new are not opened."""
        events = read_events(
            self._spark,
            self._archive,
            tables=self._tables,
            batch=self._found.batch,
            columns=EVENT_COLUMNS,
        )
        least = min(hours) * HOUR_MS - _DAY_MS
        most = (max(hours) + 1) * HOUR_MS + self._objectives.id_age
        names = ", ".join(map(str, hours))
        about = " OR ".join(
            f"CAST(conv(hex(substring({id}, 1, 6)), 16, 10) AS BIGINT) DIV {HOUR_MS} IN ({names})"
            for id in ("event_id", "ref_id")
        )
        between = f"BETWEEN timestamp_millis({least}) AND timestamp_millis({most})"
        return events.where(f"created_at {between}").where(about)

    def _read_table(self, table: TableSpec) -> "DataFrame":
        path = TableFolder(self._tables).table_path(table)
        return read_table(self._spark, path, version=self._found.versions.get(table.name))

    def _compare(
        self, table: TableSpec, made: "DataFrame", hours: Sequence[int] | None
    ) -> TableVerdict:
        from pyspark.sql import functions as F

        stored = self._read_table(table)
        if hours is not None:
            stored = stored.where(stored["hour"].isin(list(hours)))
        names, differing = _count_rows(_comparable(table, made), _comparable(table, stored))
        sums = differing.agg(
            F.coalesce(F.sum("stored"), F.lit(0)).alias("rows"),
            F.coalesce(F.sum(F.greatest("surplus", F.lit(0))), F.lit(0)).alias("missing"),
            F.coalesce(F.sum(F.greatest(-F.col("surplus"), F.lit(0))), F.lit(0)).alias(
                "unexpected"
            ),
        )
        (found,) = sums.collect()
        self._transport.input_rows += found.rows
        samples = []
        if found.missing or found.unexpected:
            shown = differing.where("surplus <> 0").orderBy(*names[:3]).limit(_SAMPLES)
            shown = to_reckoned(shown)
            for row in shown.collect():
                values = row.asDict(recursive=True)
                kind = "missing" if values["surplus"] > 0 else "unexpected"
                samples.append({"found": kind} | {name: values[name] for name in names})
        return TableVerdict(table.name, found.rows, found.missing, found.unexpected, samples)


def _count_rows(made: "DataFrame", stored: "DataFrame") -> tuple[list[str], "DataFrame"]:
    """Equal rows, how often they are stored, and how much more often they are defined."""
    from pyspark.sql import functions as F

    names = made.columns
    both = made.withColumn("surplus", F.lit(1)).unionAll(stored.withColumn("surplus", F.lit(-1)))
    counted = both.groupBy(*names).agg(
        F.sum("surplus").alias("surplus"), F.count_if(F.col("surplus") < 0).alias("stored")
    )
    return names, counted


def _comparable(table: TableSpec, rows: "DataFrame") -> "DataFrame":
    """The defined columns. The last bits of a mean depend on the order of adding."""
    from pyspark.sql import functions as F

    return rows.select(
        *(
            (
                F.round(F.col(each.name), _DIGITS)
                if each.type == "double"
                else F.col(each.name).cast(each.type)
            ).alias(each.name)
            for each in table.columns
            if each.name not in _UNDEFINED
        )
    )
