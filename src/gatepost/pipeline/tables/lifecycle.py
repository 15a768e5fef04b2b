"""Facts into deliveries, by the state machine of the protocol.

A *leg* is what is known of one delivery and one node: was it asked, did it accept, process,
reply. Legs merge: each value is the earliest, the latest or the sum of its parts, so a delivery
is the same however its events were cut into batches. A receipt counts only if the event was
routed to the node that wrote it, and which nodes those are may become known after the receipt.

Rows are sorted once, by event id, and both aggregations go along that order. All of an hour is
in one partition, because an hour is what is written, and later replaced, as a whole.

    emitted ──retry──▶ retry_pending
       └──────┬─────────────┘
         accepted ──▶ processed | replied          dead_letter (amended if answered all the same)
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from gatepost.pipeline.tables.facts import What, facts
from gatepost.pipeline.tables.schemas import DELIVERIES

_KEY = ("event_id", "hour", "node")
_LEG_KEY = (*_KEY, "peer")

# A message as it is aggregated, from what a delivery shows of it.
_MESSAGE = (
    *("attempt", "sent_at", "kind", "from_agent", "to_agent", "corr_id", "pair_seq"),
    *("expires_at", "size", "task"),
)


def deliveries(events: DataFrame, partitions: int, stored: DataFrame | None = None) -> DataFrame:
    """The deliveries these events are about, together with what was stored about them before."""
    legs = _legs(_arranged(facts(events), partitions))
    if stored is not None:
        legs = _merged(_arranged(legs.unionByName(_unfolded(stored)), partitions))
    return _judged(_joined(legs))


def touched_hours(events: DataFrame) -> list[int]:
    """The hours these events say something about: few, however many the events are."""
    hours = facts(events).select("hour").distinct().collect()
    return sorted(row.hour for row in hours)


def _arranged(rows: DataFrame, partitions: int) -> DataFrame:
    return rows.repartition(partitions, "hour").sortWithinPartitions(*_LEG_KEY)


def _is(what: What) -> Column:
    return F.col("what") == int(what)


def _first(what: What) -> Column:
    return F.min(F.when(_is(what), F.col("at")))


def _first_with_text(what: What, name: str) -> Column:
    return F.min(F.when(_is(what), F.struct("at", F.col("text").alias(name))))


def _legs(rows: DataFrame) -> DataFrame:
    turn = F.struct("at", F.col("number").alias("seq"), F.col("text").alias("outcome"))
    attempt = F.struct(F.col("number").cast("int").alias("attempt"), F.col("text").alias("why"))
    return rows.groupBy(*_LEG_KEY).agg(
        F.min("message").alias("message"),
        _first(What.SENT).alias("routed_at"),
        F.max(F.when(_is(What.SENT), attempt)).alias("last"),
        _first(What.ACCEPTED).alias("accepted_at"),
        F.count_if(_is(What.ACCEPTED)).alias("accepts"),
        _first_with_text(What.REFUSED, "reason").alias("refused"),
        F.min(F.when(_is(What.PROCESSED), turn)).alias("processed"),
        F.count_if(_is(What.PROCESSED)).alias("processes"),
        _first(What.REPLIED).alias("replied_at"),
        _first_with_text(What.DEAD, "reason").alias("dead"),
        _first(What.CONFIRMED).alias("confirmed_at"),
        _first(What.WITHDRAWN).alias("withdrawn_at"),
        F.min("eta_at").alias("eta_at"),
        _first(What.COMPLETED).alias("completed_at"),
        _first_with_text(What.FAILED, "class").alias("failed"),
        F.max("progress").alias("progress"),
        _first(What.CANCELLED).alias("cancelled_at"),
    )


_SUMS = ("accepts", "processes")
_LATEST = ("last", "progress")
_EARLIEST = (
    *("message", "routed_at", "accepted_at", "refused", "processed", "replied_at", "dead"),
    *("confirmed_at", "withdrawn_at", "eta_at", "completed_at", "failed", "cancelled_at"),
)
_LEG = (
    *("routed_at", "last", "accepted_at", "accepts", "refused", "processed", "processes"),
    *("replied_at", "dead", "confirmed_at", "withdrawn_at", "eta_at", "completed_at"),
    *("failed", "progress", "cancelled_at"),
)


def _merged(legs: DataFrame) -> DataFrame:
    """Two halves of a leg into one."""
    return legs.groupBy(*_LEG_KEY).agg(
        *(F.min(name).alias(name) for name in _EARLIEST),
        *(F.max(name).alias(name) for name in _LATEST),
        *(F.sum(name).alias(name) for name in _SUMS),
    )


def _unfolded(stored: DataFrame) -> DataFrame:
    """Stored deliveries back into legs."""
    message = F.when(F.col("kind").isNotNull(), F.struct(*(F.col(f"{name}") for name in _MESSAGE)))
    rows = stored.withColumn("attempt", F.lit(1)).select(
        *_KEY, message.alias("message"), F.explode("legs").alias("leg")
    )
    return rows.select(
        *_KEY, "leg.peer", "message", *(F.col(f"leg.{name}").alias(name) for name in _LEG)
    )


def _joined(legs: DataFrame) -> DataFrame:
    """All legs of a delivery into one row. Only nodes that were asked count."""
    asked = F.col("routed_at").isNotNull() & (F.col("peer") != "")
    answered = F.col("accepted_at").isNotNull() | F.col("processed").isNotNull()

    def by_asked(column: Column) -> Column:
        return F.when(asked, column)

    turn = F.when(F.col("processed").isNotNull(), F.struct("processed", "peer"))
    accept = F.when(F.col("accepted_at").isNotNull(), F.struct("accepted_at", "peer"))
    return legs.groupBy(*_KEY).agg(
        F.min("message").alias("message"),
        F.max(F.struct("last", "peer")).alias("last"),
        F.count_if(asked).cast("int").alias("routes"),
        F.min(by_asked(accept)).alias("accept"),
        F.min(by_asked(turn)).alias("turn"),
        F.min(by_asked(F.col("replied_at"))).alias("replied_at"),
        F.min("dead").alias("dead"),
        F.min(by_asked(F.col("refused"))).alias("refused"),
        F.sum(F.greatest(F.col("accepts") - 1, F.lit(0))).alias("more_accepts"),
        F.sum(F.greatest(F.col("processes") - 1, F.lit(0))).alias("more_processes"),
        F.count_if(~asked & answered).alias("strangers"),
        F.count_if(asked & (F.col("processed.outcome") == "ok")).alias("turns"),
        F.collect_list(F.struct("peer", *_LEG)).alias("legs"),
    )


def _judged(rows: DataFrame) -> DataFrame:
    """The columns of the table, and the state all of that amounts to."""
    at = {name: F.col(name) for name in ("accepted_at", "processed_at", "replied_at", "dead_at")}
    answered = at["processed_at"].isNotNull() | at["replied_at"].isNotNull()
    state = (
        F.when(F.col("kind").isNull(), "orphan")
        .when(at["dead_at"].isNotNull(), "dead_letter")
        .when(at["replied_at"].isNotNull(), "replied")
        .when(at["processed_at"].isNotNull(), "processed")
        .when(at["accepted_at"].isNotNull(), "accepted")
        .when(F.col("attempts") > 1, "retry_pending")
        .otherwise("emitted")
    )
    flat = rows.select(
        *_KEY,
        *(f"message.{name}" for name in _MESSAGE if name != "attempt"),
        F.coalesce("turn.peer", "accept.peer", "last.peer").alias("to_node"),
        F.col("last.last.attempt").alias("attempts"),
        "routes",
        F.col("last.last.why").alias("decision"),
        F.col("accept.accepted_at").alias("accepted_at"),
        F.col("turn.processed.at").alias("processed_at"),
        "replied_at",
        F.col("dead.at").alias("dead_at"),
        F.col("turn.processed.outcome").alias("outcome"),
        F.coalesce("dead.reason", "refused.reason").alias("reason"),
        (F.col("more_accepts") + F.col("more_processes")).alias("duplicates"),
        *("strangers", "turns", "legs"),
    )
    judged = flat.withColumns(
        {
            "to_node": F.nullif(F.col("to_node"), F.lit("")),
            "state": state,
            "amended": at["dead_at"].isNotNull() & answered,
            "closed": answered | at["dead_at"].isNotNull(),
        }
    )
    return judged.select(*DELIVERIES.names)
