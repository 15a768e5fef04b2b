"""Cases into incidents: few rows in, a handful out.

An incident covers an *island*: windows that follow each other without a hole. Its id is made of
its class, its subject and its start, so finding it again changes nothing.
"""

from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from gatepost.pipeline.objectives import Objectives
from gatepost.pipeline.tables.schemas import INCIDENTS
from gatepost.pipeline.tables.slo import window_of
from gatepost.pipeline.tables.tasks import SAMPLES, identity, samples


def slow(cases: DataFrame, as_of: int, objectives: Objectives) -> DataFrame:
    """Accepted, and not processed or replied to within the SLA."""
    took = F.coalesce("ended_at", F.lit(as_of)) - F.col("accepted_at")
    return cases.where(took > objectives.sla * 1000)


def incidents(
    cases: DataFrame, activity: DataFrame, as_of: int, objectives: Objectives
) -> DataFrame:
    """All incidents, as of the latest event known."""
    silent = _silent(cases, activity, as_of, objectives)
    found = [
        _sla_breaches(slow(cases, as_of, objectives), objectives),
        _routing_misses(cases.where("reason = 'no_route'"), objectives),
        _bursts(cases.where("dead_at is not null and reason <> 'no_route'"), objectives),
        _backlogs(cases, silent, as_of, objectives),
        silent,
    ]
    return reduce(DataFrame.unionByName, found).select(*INCIDENTS.names)


def _sla_breaches(slow: DataFrame, objectives: Objectives) -> DataFrame:
    keys = ("to_node", "to_agent", "capability_id")
    rows = (
        _islands(slow, "accepted_at", keys, objectives)
        .groupBy(*keys, "island")
        .agg(
            F.min("accepted_at").alias("started_at"),
            F.when(F.count("ended_at") == F.count("*"), F.max("ended_at")).alias("ended_at"),
            F.count("*").alias("count"),
            samples().alias("samples"),
        )
    )
    sentence = F.format_string(
        f"%s of %s accepted %d deliveries and did not finish them within {objectives.sla} s",
        "to_agent",
        "to_node",
        "count",
    )
    return _incident(rows, "sla_breach", F.col("to_node"), sentence)


def _routing_misses(dead: DataFrame, objectives: Objectives) -> DataFrame:
    rows = _dead_islands(dead, objectives)
    sentence = F.format_string(
        "%d deliveries from %s to %s had nowhere to go", "count", "node", "to_agent"
    )
    return _incident(rows, "routing_miss", F.col("node"), sentence)


def _bursts(dead: DataFrame, objectives: Objectives) -> DataFrame:
    rows = _dead_islands(dead, objectives).where(F.col("densest") >= objectives.burst)
    sentence = F.format_string("%s gave up on %d deliveries to %s", "node", "count", "to_agent")
    return _incident(rows, "dead_letter_burst", F.col("node"), sentence)


def _dead_islands(dead: DataFrame, objectives: Objectives) -> DataFrame:
    keys = ("node", "to_agent", "capability_id")
    # How many there were in the window that ends here, wherever it starts.
    recent = Window.partitionBy(*keys).orderBy("dead_at").rangeBetween(-objectives.window_ms, 0)
    counted = dead.withColumn("recent", F.count("*").over(recent))
    return (
        _islands(counted, "dead_at", keys, objectives)
        .groupBy(*keys, "island")
        .agg(
            F.min("sent_at").alias("started_at"),
            F.max("dead_at").alias("ended_at"),
            F.count("*").alias("count"),
            F.max("recent").alias("densest"),
            samples().alias("samples"),
        )
    )


def _islands(rows: DataFrame, at: str, keys: tuple[str, ...], objectives: Objectives) -> DataFrame:
    """Rows numbered by island: a new one begins after a whole window without any."""
    in_order = Window.partitionBy(*keys).orderBy(at)
    before = F.lag(at).over(in_order)
    begins = before.isNull() | (F.col(at) - before > objectives.window_ms)
    marked = rows.withColumn("begins", begins.cast("int"))
    return marked.withColumn("island", F.sum("begins").over(in_order))


def _flows(cases: DataFrame, objectives: Objectives) -> DataFrame:
    """By window: how many more deliveries wait for acceptance at its end than at its start."""
    came = window_of(F.col("sent_at"), objectives)
    went = window_of(F.least("accepted_at", "dead_at"), objectives)
    waited = cases.where("to_node is not null").withColumns({"came": came, "went": went})
    waited = waited.where("went is null or went > came")
    moves = F.array(
        F.struct(F.col("came").alias("w"), F.lit(1).alias("by")),
        F.struct(F.col("went").alias("w"), F.lit(-1).alias("by")),
    )
    return (
        waited.select("to_node", "to_agent", F.explode(moves).alias("move"))
        .where("move.w is not null")
        .groupBy("to_node", "to_agent", F.col("move.w").alias("w"))
        .agg(F.sum("move.by").alias("net"))
    )


def _backlogs(cases: DataFrame, silent: DataFrame, as_of: int, objectives: Objectives) -> DataFrame:
    """More and more waits for an agent; where its whole node is silent, for that node."""
    step = objectives.window_ms
    growing = _flows(cases, objectives).where("net > 0")
    in_order = Window.partitionBy("to_node", "to_agent").orderBy("w")
    run = F.col("w") - F.row_number().over(in_order) * step
    least = objectives.backlog // objectives.window + 1
    runs = (
        growing.withColumn("run", run)
        .groupBy("to_node", "to_agent", "run")
        .agg(
            F.min("w").alias("from"),
            (F.max("w") + step).alias("until"),
            F.count("*").alias("windows"),
            F.sum("net").alias("waiting"),
        )
        .where((F.col("windows") >= least) & (F.col("waiting") >= objectives.backlog_least))
    )
    rows = _with_cases(runs, cases, as_of)
    quiet = silent.select(
        F.col("node").alias("silent"),
        F.col("started_at").alias("since"),
        F.coalesce("ended_at", F.lit(as_of)).alias("till"),
    )
    apart = rows.join(
        F.broadcast(quiet),
        (F.col("to_node") == F.col("silent"))
        & (F.col("from") < F.col("till"))
        & (F.col("until") > F.col("since")),
        "left",
    )
    by_agent = apart.where("silent is null").groupBy("to_node", "to_agent", "run").agg(*_waiting())
    by_node = apart.where("silent is not null").groupBy("to_node", "since").agg(*_waiting())
    both = by_agent.drop("run").unionByName(by_node.drop("since").withColumn("to_agent", _none()))
    sentence = F.format_string(
        f"mail for %s piled up for more than {objectives.backlog} s: %d deliveries waited",
        F.coalesce("to_agent", "to_node"),
        "count",
    )
    return _incident(
        both.withColumn("capability_id", _none()), "backlog", F.col("to_node"), sentence
    )


def _with_cases(runs: DataFrame, cases: DataFrame, as_of: int) -> DataFrame:
    """Each delivery that was waiting when the run ended."""
    left = F.least("accepted_at", "dead_at")
    waited = cases.select(
        F.col("to_node").alias("n"),
        F.col("to_agent").alias("a"),
        "corr_id",
        "sent_at",
        left.alias("left_at"),
    )
    inside = (
        (F.col("n") == F.col("to_node"))
        & (F.col("a") == F.col("to_agent"))
        & (F.col("sent_at") < F.col("until"))
        & (F.coalesce("left_at", F.lit(as_of + 1)) >= F.col("until"))
    )
    return waited.join(F.broadcast(runs), inside)


def _waiting() -> list[Column]:
    return [
        F.min("sent_at").alias("started_at"),
        F.when(F.count("left_at") == F.count("*"), F.max("left_at")).alias("ended_at"),
        F.count("*").alias("count"),
        samples().alias("samples"),
    ]


def _silent(cases: DataFrame, activity: DataFrame, as_of: int, objectives: Objectives) -> DataFrame:
    """Nodes that wrote nothing for long while mail was waiting for them."""
    in_order = Window.partitionBy("node").orderBy("window_start")
    windows = activity.groupBy("node", "window_start").agg(
        F.min("first_at").alias("first_at"), F.max("last_at").alias("last_at")
    )
    gaps = windows.select(
        "node", F.col("last_at").alias("since"), F.lead("first_at").over(in_order).alias("back_at")
    ).where(F.coalesce("back_at", F.lit(as_of)) - F.col("since") > objectives.silence * 1000)
    waits = cases.select(
        "to_node", "corr_id", "sent_at", F.least("accepted_at", "dead_at").alias("left_at")
    )
    waited = (
        (F.col("to_node") == F.col("node"))
        & (F.col("sent_at") > F.col("since"))
        & (F.col("sent_at") < F.coalesce("back_at", F.lit(as_of)))
        & (F.col("left_at").isNull() | (F.col("left_at") >= F.col("back_at")))
    )
    rows = (
        waits.join(F.broadcast(gaps), waited)
        .groupBy("node", "since", "back_at")
        .agg(F.count("*").alias("count"), samples().alias("samples"))
    )
    rows = rows.select(
        "node",
        F.col("since").alias("started_at"),
        F.col("back_at").alias("ended_at"),
        "count",
        "samples",
        _none().alias("to_agent"),
        _none().alias("capability_id"),
    )
    sentence = F.format_string(
        f"%s wrote nothing for more than {objectives.silence} s while %d deliveries waited for it",
        "node",
        "count",
    )
    return _incident(rows, "silent_node", F.col("node"), sentence)


def _incident(rows: DataFrame, name: str, node: Column, sentence: Column) -> DataFrame:
    subject = (node, F.col("to_agent"), F.col("capability_id"), F.col("started_at"))
    return rows.select(
        identity(F.lit(name), *subject).alias("incident_id"),
        F.lit(name).alias("class"),
        node.alias("node"),
        F.col("to_agent").alias("agent"),
        "capability_id",
        "started_at",
        "ended_at",
        "count",
        F.slice("samples", 1, SAMPLES).alias("samples"),
        sentence.alias("sentence"),
    )


def _none() -> Column:
    return F.lit(None).cast("string")
