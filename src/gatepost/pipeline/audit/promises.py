"""Checks the promises between outboxes with native Spark expressions.

Each check first finds the few keys that break its rule, comparing numbers only, and then fetches
the events that show it.
"""

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from gatepost.archive.room_facts import RoomFacts
from gatepost.pipeline.audit.spans import (
    ArchivedSpan,
    archived_since,
    drawn_at,
    event_position,
    forgotten_incarnation,
    incarnation_number,
    is_archived,
)
from gatepost.pipeline.objectives import Objectives

_TRACKED_KINDS = ("message", "reply", "task_create", "task_cancel")
_INCARNATION_KEY = ("node", "incarnation")
_RECEIPT_KEY = ["about", "owner", "node", "position"]


def check_promises(
    events: DataFrame, facts: list[RoomFacts], known: Sequence[ArchivedSpan], objectives: Objectives
) -> DataFrame:
    """All violations that are visible in the events themselves."""
    receipts = _select_receipts(events, known)
    slack = objectives.archiving * 1000
    found = [
        _oversized_payloads(events, objectives.max_inline),
        _revoked_events(events, facts),
        _doubled_turns(receipts, known),
        _unaccepted_turns(receipts, known, slack),
        _orphaned_receipts(events, receipts, known, slack),
        _overtaken_turns(events, receipts),
    ]
    return reduce(DataFrame.unionByName, found)


def contested_terms(facts: list[RoomFacts]) -> list[tuple[int, list[tuple[int, str]]]]:
    """Terms that more than one node claimed, each with its claims (time, node) in order."""
    claims: dict[int, dict[str, int]] = {}
    for term in (term for known in facts for term in known.terms):
        claims.setdefault(term.counter, {}).setdefault(term.node, term.at)
    return [
        (counter, sorted((at, node) for node, at in nodes.items()))
        for counter, nodes in sorted(claims.items())
        if len(nodes) > 1
    ]


def _to_violations(
    rows: DataFrame, rule: str, detail: Column, event_id: str = "event_id"
) -> DataFrame:
    return rows.select(
        F.lit(rule).alias("rule"),
        *("node", "incarnation", "seq"),
        F.col(event_id).alias("event_id"),
        "corr_id",
        F.col("created_at").alias("at"),
        detail.alias("detail"),
    )


def _select_receipts(events: DataFrame, known: Sequence[ArchivedSpan]) -> DataFrame:
    """Accepted and processed receipts, by the event they are about."""
    rows = events.where("kind = 'ack' and status in ('accepted', 'processed')")
    owner = F.coalesce("to_node", "node")
    return rows.withColumns(
        {"about": F.col("ref_id"), "owner": owner, "position": event_position(known)}
    )


def _oversized_payloads(events: DataFrame, max_inline: int) -> DataFrame:
    detail = F.format_string(f"%d bytes inline, the limit is {max_inline}", "payload_size")
    return _to_violations(
        events.where(F.col("payload_size") > max_inline), "payload_over_limit", detail
    )


def _revoked_events(events: DataFrame, facts: list[RoomFacts]) -> DataFrame:
    last: dict[str, int] = {}
    for revoked in (revoked for known in facts for revoked in known.revocations):
        last[revoked.node] = min(last.get(revoked.node, revoked.last_seq), revoked.last_seq)
    later = F.lit(False)
    for node, seq in last.items():
        later = later | ((F.col("node") == node) & (F.col("seq") > seq))
    detail = F.lit("written after the node was revoked")
    return _to_violations(events.where(later), "revoked_node", detail)


def _doubled_turns(receipts: DataFrame, known: Sequence[ArchivedSpan]) -> DataFrame:
    """Events that two nodes processed, one incarnation with two outcomes, or one node twice.

    A node completes an event twice if its journal was restored and had forgotten the first turn.
    Repeating a receipt is harmless. A restored journal may also give up an event that an earlier
    incarnation completed: that is no second turn.
    """
    ends = receipts.where("status = 'processed'")
    # Numbers only, so that this stays a hash aggregation over all receipts.
    writer = F.xxhash64("node", "incarnation", "outcome")
    keys = (
        ends.groupBy("about", "owner")
        .agg(F.min(writer).alias("one"), F.max(writer).alias("other"))
        .where("one <> other")
        .select("about", "owner")
    )
    about = Window.partitionBy("about", "owner")
    turn = F.when(F.col("outcome") == "ok", F.concat_ws("/", "node", forgotten_incarnation(known)))
    within = F.size(
        F.collect_set("outcome").over(Window.partitionBy("about", "owner", *_INCARNATION_KEY))
    )
    rows = ends.join(F.broadcast(keys), ["about", "owner"]).withColumns(
        {
            "nodes": F.collect_set("node").over(about),
            "turns": F.size(F.collect_set(turn).over(about)),
            "ends": within,
            "rank": F.row_number().over(about.orderBy(F.desc("created_at"), F.desc("seq"))),
        }
    )
    rows = rows.withColumn("ends", F.max("ends").over(about))
    doubled = (F.size("nodes") > 1) | (F.col("turns") > 1) | (F.col("ends") > 1)
    detail = F.format_string("processed on %s", F.array_join(F.sort_array("nodes"), ", "))
    return _to_violations(
        rows.where(doubled & (F.col("rank") == 1)), "doubled_turn", detail, "about"
    )


def _unaccepted_turns(receipts: DataFrame, known: Sequence[ArchivedSpan], slack: int) -> DataFrame:
    """Receipts `processed` without `accepted` before them.

    Events from before the archive begins are left out: their `accepted` may lie there too.
    """
    accepted = F.min(F.when(F.col("status") == "accepted", F.col("position")))
    processed = F.min(F.when(F.col("status") == "processed", F.col("position")))
    keys = (
        receipts.groupBy("about", "owner", "node")
        .agg(accepted.alias("accepted"), processed.alias("position"))
        .where("position is not null and coalesce(accepted > position, true)")
        .where(drawn_at(F.col("about")) >= archived_since(known, F.col("node"), slack))
        .select(*_RECEIPT_KEY)
    )
    rows = receipts.where("status = 'processed'").join(F.broadcast(keys), _RECEIPT_KEY)
    detail = F.lit("processed, but not accepted before")
    return _to_violations(rows, "processed_before_accepted", detail, "about")


def _orphaned_receipts(
    events: DataFrame, receipts: DataFrame, known: Sequence[ArchivedSpan], slack: int
) -> DataFrame:
    """Receipts about events that are missing from the outbox they should be in.

    An event id carries the time it was written, by the clock of the outbox that should hold it. So
    only outboxes that are archived around that time are checked.
    """
    sent = events.where(F.col("kind").isin(*_TRACKED_KINDS)).select(
        F.col("event_id").alias("about"), F.col("node").alias("owner"), F.lit(1).alias("sent")
    )
    mentioned = receipts.select("about", "owner", F.lit(0).alias("sent"))
    keys = (
        sent.unionByName(mentioned)
        .groupBy("about", "owner")
        .agg(F.max("sent").alias("sent"))
        .where("sent = 0")
        .where(is_archived(known, F.col("owner"), drawn_at(F.col("about")), slack))
        .select("about", "owner")
    )
    rows = receipts.join(F.broadcast(keys), ["about", "owner"])
    detail = F.format_string("%s has no such event", "owner")
    return _to_violations(rows, "receipt_without_message", detail, "about")


def _overtaken_turns(events: DataFrame, receipts: DataFrame) -> DataFrame:
    """Turns that ended after a later one of their pair, on the same node.

    The first receipt counts; others repeat it. A restored journal numbers its pairs and its own
    events anew from the backup on. So order is checked within one incarnation of the sender and one
    of the owner.
    """
    sent = events.where(F.col("kind").isin(*_TRACKED_KINDS) & (F.col("attempt") == 1)).where(
        "pair_seq > 0"
    )
    sent = sent.select(
        F.col("event_id").alias("about"),
        F.col("node").alias("owner"),
        F.xxhash64(*_INCARNATION_KEY, "source_agent", "to_agent").alias("pair"),
        "pair_seq",
    )
    turns = (
        receipts.where("status = 'processed' and outcome in ('ok', 'failed')")
        .groupBy("about", "owner", "node")
        .agg(F.min("position").alias("position"))
    )
    in_order = Window.partitionBy("pair", "node", incarnation_number(F.col("position"))).orderBy(
        "position"
    )
    before = in_order.rowsBetween(Window.unboundedPreceding, -1)
    numbered = turns.join(sent, ["about", "owner"])
    keys = (
        numbered.withColumn("highest", F.max("pair_seq").over(before))
        .where("highest > pair_seq")
        .select(*_RECEIPT_KEY, F.col("pair_seq").alias("number"), "highest")
    )
    rows = receipts.join(F.broadcast(keys), _RECEIPT_KEY)
    detail = F.format_string("number %d of its pair ended after number %d", "number", "highest")
    return _to_violations(rows, "fifo_broken", detail, "about")
