"""Deliveries from a handful of events, as the protocol's state machine has them."""

from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from gatepost.pipeline.tables.lifecycle import deliveries
from gatepost.pipeline.tables.schemas import DELIVERIES, EVENTS
from gatepost.pipeline.tables.tasks import tasks, turns

T = 1_772_490_600_000
Event = dict[str, Any]


def id_at(number: int, at: int = T) -> bytes:
    return at.to_bytes(6, "big") + b"\x70\x00" + number.to_bytes(8, "big")


M = id_at(1)


def event(node: str, kind: str, at: int, **fields: Any) -> Event:
    basic = {"node": node, "kind": kind, "created_at": T + at, "seq": at + 1, "attempt": 1}
    own = {"event_id": id_at(1000 + at, T + at), "incarnation": "i", "source_agent": "ann"}
    return own | {"pair_seq": 0, "payload_size": 0} | basic | fields


def sent(at: int = 0, to: str = "b", **fields: Any) -> Event:
    about = {"event_id": M, "to_node": to, "to_agent": "bob", "corr_id": "c", "pair_seq": 1}
    return event("a", "message", at, payload_size=7, **(about | fields))


def receipt(node: str, status: str, at: int, **fields: Any) -> Event:
    return event(node, "ack", at, ref_id=M, to_node="a", status=status, **fields)


def frame(spark: SparkSession, events: list[Event]) -> DataFrame:
    rows = [tuple(event.get(name) for name in EVENTS.names) for event in events]
    return spark.createDataFrame(rows, EVENTS.ddl)


def made(spark: SparkSession, *events: Event) -> Row:
    rows = deliveries(frame(spark, list(events)), 1).where("node = 'a'").collect()
    (row,) = [row for row in rows if bytes(row.event_id) == M]
    return row


OK = {"outcome": "ok"}
STORIES: list[tuple[str, list[Event]]] = [
    ("emitted", [sent()]),
    ("retry_pending", [sent(), sent(20, attempt=2)]),
    ("accepted", [sent(), receipt("b", "accepted", 5)]),
    ("processed", [sent(), receipt("b", "accepted", 5), receipt("b", "processed", 9, **OK)]),
    (
        "replied",
        [sent(), receipt("b", "accepted", 5), event("b", "reply", 8, ref_id=M, to_node="a")],
    ),
    ("dead_letter", [sent(), event("a", "dead_letter", 9, ref_id=M, reason="expired")]),
    ("orphan", [receipt("b", "accepted", 5)]),
]


@pytest.mark.parametrize(("state", "events"), STORIES, ids=[state for state, _ in STORIES])
def test_the_state_follows_from_the_events(
    spark: SparkSession, state: str, events: list[Event]
) -> None:
    assert made(spark, *events).state == state


def test_a_receipt_of_a_node_that_was_not_asked_does_not_count(spark: SparkSession) -> None:
    row = made(spark, sent(), receipt("x", "accepted", 2), receipt("b", "accepted", 5))
    assert (row.accepted_at, row.to_node, row.strangers) == (T + 5, "b", 1)
    alone = made(spark, sent(), receipt("x", "processed", 2, **OK))
    assert (alone.state, alone.turns) == ("emitted", 0)


def test_a_rerouted_message_is_taken_by_the_node_that_processed_it(spark: SparkSession) -> None:
    row = made(
        spark,
        sent(),
        receipt("b", "refused", 3, reason="full"),
        sent(4, to="c", attempt=2, route_decision="fallback"),
        receipt("c", "accepted", 6),
        receipt("c", "processed", 9, **OK),
    )
    assert (row.state, row.to_node, row.routes, row.attempts) == ("processed", "c", 2, 2)
    assert (row.decision, row.sent_at, row.size) == ("fallback", T, 7)


def test_a_dead_letter_is_amended_by_what_comes_after(spark: SparkSession) -> None:
    dead = event("a", "dead_letter", 9, ref_id=M, reason="expired", to_node="b")
    row = made(spark, sent(), dead, receipt("b", "processed", 12, **OK))
    assert (row.state, row.amended, row.reason, row.closed) == (
        "dead_letter",
        True,
        "expired",
        True,
    )


def test_repeated_receipts_are_counted_and_change_nothing(spark: SparkSession) -> None:
    once = [sent(), receipt("b", "accepted", 5), receipt("b", "processed", 9, **OK)]
    row = made(spark, *once, receipt("b", "accepted", 11), receipt("b", "processed", 12, **OK))
    assert (row.duplicates, row.accepted_at, row.processed_at) == (2, T + 5, T + 9)


def test_a_local_message_lives_in_one_outbox(spark: SparkSession) -> None:
    local = [sent(to="a"), receipt("a", "accepted", 1), receipt("a", "processed", 3, **OK)]
    row = made(spark, *local)
    assert (row.state, row.to_node, row.strangers) == ("processed", "a", 0)


def test_a_reply_is_a_delivery_of_its_own(spark: SparkSession) -> None:
    reply = event("b", "reply", 8, ref_id=M, to_node="a", to_agent="ann", corr_id="c")
    back = event("a", "ack", 10, ref_id=reply["event_id"], to_node="b", status="accepted")
    rows = deliveries(frame(spark, [sent(), reply, back]), 1).collect()
    states = {row.kind: (row.node, row.state) for row in rows}
    assert states == {"message": ("a", "replied"), "reply": ("b", "accepted")}


WHOLE = [
    sent(),
    receipt("x", "accepted", 2),
    sent(4, to="c", attempt=2, route_decision="moved"),
    receipt("c", "accepted", 6),
    receipt("c", "accepted", 7),
    receipt("c", "processed", 9, **OK),
    event("a", "dead_letter", 11, ref_id=M, reason="expired"),
]


def _by(sender: str, events: list[Event]) -> list[Event]:
    """The same story, told about another sender."""
    renamed = [{k: sender if v == "a" else v for k, v in event.items()} for event in events]
    return [event | {"seq": place + 1} for place, event in enumerate(renamed)]


def test_however_events_are_cut_into_batches_deliveries_are_the_same(spark: SparkSession) -> None:
    stories = [(cut, _by(f"a{cut}", WHOLE)) for cut in range(1, len(WHOLE))]
    early = [event for cut, story in stories for event in story[:cut]]
    late = [event for cut, story in stories for event in story[cut:]]
    expected = _sorted(deliveries(frame(spark, early + late), 1).collect())
    assert len(expected) == len(stories)
    # Receipts may come before their message: a laptop that seals its outbox late.
    for first, second in ((early, late), (late, early)):
        stored = deliveries(frame(spark, first), 1).collect()
        again = spark.createDataFrame(stored, DELIVERIES.ddl)
        assert _sorted(deliveries(frame(spark, second), 1, again).collect()) == expected


def _sorted(rows: list[Row]) -> list[dict[str, Any]]:
    plain = [row.asDict(recursive=True) for row in rows]
    for row in plain:
        (row["legs"] or []).sort(key=lambda leg: leg["peer"])
    return sorted(plain, key=lambda row: row["node"])


def test_a_task_tells_what_was_promised_and_kept(spark: SparkSession) -> None:
    about = {"ref_id": M, "to_node": "a"}
    task = sent() | {"kind": "task_create", "capability_id": "ocr", "capability_version": "3"}
    told = [
        receipt("b", "accepted", 5, eta_seconds=60),
        event("b", "task_update", 8, progress=0.5, **about),
        event("b", "task_complete", 90, **about),
        receipt("b", "processed", 95, **OK),
    ]
    (row,) = tasks(deliveries(frame(spark, [task, *told]), 1)).collect()
    assert (row.capability_id, row.state, row.took_ms) == ("ocr", "completed", 90)
    assert (row.eta_at, row.progress) == (T + 5 + 60_000, 0.5)


def test_a_turn_is_a_node_that_processed_an_event(spark: SparkSession) -> None:
    doubled = [sent(), sent(4, to="c", attempt=2), receipt("b", "processed", 9, **OK)]
    frames = deliveries(frame(spark, [*doubled, receipt("c", "processed", 10, **OK)]), 1)
    nodes = sorted((row.turn_node, row.outcome, row.asked) for row in turns(frames).collect())
    assert nodes == [("b", "ok", True), ("c", "ok", True)]
    assert frames.first().turns == 2  # type: ignore[union-attr]
