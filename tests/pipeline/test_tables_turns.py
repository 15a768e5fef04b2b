"""Turns, from deliveries that say it all and from those that list what was told."""

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from gatepost.pipeline.tables.schemas import DELIVERIES
from gatepost.pipeline.tables.stored_rows import to_stored
from gatepost.pipeline.tables.turns import derive_turns
from tests.pipeline.telling import OK, Event, T, fold, receipt, sent, told


def frame(spark: SparkSession, *events: Event) -> DataFrame:
    batches = fold(told(events)).to_batches()
    stored = pa.Table.from_batches([to_stored(DELIVERIES, batch) for batch in batches])
    return spark.createDataFrame(stored)


def test_a_turn_is_a_node_that_processed_an_event(spark: SparkSession) -> None:
    doubled = [sent(), sent(4, to="c", attempt=2), receipt("b", "processed", 9, **OK)]
    rows = frame(spark, *doubled, receipt("c", "processed", 10, **OK))
    nodes = sorted((row.turn_node, row.outcome, row.asked) for row in derive_turns(rows).collect())
    assert nodes == [("b", "ok", True), ("c", "ok", True)]
    assert rows.first().turns == 2  # type: ignore[union-attr]


def test_a_plain_turn_is_told_by_its_delivery_alone(spark: SparkSession) -> None:
    rows = frame(spark, sent(), receipt("b", "accepted", 5), receipt("b", "processed", 9, **OK))
    assert rows.first().told is None  # type: ignore[union-attr]
    (turn,) = derive_turns(rows).collect()
    assert turn.turn_node == "b"
    assert [turn.accepted_at.timestamp(), turn.processed_at.timestamp()] == [
        pytest.approx((T + at) / 1000) for at in (5, 9)
    ]
    assert (turn.outcome, turn.asked) == ("ok", True)
    assert derive_turns(frame(spark, sent(), receipt("b", "accepted", 5))).collect() == []
