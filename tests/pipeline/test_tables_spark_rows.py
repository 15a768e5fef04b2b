"""Rows on their way to definitions in SQL and back."""

import pyarrow as pa
from pyspark.sql import SparkSession

from gatepost.pipeline.tables.arrow_schemas import rows_to_table
from gatepost.pipeline.tables.schemas import CASES, DELIVERIES, SLO, TableSpec
from gatepost.pipeline.tables.spark_rows import to_reckoned, to_stored
from gatepost.pipeline.tables.stored_rows import to_stored as to_stored_rows
from tests.pipeline.telling import T

TOLD = {"peer": "b", "what": "sent", "at": T + 7, "text": None, "number": 1, "progress": None}
TASK = {"capability_id": "ocr", "eta_at": T + 9, "completed_at": None, "progress": 0.5}
HOUR = T // 3_600_000


def _stored(table: TableSpec, *rows: dict[str, object]) -> pa.Table:
    batches = rows_to_table(table, rows).to_batches()
    return pa.Table.from_batches([to_stored_rows(table, batch) for batch in batches])


def test_times_also_inside_of_structs_and_lists_come_back_as_they_went(
    spark: SparkSession,
) -> None:
    plain = {"hour": HOUR, "node": "a", "event_id": bytes(16), "sent_at": T}
    stored = _stored(DELIVERIES, plain, plain | {"sent_at": None, "task": TASK, "told": [TOLD]})
    reckoned = to_reckoned(spark.createDataFrame(stored))
    first, second = sorted(reckoned.collect(), key=lambda row: row.sent_at is None)
    assert (first.sent_at, first.task, first.told) == (T, None, None)
    assert (second.sent_at, second.task.eta_at, second.task.completed_at) == (None, T + 9, None)
    assert [fact.at for fact in second.told] == [T + 7]
    back = to_stored(DELIVERIES, reckoned).toArrow().sort_by("sent_at")
    assert back.to_pylist() == stored.sort_by("sent_at").to_pylist()


def test_rows_get_the_day_of_their_hour(spark: SparkSession) -> None:
    stored = _stored(SLO, {"hour": HOUR, "window_start": T, "node": "a"})
    reckoned = to_reckoned(spark.createDataFrame(stored)).drop("day")
    assert to_stored(SLO, reckoned).toArrow().to_pylist() == stored.to_pylist()


def test_a_time_beyond_all_clocks_is_null_and_stops_no_other_row(spark: SparkSession) -> None:
    """A node may promise a task in 2**53 seconds."""
    made = spark.createDataFrame([(HOUR, T), (HOUR, 9 * 10**18)], "hour long, eta_at long")
    others = (name for name in CASES.kernel_names if name not in made.columns)
    blank = made.selectExpr("*", *(f"NULL AS {name}" for name in others))
    found = to_stored(CASES, blank).toArrow()["eta_at"]
    assert [each.value for each in found if each.is_valid] == [T * 1000]
    assert found.null_count == 1
