"""Derives turns from deliveries. The table `turns` is a view: it is never stored."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from gatepost.pipeline.tables.schemas import TURNS


def derive_turns(deliveries: DataFrame) -> DataFrame:
    """One row for every node that processed an event, whether it was asked or not.

    A reply that is only kept for the sender of its message has no turn.
    """
    rows = deliveries.select("*", F.explode(_turn_ends()).alias("turn"))
    rows = rows.where(~F.col("turn.text").eqNullSafe("kept"))

    def first_time(what: str) -> Column:
        same = F.filter(
            "told", lambda fact: (fact["peer"] == F.col("turn.peer")) & (fact["what"] == what)
        )
        return F.try_element_at(same, F.lit(1))["at"]

    alone = F.col("told").isNull()
    return rows.select(
        *("hour", "node", "event_id"),
        F.col("turn.peer").alias("turn_node"),
        F.col("to_agent").alias("agent"),
        *("kind", "corr_id"),
        F.when(alone, F.col("accepted_at")).otherwise(first_time("accepted")).alias("accepted_at"),
        F.col("turn.at").alias("processed_at"),
        F.col("turn.text").alias("outcome"),
        (alone | first_time("sent").isNotNull()).alias("asked"),
    ).select(*TURNS.names)


def _turn_ends() -> Column:
    """Node, time and outcome of each `processed` fact, from `told` or the delivery's columns."""
    processed = F.filter("told", lambda fact: fact["what"] == "processed")
    ends = F.transform(processed, lambda fact: F.struct(fact["peer"], fact["at"], fact["text"]))
    only = F.struct(
        F.col("to_node").alias("peer"),
        F.col("processed_at").alias("at"),
        F.col("outcome").alias("text"),
    )
    return F.coalesce(ends, F.when(F.col("processed_at").isNotNull(), F.array(only)))
