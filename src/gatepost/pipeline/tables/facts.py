"""Events into facts: what one event says about one delivery.

A delivery is known by its sender's node and its event id. Most events say one thing about one
delivery; a reply or a cancellation opens its own and says something about another one.
"""

from enum import IntEnum

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

COLUMNS = (
    *("node", "incarnation", "seq", "event_id", "kind", "source_agent", "to_node", "to_agent"),
    *("pair_seq", "corr_id", "ref_id", "created_at", "expires_at", "attempt", "payload_size"),
    *("blob_size", "status", "outcome", "reason", "eta_at", "eta_seconds", "signal", "progress"),
    *("capability_id", "capability_version", "delegation_version", "executor_version"),
    *("task_type", "failure_class", "route_decision"),
)
"""What the transforms read of an event; the rest stays on disk."""


class What(IntEnum):
    SENT = 0
    ACCEPTED = 1
    REFUSED = 2
    PROCESSED = 3
    REPLIED = 4
    DEAD = 5
    CONFIRMED = 6
    WITHDRAWN = 7
    PROMISED = 8
    PROGRESSED = 9
    COMPLETED = 10
    FAILED = 11
    CANCELLED = 12


_BY_STATUS = {
    "accepted": What.ACCEPTED,
    "processed": What.PROCESSED,
    "refused": What.REFUSED,
}
_BY_SIGNAL = {"confirm": What.CONFIRMED, "withdraw": What.WITHDRAWN}
_BY_KIND = {
    "dead_letter": What.DEAD,
    "task_accept": What.PROMISED,
    "task_update": What.PROGRESSED,
    "task_complete": What.COMPLETED,
    "task_failed": What.FAILED,
}
_TRACKED = ("message", "reply", "task_create", "task_cancel")
_ABOUT_OWN = ("dead_letter", "signal", "task_cancel")


def hour_of(id: Column) -> Column:
    """The hour in which an event id was drawn, counted from 1970."""
    millis = F.conv(F.hex(F.substring(id, 1, 6)), 16, 10).cast("bigint")
    return F.floor(millis / F.lit(3_600_000)).cast("bigint")


def facts(events: DataFrame) -> DataFrame:
    """One row per thing said: about whom, by or to which peer, what, when."""
    tracked = F.col("kind").isin(*_TRACKED)
    twice = F.col("kind").isin("reply", "task_cancel") & F.col("ref_id").isNotNull()
    parts = F.when(twice, F.array(F.lit(True), F.lit(False))).otherwise(F.array(tracked))
    told = events.withColumn("opens", F.explode(parts))
    opens = F.col("opens")
    own = opens | F.col("kind").isin(*_ABOUT_OWN)
    # An old receipt may not say whom it is for; then it is for an agent of its own node.
    to_node = F.coalesce("to_node", F.when(own, F.lit("")).otherwise(F.col("node")))
    return told.select(
        F.when(opens, F.col("event_id")).otherwise(F.col("ref_id")).alias("event_id"),
        F.when(own, F.col("node")).otherwise(to_node).alias("node"),
        F.when(own, to_node).otherwise(F.col("node")).alias("peer"),
        F.when(opens, F.lit(int(What.SENT))).otherwise(_what()).cast("tinyint").alias("what"),
        F.col("created_at").alias("at"),
        "attempt",
        F.coalesce("outcome", "reason", "failure_class", "route_decision").alias("text"),
        _eta().alias("eta_at"),
        "progress",
        F.when(opens, _message()).alias("message"),
    ).where("what is not null and event_id is not null")


def _what() -> Column:
    what = F.when(F.col("kind") == "ack", _chosen(F.col("status"), _BY_STATUS))
    what = what.when(F.col("kind") == "signal", _chosen(F.col("signal"), _BY_SIGNAL))
    what = what.when(F.col("kind") == "reply", F.lit(int(What.REPLIED)))
    what = what.when(F.col("kind") == "task_cancel", F.lit(int(What.CANCELLED)))
    return what.otherwise(_chosen(F.col("kind"), _BY_KIND))


def _chosen(value: Column, names: dict[str, What]) -> Column:
    chosen = F.when(F.lit(False), F.lit(0))
    for name, what in names.items():
        chosen = chosen.when(value == name, F.lit(int(what)))
    return chosen


def _eta() -> Column:
    promised = F.col("created_at") + F.col("eta_seconds") * 1000
    return F.when(~F.col("opens"), F.coalesce(F.col("eta_at"), promised))


def _message() -> Column:
    """What every attempt of a message says, the first attempt first."""
    return F.struct(
        "attempt",
        F.col("created_at").alias("sent_at"),
        "kind",
        F.col("source_agent").alias("from_agent"),
        "to_agent",
        "corr_id",
        "pair_seq",
        "expires_at",
        F.coalesce(F.col("blob_size"), F.col("payload_size").cast("bigint")).alias("size"),
        F.when(
            F.col("kind") == "task_create",
            F.struct(
                "capability_id",
                "capability_version",
                "delegation_version",
                "executor_version",
                "task_type",
            ),
        ).alias("task"),
    )
