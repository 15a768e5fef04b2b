"""Deliveries into tasks and turns; tasks into reviews and ETA advice."""

from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from gatepost.pipeline.objectives import Objectives
from gatepost.pipeline.tables.schemas import ETA, REVIEWS, TASKS, TURNS

SAMPLES = 5
_VERSIONS = ("capability_id", "capability_version", "delegation_version", "executor_version")
_POINTS = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}


def samples(corr_id: str = "corr_id", when: str = "sent_at") -> Column:
    """The first few conversations, the same ones every time."""
    ordered = F.sort_array(F.collect_list(F.struct(when, corr_id)))
    return F.slice(F.transform(ordered, lambda pair: pair[corr_id]), 1, SAMPLES)


def identity(*columns: Column) -> Column:
    """An id that is the same for the same thing, whoever finds it and how often."""
    parts = [F.coalesce(column.cast("string"), F.lit("")) for column in columns]
    return F.substring(F.sha2(F.concat_ws("\x1f", *parts), 256), 1, 32)


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


def tasks(deliveries: DataFrame) -> DataFrame:
    """Each task_create with all that its owner told about it later."""
    rows = deliveries.where("kind = 'task_create'").select(
        "*", F.col("sent_at").alias("created_at"), F.col("task.*")
    )
    return rows.withColumns(
        {
            "ended_at": F.coalesce("completed_at", "failed_at", "cancelled_at"),
            "took_ms": F.col("completed_at") - F.col("created_at"),
            "state": _state(),
        }
    ).select(*TASKS.names)


def _state() -> Column:
    return (
        F.when(F.col("completed_at").isNotNull(), "completed")
        .when(F.col("failed_at").isNotNull(), "failed")
        .when(F.col("cancelled_at").isNotNull(), "cancelled")
        .when(F.col("dead_at").isNotNull(), "dead_letter")
        .when(F.col("processed_at").isNotNull() | F.col("progress").isNotNull(), "running")
        .when(F.col("accepted_at").isNotNull(), "accepted")
        .otherwise("pending")
    )


def reviews(tasks: DataFrame, slow: DataFrame, as_of: int, objectives: Objectives) -> DataFrame:
    """Misfires by capability, skill versions and class. `slow` are the tasks beyond the SLA."""
    late = F.coalesce("ended_at", F.lit(as_of)) > F.col("eta_at")
    mismatch = F.col("failure_class") == "contract_mismatch"
    classes = {
        "eta_breach": late & F.col("state").isin("completed", "running", "accepted"),
        "contract_mismatch": (F.col("state") == "failed") & F.coalesce(mismatch, F.lit(False)),
        "terminal_error": (F.col("state") == "failed") & ~F.coalesce(mismatch, F.lit(False)),
        "routing_miss": (F.col("state") == "dead_letter") & (F.col("reason") == "no_route"),
    }
    of_class = [F.when(is_so, F.lit(name)) for name, is_so in classes.items()]
    told = (*_VERSIONS, "corr_id", "created_at")
    misfires = tasks.where(reduce(or_, classes.values())).select(
        *told, F.explode(F.array_compact(F.array(*of_class))).alias("class")
    )
    # Of all tasks only those that are slow have to be found, and these are few.
    delayed = tasks.join(slow, ["node", "corr_id"], "left_semi")
    misfires = misfires.unionByName(delayed.select(*told, F.lit("sla_breach").alias("class")))
    totals = tasks.groupBy(*_VERSIONS).agg(F.count("*").alias("tasks"))
    found = (
        misfires.groupBy(*_VERSIONS, "class")
        .agg(
            F.count("*").alias("count"),
            F.min("created_at").alias("first_at"),
            F.max("created_at").alias("last_at"),
            samples(when="created_at").alias("samples"),
        )
        .where((F.col("class") != "routing_miss") | (F.col("count") >= objectives.routing_misses))
    )
    same = [F.col(f"found.{name}").eqNullSafe(F.col(f"totals.{name}")) for name in _VERSIONS]
    joined = found.alias("found").join(F.broadcast(totals.alias("totals")), same)
    id = identity(*(F.col(f"found.{name}") for name in (*_VERSIONS, "class")))
    return joined.select("found.*", "tasks", id.alias("review_id")).select(*REVIEWS.names)


def eta(tasks: DataFrame) -> DataFrame:
    """How long a capability takes, and what to promise."""
    points = F.array(*(F.lit(point) for point in _POINTS.values()))
    took, promised = F.col("took_ms"), F.col("eta_at") - F.col("created_at")
    rows = (
        tasks.where("state = 'completed'")
        .groupBy("capability_id", "capability_version")
        .agg(
            F.count("*").alias("completed"),
            F.percentile_approx(took, points, 10_000).alias("took"),
            F.percentile_approx(promised, 0.5, 10_000).alias("promised"),
            F.avg((F.col("ended_at") <= F.col("eta_at")).cast("int")).alias("kept_rate"),
        )
    )
    seconds = [
        (F.col("took")[index] / 1000).alias(f"{name}_seconds") for index, name in enumerate(_POINTS)
    ]
    return rows.select(
        *("capability_id", "capability_version", "completed", "kept_rate"),
        *seconds,
        (F.col("promised") / 1000).alias("promised_seconds"),
        F.ceil(F.col("took")[2] / 1000).alias("recommended_eta_seconds"),
    ).select(*ETA.names)
