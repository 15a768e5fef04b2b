"""Facts into deliveries, by the state machine of the protocol.

A *leg* is what is known of one delivery and one node: was it asked, did it accept, process,
reply. Legs merge: each value is the earliest, the latest or the sum of its parts, so a delivery
is the same however its events were cut into batches. A receipt counts only if the event was
routed to the node that wrote it, and which nodes those are may become known after the receipt.
Most deliveries have one leg that says nothing the delivery does not say; it is not stored.

Rows are sorted once, by event id, and both aggregations go along that order. An id begins with
the time it was drawn at, so the rows of an hour follow each other, and are written in one go.

    emitted ──retry──▶ retry_pending
       └──────┬─────────────┘
         accepted ──▶ processed | replied          dead_letter (amended if answered all the same)
"""

from collections.abc import Callable
from functools import reduce
from operator import and_
from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from gatepost.pipeline.tables.facts import What, facts, hour_of
from gatepost.pipeline.tables.schemas import DELIVERIES, LEG

# `part` follows from the id; Spark keeps rows where they are if it is part of the key.
_KEY = ("event_id", "part", "node")
_LEG_KEY = (*_KEY, "peer")

_LEG = (
    *("routed_at", "last", "accepted_at", "accepts", "refused", "processed", "processes"),
    *("replied_at", "dead", "confirmed_at", "withdrawn_at", "eta_at", "completed_at"),
    *("failed", "progress", "cancelled_at"),
)

# A message as it is aggregated, from what a delivery shows of it.
_MESSAGE = (
    *("attempt", "sent_at", "kind", "from_agent", "to_agent", "corr_id", "pair_seq"),
    *("expires_at", "size", "task"),
)


# How many bytes of an id are the same for what one task shall write: with three a task has
# whole stretches of 4.7 hours, and with four of a minute, where all of it is a few hours.
LONG, SHORT = 3, 4
LONG_HOURS = 4.66


def deliveries(
    events: DataFrame, partitions: int, stored: DataFrame | None = None, stretch: int = SHORT
) -> DataFrame:
    """The deliveries these events are about, together with what was stored about them before.

    They come in the order of their ids; those of an hour are in few partitions.
    """
    part = F.hash(F.substring("event_id", 1, stretch))
    told = facts(events).withColumn("part", part)
    if stored is None:
        legs = _legs(_arranged(told, partitions))
    else:
        both = _single(told).unionByName(_unfolded(stored.withColumn("part", part)))
        legs = _merged(_arranged(both, partitions))
    return _judged(_joined(legs))


def touched_hours(events: DataFrame) -> list[int]:
    """The hours these events say something about: few, however many the events are."""
    hours = facts(events).select(hour_of(F.col("event_id")).alias("hour")).distinct().collect()
    return sorted(row.hour for row in hours)


def _arranged(rows: DataFrame, partitions: int) -> DataFrame:
    return rows.repartition(partitions, "part").sortWithinPartitions(*_LEG_KEY)


class _Part(NamedTuple):
    """A value of a leg: what one fact says of it, and how two such values make one."""

    told: Column
    merge: Callable[[Column], Column]


def _parts() -> dict[str, _Part]:
    at, text = F.col("at"), F.col("text")

    def only(what: What, value: Column) -> Column:
        return F.when(F.col("what") == int(what), value)

    def first(what: What, *more: Column) -> _Part:
        return _Part(only(what, F.struct(at, *more) if more else at), F.min)

    def times(what: What) -> _Part:
        return _Part((F.col("what") == int(what)).cast("bigint"), F.sum)

    attempt = F.struct("attempt", text.alias("why"))
    return {
        "message": _Part(F.col("message"), F.min),
        "routed_at": first(What.SENT),
        "last": _Part(only(What.SENT, attempt), F.max),
        "accepted_at": first(What.ACCEPTED),
        "accepts": times(What.ACCEPTED),
        "refused": first(What.REFUSED, text.alias("reason")),
        "processed": first(What.PROCESSED, text.alias("outcome")),
        "processes": times(What.PROCESSED),
        "replied_at": first(What.REPLIED),
        "dead": first(What.DEAD, text.alias("reason")),
        "confirmed_at": first(What.CONFIRMED),
        "withdrawn_at": first(What.WITHDRAWN),
        "eta_at": _Part(F.col("eta_at"), F.min),
        "completed_at": first(What.COMPLETED),
        "failed": first(What.FAILED, text.alias("class")),
        "progress": _Part(F.col("progress"), F.max),
        "cancelled_at": first(What.CANCELLED),
    }


def _legs(rows: DataFrame) -> DataFrame:
    """Facts into legs."""
    parts = _parts().items()
    return rows.groupBy(*_LEG_KEY).agg(*(p.merge(p.told).alias(name) for name, p in parts))


def _single(rows: DataFrame) -> DataFrame:
    """Each fact as a leg of its own, to be merged."""
    parts = _parts().items()
    return rows.select(*_LEG_KEY, *(part.told.alias(name) for name, part in parts))


def _merged(legs: DataFrame) -> DataFrame:
    """Parts of a leg into one."""
    parts = _parts().items()
    return legs.groupBy(*_LEG_KEY).agg(*(p.merge(F.col(name)).alias(name) for name, p in parts))


def _unfolded(stored: DataFrame) -> DataFrame:
    """Stored deliveries back into legs."""
    message = F.when(F.col("kind").isNotNull(), F.struct(*(F.col(f"{name}") for name in _MESSAGE)))
    rows = stored.withColumn("attempt", F.lit(1)).select(
        *_KEY, message.alias("message"), F.explode(legs()).alias("leg")
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
        ((F.count("*") == 1) & F.bool_and(asked & _is_plain())).alias("plain"),
    )


def _is_plain() -> Column:
    """Whether the delivery will say all that this leg says."""
    quiet = reduce(and_, (F.col(name).isNull() for name in _LEG if name not in _said()))
    once = (F.col("accepts") <= 1) & (F.col("processes") <= 1)
    first = F.col("routed_at") == F.col("message.sent_at")
    return quiet & once & F.coalesce(first, F.lit(False))


def _said() -> dict[str, Column | str]:
    """What a delivery says of its only leg."""
    return {
        "routed_at": "sent_at",
        "last": F.struct("attempts", "decision"),
        "accepted_at": "accepted_at",
        "accepts": F.col("accepted_at").isNotNull().cast("bigint"),
        "processed": F.when(F.col("processed_at").isNotNull(), F.struct("processed_at", "outcome")),
        "processes": F.col("processed_at").isNotNull().cast("bigint"),
        "replied_at": "replied_at",
    }


def legs() -> Column:
    """The legs of a delivery, also if its only one was not stored."""
    said = _said()
    only = F.struct("to_node", *(said.get(name, F.lit(None)) for name in _LEG))
    return F.coalesce("legs", F.array(only.cast(LEG)))


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
        hour_of(F.col("event_id")).alias("hour"),
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
        *("strangers", "turns"),
        F.when(~F.col("plain"), F.col("legs")).alias("legs"),
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
