"""Deliveries from a handful of events, as the protocol's state machine has them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatepost.pipeline.kernels.facts import Facts
from gatepost.pipeline.kernels.lifecycle import facts_from_deliveries
from tests.pipeline.telling import OK, Event, M, Row, T, event, fold, receipt, sent, told


def made(*events: Event) -> Row:
    rows: list[Row] = fold(told(events)).to_pylist()
    (row,) = [row for row in rows if row["node"] == "a" and row["event_id"] == M]
    return row


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
def test_the_state_follows_from_the_events(state: str, events: list[Event]) -> None:
    assert made(*events)["state"] == state


def test_a_receipt_of_a_node_that_was_not_asked_does_not_count() -> None:
    row = made(sent(), receipt("x", "accepted", 2), receipt("b", "accepted", 5))
    assert (row["accepted_at"], row["to_node"], row["strangers"]) == (T + 5, "b", 1)
    alone = made(sent(), receipt("x", "processed", 2, **OK))
    assert (alone["state"], alone["turns"]) == ("emitted", 0)


def test_a_rerouted_message_is_taken_by_the_node_that_processed_it() -> None:
    row = made(
        sent(),
        receipt("b", "refused", 3, reason="full"),
        sent(4, to="c", attempt=2, route_decision="fallback"),
        receipt("c", "accepted", 6),
        receipt("c", "processed", 9, **OK),
    )
    assert (row["state"], row["to_node"], row["routes"], row["attempts"]) == (
        "processed",
        "c",
        2,
        2,
    )
    assert (row["decision"], row["sent_at"], row["size"]) == ("fallback", T, 7)


def test_a_dead_letter_is_amended_by_what_comes_after() -> None:
    dead = event("a", "dead_letter", 9, ref_id=M, reason="expired", to_node="b")
    row = made(sent(), dead, receipt("b", "processed", 12, **OK))
    assert (row["state"], row["amended"], row["reason"], row["closed"]) == (
        "processed",
        True,
        "expired",
        True,
    )


def test_forwarded_mail_is_known_as_such_in_later_batches_too() -> None:
    events = [sent(origin_id=M[::-1]), sent(20, attempt=2, origin_id=M[::-1])]
    first = fold(told(events))
    again = fold(facts_from_deliveries(first), told([receipt("b", "accepted", 30)]))
    assert [table["forwarded"].to_pylist() for table in (first, again)] == [[True], [True]]
    assert made(sent())["forwarded"] is False


def test_repeated_receipts_are_counted_and_change_nothing() -> None:
    once = [sent(), receipt("b", "accepted", 5), receipt("b", "processed", 9, **OK)]
    row = made(*once, receipt("b", "accepted", 11), receipt("b", "processed", 12, **OK))
    assert (row["duplicates"], row["accepted_at"], row["processed_at"]) == (2, T + 5, T + 9)


def test_a_local_message_lives_in_one_outbox() -> None:
    local = [sent(to="a"), receipt("a", "accepted", 1), receipt("a", "processed", 3, **OK)]
    row = made(*local)
    assert (row["state"], row["to_node"], row["strangers"]) == ("processed", "a", 0)


def test_a_reply_is_a_delivery_of_its_own() -> None:
    reply = event("b", "reply", 8, ref_id=M, to_node="a", to_agent="ann", corr_id="c")
    back = event("a", "ack", 10, ref_id=reply["event_id"], to_node="b", status="accepted")
    rows = fold(told([sent(), reply, back])).to_pylist()
    states = {row["kind"]: (row["node"], row["state"]) for row in rows}
    assert states == {"message": ("a", "replied"), "reply": ("b", "accepted")}


owners = st.sampled_from(("b", "c", "x"))
words = st.sampled_from((None, "ok", "full", "expired"))
about = st.one_of(
    st.builds(lambda to, why: ("a", "sent", {"to": to, "route_decision": why}), owners, words),
    st.builds(lambda why: ("a", "dead_letter", {"reason": why}), words),
    st.builds(lambda to: ("a", "signal", {"signal": "confirm", "to_node": to}), owners),
    st.builds(lambda to: ("a", "task_cancel", {"to_node": to}), owners),
    st.builds(
        lambda node, eta: (node, "ack", {"status": "accepted", "eta_at": eta}),
        owners,
        st.sampled_from((None, T + 9, T + 70)),
    ),
    st.builds(lambda node, why: (node, "ack", {"status": "refused", "reason": why}), owners, words),
    st.builds(
        lambda node, how: (node, "ack", {"status": "processed", "outcome": how}), owners, words
    ),
    st.builds(lambda node: (node, "reply", {"to_agent": "ann"}), owners),
    st.builds(
        lambda node, far: (node, "task_update", {"progress": far}),
        owners,
        st.sampled_from((None, 0.25, 0.5)),
    ),
    st.builds(lambda node: (node, "task_complete", {}), owners),
    st.builds(lambda node, why: (node, "task_failed", {"failure_class": why}), owners, words),
)


@st.composite
def stories(draw: st.DrawFn) -> list[Event]:
    """Whatever may be told about one message, each node's in the order it told it."""
    kind = draw(st.sampled_from(("message", "task_create")))
    events, attempts = [], 0
    for at, (node, what, fields) in enumerate(draw(st.lists(about, max_size=14))):
        if what == "sent":
            attempts += 1
            events.append(sent(at, **fields, attempt=attempts) | {"kind": kind})
        else:
            events.append(event(node, what, at, **({"ref_id": M, "to_node": "a"} | fields)))
    return events


@given(stories(), st.dictionaries(st.sampled_from("abcx"), st.integers(0, 14)))
def test_however_events_are_cut_into_batches_deliveries_are_the_same(
    events: list[Event], cuts: dict[str, int]
) -> None:
    """Receipts may come before their message: a laptop that archives its outbox late."""
    early = [event for event in events if event["created_at"] - T < cuts.get(event["node"], 7)]
    late = [event for event in events if event not in early]
    stored = fold(told(early))
    assert (
        fold(told(late), facts_from_deliveries(stored)).to_pylist()
        == fold(told(events)).to_pylist()
    )


@pytest.mark.parametrize("late", [0, 1])
def test_an_attempt_that_was_set_aside_for_a_while_changes_nothing(late: int) -> None:
    """The sender's clock was set back between two attempts; either may be in a damaged segment."""
    attempts = [sent(9, attempt=2), sent(5, attempt=3)]
    stored = fold(told([attempts[1 - late]]))
    merged = fold(told([attempts[late]]), facts_from_deliveries(stored)).to_pylist()
    assert merged == fold(told(attempts)).to_pylist()
    assert (merged[0]["sent_at"], merged[0]["attempts"]) == (T + 5, 3)


@given(stories(), st.randoms(use_true_random=False))
def test_facts_are_about_what_they_are_in_whatever_order_they_come(
    events: list[Event], random: Any
) -> None:
    shuffled = random.sample(events, len(events))
    assert fold(told(shuffled)).to_pylist() == fold(told(events)).to_pylist()


@given(stories(), st.lists(st.integers(T - 2, T + 16), max_size=3, unique=True))
def test_facts_are_divided_by_when_their_ids_were_drawn(
    events: list[Event], moments: list[int]
) -> None:
    cuts = sorted(moments)
    parts = dict(told(events).split_by_time(cuts))
    rows = [row for part in sorted(parts) for row in fold(parts[part]).to_pylist()]
    assert rows == fold(told(events)).to_pylist()
    for part, mine in parts.items():
        assert all(sum(cut <= at for cut in cuts) == part for at in mine.drawn_times())


def test_blocks_are_read_as_they_were_written() -> None:
    before = told([sent(), receipt("b", "accepted", 5), receipt("b", "processed", 9, **OK)])
    after = Facts.decode(before.encode())
    assert (str(after.told), after.sent, after.words) == (
        str(before.told),
        before.sent,
        before.words,
    )


def test_what_is_about_no_id_says_nothing() -> None:
    nothing = receipt("b", "accepted", 5) | {"ref_id": None}
    short = receipt("b", "accepted", 6) | {"ref_id": b"short"}
    assert made(sent(), nothing, short)["state"] == "emitted"
