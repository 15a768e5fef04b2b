"""Deliveries into turns, which are looked at and not kept."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from gatepost.pipeline.tables.schemas import TURNS


def turns(deliveries: DataFrame) -> DataFrame:
    """Every node that processed an event, asked or not."""
    rows = deliveries.select("*", F.explode(_ends()).alias("turn"))

    def first(what: str) -> Column:
        same = F.filter(
            "told", lambda said: (said["peer"] == F.col("turn.peer")) & (said["what"] == what)
        )
        return F.try_element_at(same, F.lit(1))["at"]

    alone = F.col("told").isNull()
    return rows.select(
        *("hour", "node", "event_id"),
        F.col("turn.peer").alias("turn_node"),
        F.col("to_agent").alias("agent"),
        *("kind", "corr_id"),
        F.when(alone, F.col("accepted_at")).otherwise(first("accepted")).alias("accepted_at"),
        F.col("turn.at").alias("processed_at"),
        F.col("turn.text").alias("outcome"),
        (alone | first("sent").isNotNull()).alias("asked"),
    ).select(*TURNS.names)


def _ends() -> Column:
    """Who processed it, when and how; also where the delivery says that by itself."""
    told = F.filter("told", lambda said: said["what"] == "processed")
    ends = F.transform(told, lambda said: F.struct(said["peer"], said["at"], said["text"]))
    only = F.struct(
        F.col("to_node").alias("peer"),
        F.col("processed_at").alias("at"),
        F.col("outcome").alias("text"),
    )
    return F.coalesce(ends, F.when(F.col("processed_at").isNotNull(), F.array(only)))
