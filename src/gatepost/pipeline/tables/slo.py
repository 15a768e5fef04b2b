"""Deliveries into service levels and traffic.

A delivery belongs to the window of its `sent_at`, whenever the rest of it became known: a laptop
that was away for a week changes last week's windows. Percentiles are exact: what a node sends in
a window is little enough to sort.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from gatepost.pipeline.objectives import Objectives
from gatepost.pipeline.tables.schemas import CASES, HOUR_MS, SLO, TRAFFIC

_POINTS = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


def ended_at() -> Column:
    """When the delivery's turn ended, or its reply came."""
    return F.least("processed_at", "replied_at")


def dropped() -> Column:
    """Whether the turn ended without anybody having done it."""
    return F.coalesce(F.col("outcome").isin("dead_letter", "expired"), F.lit(False))


def process_ms() -> Column:
    """How long it took until it was done; null if it was not."""
    return F.when(~dropped(), ended_at() - F.col("sent_at"))


def dead() -> Column:
    """Whether its sender gave it up, or its owner did."""
    return F.col("dead_at").isNotNull() | dropped()


def window_of(at: Column, objectives: Objectives) -> Column:
    return at - F.pmod(at, F.lit(objectives.window_ms))


def window_within_hour(objectives: Objectives) -> Column:
    """The window of `sent_at`, inside of the hour of its id.

    They differ only where a clock went back: ids never do.
    """
    start = F.col("hour") * HOUR_MS
    last = start + (HOUR_MS - objectives.window_ms)
    return F.greatest(start, F.least(last, window_of(F.col("sent_at"), objectives)))


def slo(deliveries: DataFrame, objectives: Objectives) -> DataFrame:
    """Service levels by window, kind, node and capability."""
    accept = F.col("accepted_at") - F.col("sent_at")
    rows = (
        deliveries.where("kind is not null")
        .withColumns(
            {
                "window_start": window_within_hour(objectives),
                "capability_id": F.col("task.capability_id"),
                "accept_ms": accept,
                "process_ms": process_ms(),
            }
        )
        .groupBy("hour", "window_start", "kind", "node", "capability_id")
        .agg(*_counts(objectives), *_latencies(objectives))
    )
    return rows.select(*_rates(objectives)).select(*SLO.names)


def _counts(objectives: Objectives) -> list[Column]:
    end = F.col("window_start") + objectives.window_ms
    settled = F.coalesce(F.least("accepted_at", "dead_at"), end)
    counts = {
        "accepted": F.col("accepted_at").isNotNull(),
        "processed": F.col("process_ms").isNotNull(),
        "failed": F.col("outcome") == "failed",
        "dead": dead(),
        "amended": F.col("amended"),
        "retried": F.col("attempts") > 1,
        "open": ~F.col("closed"),
        "ack_lag": settled >= end,
    }
    return [
        F.count("*").alias("sent"),
        *(F.count_if(condition).alias(name) for name, condition in counts.items()),
        F.sum("duplicates").alias("duplicates"),
        F.sum("size").alias("bytes"),
    ]


def _latencies(objectives: Objectives) -> list[Column]:
    return [
        F.sort_array(F.collect_list("accept_ms")).alias("accept"),
        F.sort_array(F.collect_list("process_ms")).alias("process"),
        F.count_if(F.col("accept_ms") <= objectives.online * 1000).alias("online"),
    ]


def _percentile(of: str, share: float, among: Column | None = None) -> Column:
    """The value that this share of a sorted list is not above; null if it is empty.

    With `among` only that many of the smallest are looked at.
    """
    count = F.size(of) if among is None else among
    return F.get(F.col(of), F.ceil(count * share).cast("int") - 1)


def _rates(objectives: Objectives) -> list[Column]:
    named = ("hour", "window_start", "kind", "node", "capability_id")
    counts = (
        *("sent", "accepted", "processed", "failed", "dead", "amended", "retried"),
        *("duplicates", "open", "ack_lag", "bytes"),
    )
    objective = int(objectives.delivery_p95 * 1000)
    online = _percentile("accept", 0.95, F.col("online"))
    return [
        *(F.col(name) for name in (*named, *counts)),
        F.lit(objectives.window_ms).cast("bigint").alias("window_ms"),
        (F.col("sent") / objectives.window).alias("per_second"),
        *(
            _percentile(what, share).alias(f"{what}_{point}")
            for what in ("accept", "process")
            for point, share in _POINTS.items()
        ),
        (F.col("retried") / F.col("sent")).alias("retry_rate"),
        (F.col("duplicates") / F.col("sent")).alias("duplicate_rate"),
        (F.col("dead") / F.col("sent")).alias("dead_rate"),
        F.lit(objective).cast("bigint").alias("objective_ms"),
        online.alias("online_p95"),
        (online < objective).alias("met"),
    ]


def traffic(deliveries: DataFrame) -> DataFrame:
    """Who talks to whom, by the hour."""
    process = process_ms()
    ok = F.col("replied_at").isNotNull() | (F.col("outcome") == "ok")
    rows = deliveries.where("kind is not null").groupBy(
        "hour", "node", "from_agent", "to_node", "to_agent"
    )
    return rows.agg(
        F.count("*").alias("sent"),
        F.sum("size").alias("bytes"),
        F.count_if(ok).alias("ok"),
        F.count_if(F.col("outcome") == "failed").alias("failed"),
        F.count_if(dead()).alias("dead"),
        F.count_if(~F.col("closed")).alias("open"),
        F.avg(F.col("accepted_at") - F.col("sent_at")).alias("accept_ms"),
        F.avg(process).alias("process_ms"),
        F.max(process).alias("process_max"),
    ).select(*TRAFFIC.names)


def cases(deliveries: DataFrame, objectives: Objectives) -> DataFrame:
    """Deliveries that incidents may be made of: few, where all is well."""
    window = window_of(F.col("sent_at"), objectives)
    waited = F.coalesce(window_of(F.col("accepted_at"), objectives) > window, F.lit(True))
    late = F.coalesce(ended_at() - F.col("accepted_at") > objectives.sla * 1000, F.lit(True))
    rows = deliveries.where("kind is not null").where(F.col("dead_at").isNotNull() | waited | late)
    return rows.select(
        *("hour", "node", "to_node", "to_agent"),
        F.col("task.capability_id").alias("capability_id"),
        *("corr_id", "sent_at", "accepted_at"),
        F.coalesce(ended_at(), F.col("dead_at")).alias("ended_at"),
        *("dead_at", "reason"),
    ).select(*CASES.names)
