"""Putting messages in: idempotency, limits, counts."""

import pytest

from gatepost.errors import Unavailable
from gatepost.mailbox import MailboxPolicy
from gatepost.mailbox.enqueue import LAST_PAIR_NUMBER
from gatepost.testing import ManualClock
from tests.mailbox.harness import START, MailboxHarness, ids


def test_enqueue_says_queued_and_how_many_wait() -> None:
    harness = MailboxHarness()
    assert [(a.msg_id, a.queued, a.pending) for a in harness.enqueue("a", "b")] == [
        ("a", True, 1),
        ("b", True, 2),
    ]


def test_duplicate_msg_id_is_a_noop() -> None:
    harness = MailboxHarness()
    harness.send("a")
    assert [(a.queued, a.pending, a.error) for a in harness.enqueue("a")] == [(False, 1, None)]
    assert harness.counts() == (1, 0, 0)


@pytest.mark.parametrize("fate", ["in_flight", "nacked", "acked", "dead_letter", "expired"])
def test_duplicate_is_a_noop_in_whatever_state_the_first_is(fate: str) -> None:
    harness = MailboxHarness()
    harness.send("a", ttl=5_000 if fate == "expired" else None)
    if fate == "dead_letter":
        harness.purge()
    elif fate == "expired":
        harness.tick(5_000)
    else:
        (message,) = harness.dequeue()
        if fate != "in_flight":
            {"nacked": harness.nack_id, "acked": harness.ack_id}[fate](message.msg_id)
    assert harness.send("a") == [False]
    assert harness.states() == {"a": fate}


def test_same_msg_id_with_another_body_is_a_conflict_and_changes_nothing() -> None:
    harness = MailboxHarness()
    harness.send("a", payload=b"1")
    before = (
        harness.sql("SELECT * FROM mail"),
        harness.sql("SELECT * FROM body"),
        harness.counts(),
    )
    (ack,) = harness.enqueue("a", payload=b"2")
    assert ack.error is not None
    assert (ack.queued, ack.error.code, ack.error.subject) == (False, "idempotency_conflict", "a")
    assert before == (
        harness.sql("SELECT * FROM mail"),
        harness.sql("SELECT * FROM body"),
        harness.counts(),
    )


def test_same_msg_id_from_another_sender_is_a_conflict() -> None:
    harness = MailboxHarness()
    harness.send("a", by="alice")
    (ack,) = harness.enqueue("a", by="mallory")
    assert ack.error is not None
    assert ack.error.code == "idempotency_conflict"


def test_same_msg_id_in_another_mailbox_is_another_message() -> None:
    harness = MailboxHarness()
    assert harness.send("a", to="bob") + harness.send("a", to="carol") == [True, True]


def test_batch_with_duplicates_queues_each_new_one_in_order() -> None:
    harness = MailboxHarness()
    harness.send("b")
    assert harness.send("a", "b", "c", "c") == [True, False, True, False]
    assert ids(harness.dequeue(10)) == ["b", "a", "c"]


def test_full_mailbox_refuses_what_is_too_much_and_says_when_to_retry() -> None:
    harness = MailboxHarness(MailboxPolicy(max_pending=2))
    acks = harness.enqueue("a", "b", "c")
    assert [a.queued for a in acks] == [True, True, False]
    assert acks[2].error is not None
    assert (acks[2].error.code, acks[2].error.retry_after) == ("mailbox_full", 5.0)
    assert harness.counts() == (2, 0, 0)


def test_full_mailbox_still_knows_its_duplicates() -> None:
    harness = MailboxHarness(MailboxPolicy(max_pending=1))
    harness.send("a")
    assert [(a.queued, a.error) for a in harness.enqueue("a")] == [(False, None)]


def test_full_mailbox_has_room_again_once_mail_is_taken() -> None:
    harness = MailboxHarness(MailboxPolicy(max_pending=1))
    harness.send("a")
    harness.dequeue()
    assert harness.send("b") == [True]


def test_created_at_defaults_to_now_and_is_told_in_seconds() -> None:
    harness = MailboxHarness()
    harness.send("a")
    harness.send("b", at=12_000)
    assert [m.created_at for m in harness.dequeue(2)] == [START // 1000, 12]


def test_created_at_never_changes() -> None:
    harness = MailboxHarness()
    harness.send("a")
    for _ in range(3):
        (message,) = harness.dequeue()
        assert message.created_at == START // 1000
        harness.nack(message)
        harness.tick(60_000)


def test_clock_at_zero() -> None:
    harness = MailboxHarness(clock=ManualClock(0))
    harness.send("a")
    (message,) = harness.dequeue()
    assert message.created_at == 0
    harness.nack(message)
    assert harness.take() == []
    harness.tick(5_000)
    harness.ack(*harness.dequeue())
    assert harness.states() == {"a": "acked"}


def test_clock_that_goes_back_loses_and_reorders_nothing() -> None:
    harness = MailboxHarness()
    harness.send("a")
    harness.clock.set(START - 3_600_000)
    harness.send("b")
    assert harness.take(10) == ["a", "b"]


def test_pair_without_a_number_left_is_refused_and_changes_nothing() -> None:
    harness = MailboxHarness()
    harness.send("a")
    harness.sql("UPDATE pair SET next_number = ?", (LAST_PAIR_NUMBER,))
    with pytest.raises(Unavailable, match="no pair number left"):
        harness.send("b")
    assert harness.send("c", by="carol") == [True]
    assert sorted(harness.take(10)) == ["a", "c"]
