"""Ending turns: ack, nack, retries, dead letters."""

import pytest

from gatepost.mailbox import MailboxPolicy
from tests.mailbox.harness import MailboxHarness, codes, ids


def test_ack_ends_the_turn() -> None:
    harness = MailboxHarness()
    harness.send("a")
    result = harness.ack(*harness.dequeue())
    assert (result.settled, result.failures) == (1, [])
    assert harness.states() == {"a": "acked"}
    assert harness.counts() == (0, 0, 0)


def test_ack_of_already_acked_is_a_noop() -> None:
    harness = MailboxHarness()
    harness.send("a")
    (message,) = harness.dequeue()
    harness.ack(message)
    result = harness.ack(message)
    assert (result.settled, result.failures) == (0, [])
    assert codes(harness.ack_id("a")) == []


def test_ack_twice_in_one_batch_counts_once() -> None:
    harness = MailboxHarness()
    harness.send("a", "b")
    a, _ = harness.dequeue(2)
    result = harness.ack(a, a)
    assert (result.settled, result.failures) == (1, [])


def test_ack_by_msg_id_ends_the_latest_turn() -> None:
    harness = MailboxHarness()
    harness.send("a")
    harness.dequeue()
    assert harness.ack_id("a").settled == 1


def test_ack_of_what_was_never_dequeued_is_wrong_state() -> None:
    harness = MailboxHarness()
    harness.send("a")
    assert codes(harness.ack_id("a")) == ["wrong_state"]
    assert codes(harness.nack_id("a")) == ["wrong_state"]
    assert harness.states() == {"a": "pending"}


def test_ack_of_an_unknown_message_fails_alone() -> None:
    harness = MailboxHarness()
    harness.send("a")
    harness.dequeue()
    result = harness.ack_id("nobody", "a")
    assert (result.settled, codes(result)) == (1, ["unknown_message"])
    assert result.failures[0].subject == "nobody"


def test_ack_through_another_mailbox_is_refused() -> None:
    harness = MailboxHarness()
    harness.send("a")
    harness.send("b", to="carol")
    (message,) = harness.dequeue()
    assert codes(harness.ack(message, mailbox="carol")) == ["unknown_message"]
    assert harness.states()["a"] == "in_flight"


def test_out_of_order_ack_refused() -> None:
    harness = MailboxHarness()
    harness.send("a", "b", "c")
    _, b, c = harness.dequeue(3)
    result = harness.ack(b, c)
    assert (result.settled, codes(result)) == (0, ["out_of_order"] * 2)
    assert set(harness.states().values()) == {"in_flight"}


def test_ack_of_a_prefix_leaves_the_rest_leased() -> None:
    harness = MailboxHarness()
    harness.send("a", "b", "c")
    a, b, c = harness.dequeue(3)
    assert harness.ack(a, b).settled == 2
    assert harness.states() == {"a": "acked", "b": "acked", "c": "in_flight"}
    assert harness.ack(c).settled == 1


def test_ack_with_a_gap_ends_what_is_in_order() -> None:
    harness = MailboxHarness()
    harness.send("a", "b", "c")
    a, _, c = harness.dequeue(3)
    result = harness.ack(a, c)
    assert (result.settled, codes(result)) == (1, ["out_of_order"])
    assert result.failures[0].subject == c.receipt


def test_acks_of_several_senders_may_be_mixed() -> None:
    harness = MailboxHarness()
    for n in range(6):
        harness.send(f"m{n}", by=f"s{n % 2}")
    assert harness.ack(*harness.dequeue(6)).settled == 6


def test_forged_receipt_for_mail_that_expired_inside_a_run_ends_nothing_else() -> None:
    harness = MailboxHarness()
    harness.send("a", "b", "c")
    harness.sql("UPDATE mail SET expires_at = 1 WHERE msg_id = 'b'")
    harness.tick(1)
    harness.dispatcher._sweep_due_at = 0
    harness.tick()
    a, c = harness.dequeue(3)
    mail, lease = a.receipt.split(".")
    forged = f"{int(mail, 16) + 1:x}.{lease}"
    result = harness.do(lambda tx: harness.dispatcher.ack(tx, "bob", [a.receipt, forged], []))
    assert (result.settled, codes(result)) == (1, ["out_of_order"])
    assert harness.counts() == (0, 1, 0)
    assert harness.nack(c).settled == 1
    assert harness.states() == {"a": "acked", "b": "expired", "c": "nacked"}


def test_nack_schedules_a_retry_with_the_attempt_counted() -> None:
    harness = MailboxHarness()
    harness.send("a")
    harness.nack(*harness.dequeue())
    assert harness.states() == {"a": "nacked"}
    assert harness.counts() == (1, 0, 0)
    harness.tick(5_000)
    (again,) = harness.dequeue()
    assert (again.msg_id, again.attempt) == ("a", 1)


def test_backoff_is_5_10_20_seconds() -> None:
    harness = MailboxHarness()
    harness.send("a")
    (message,) = harness.dequeue()
    for seconds in (5, 10, 20):
        harness.nack(message)
        harness.clock.advance(seconds * 1000 - 1)
        assert harness.take() == []
        harness.clock.advance(1)
        (message,) = harness.dequeue()
    assert message.attempt == 3


def test_four_deliveries_then_dead_letter_counts_four_attempts() -> None:
    harness = MailboxHarness()
    harness.send("a")
    attempts = []
    for _ in range(4):
        (message,) = harness.dequeue()
        attempts.append(message.attempt)
        harness.nack(message, reason="boom")
        harness.tick(60_000)
    assert attempts == [0, 1, 2, 3]
    assert harness.take() == []
    (letter,) = harness.dead()
    assert (letter.msg_id, letter.attempts) == ("a", 4)
    assert letter.reason == "max_retries exhausted: boom"
    assert bytes(letter.payload) == b'"hello"'  # type: ignore[arg-type]


def test_no_retries_means_one_delivery() -> None:
    harness = MailboxHarness(MailboxPolicy(max_retries=0))
    harness.send("a")
    harness.nack(*harness.dequeue())
    assert harness.states() == {"a": "dead_letter"}


def test_backoff_of_zero_is_ready_at_once() -> None:
    harness = MailboxHarness(MailboxPolicy(base_backoff=0))
    harness.send("a")
    harness.nack(*harness.dequeue())
    assert harness.take() == ["a"]


def test_dead_letter_frees_its_pair() -> None:
    harness = MailboxHarness(MailboxPolicy(max_retries=0))
    harness.send("a", "b")
    harness.nack(*harness.dequeue())
    assert harness.take() == ["b"]


def test_nack_releases_those_behind_unharmed() -> None:
    harness = MailboxHarness()
    harness.send("a", "b", "c")
    a, *_ = harness.dequeue(3)
    harness.nack(a)
    assert harness.states() == {"a": "nacked", "b": "pending", "c": "pending"}
    harness.tick(5_000)
    assert [(m.msg_id, m.attempt) for m in harness.dequeue(3)] == [("a", 1), ("b", 0), ("c", 0)]


def test_nack_of_a_later_message_is_out_of_order() -> None:
    harness = MailboxHarness()
    harness.send("a", "b")
    _, b = harness.dequeue(2)
    assert codes(harness.nack(b)) == ["out_of_order"]
    assert set(harness.states().values()) == {"in_flight"}


def test_nack_of_the_next_after_a_partial_ack() -> None:
    harness = MailboxHarness()
    harness.send("a", "b", "c")
    a, b, _ = harness.dequeue(3)
    harness.ack(a)
    assert harness.nack(b).settled == 1
    assert harness.states() == {"a": "acked", "b": "nacked", "c": "pending"}


def test_nack_of_already_dead_lettered_is_a_noop() -> None:
    harness = MailboxHarness(MailboxPolicy(max_retries=0))
    harness.send("a")
    (message,) = harness.dequeue()
    harness.nack(message)
    result = harness.nack(message)
    assert (result.settled, result.failures) == (0, [])
    assert codes(harness.nack_id("a")) == []


def test_nack_of_a_purged_message_is_a_noop() -> None:
    harness = MailboxHarness()
    harness.send("a")
    harness.purge()
    assert codes(harness.nack_id("a")) == []


def test_nack_of_an_acked_message_is_refused() -> None:
    harness = MailboxHarness()
    harness.send("a")
    (message,) = harness.dequeue()
    harness.ack(message)
    assert codes(harness.nack(message)) == ["stale_receipt"]


def test_nack_twice_counts_one_attempt() -> None:
    harness = MailboxHarness()
    harness.send("a", "b")
    run = harness.dequeue(2)
    assert harness.nack(*run).settled == 1
    assert harness.nack(*run).settled == 0
    harness.tick(5_000)
    assert [m.attempt for m in harness.dequeue(2)] == [1, 0]


@pytest.mark.parametrize("settle", ["ack", "nack", "extend"])
def test_stale_receipt_after_redelivery(settle: str) -> None:
    harness = MailboxHarness()
    harness.send("a")
    (old,) = harness.dequeue()
    harness.tick(30_000)
    harness.tick(5_000)
    (new,) = harness.dequeue()
    if settle == "extend":
        assert harness.extend(old) == [old.receipt]
    else:
        result = harness.ack(old) if settle == "ack" else harness.nack(old)
        assert codes(result) == ["stale_receipt"]
    assert harness.ack(new).settled == 1


def test_stale_ack_after_another_turn_completed_does_not_count() -> None:
    harness = MailboxHarness()
    harness.send("a")
    (old,) = harness.dequeue()
    harness.tick(30_000)
    harness.tick(5_000)
    harness.ack(*harness.dequeue())
    assert codes(harness.ack(old)) == ["stale_receipt"]


def test_late_ack_counts_while_nobody_noticed_that_it_is_late() -> None:
    """A turn that ended just too late is still the one turn, if no other began."""
    harness = MailboxHarness()
    harness.send("a")
    (message,) = harness.dequeue()
    harness.clock.advance(30_000)
    assert harness.ack(message).settled == 1
    harness.tick()
    assert harness.states() == {"a": "acked"}


def test_tracked_mail_tells_its_end_once() -> None:
    harness = MailboxHarness(MailboxPolicy(max_retries=0))
    harness.send("a", "b", meta=b"{}")
    harness.send("c")
    a, b, c = harness.dequeue(3)
    (closed,) = harness.ack(a).closed
    assert (closed.msg_id, closed.outcome, closed.lease_handle) == ("a", "ok", a.receipt)
    (closed,) = harness.nack(b, reason="no").closed
    assert (closed.msg_id, closed.outcome, closed.reason) == ("b", "dead_letter", "no")
    assert harness.ack(a).closed == []
    assert harness.ack(*harness.dequeue()).closed == []
    assert harness.closed == []
    assert ids([c]) == ["c"]


def test_expired_mail_inside_a_run_is_not_told_twice() -> None:
    harness = MailboxHarness()
    harness.send("a", meta=b"{}")
    harness.send("b", meta=b"{}", ttl=1_000)
    harness.send("c", meta=b"{}")
    harness.tick(1_000)
    assert [closed.msg_id for closed in harness.closed] == ["b"]
    result = harness.ack(*harness.dequeue(3))
    assert [closed.msg_id for closed in result.closed] == ["a", "c"]


def test_a_rejected_message_is_a_dead_letter_at_once() -> None:
    harness = MailboxHarness()
    harness.send("a", "b", meta=b"{}")
    result = harness.nack(*harness.dequeue(), reason="not for me", retry=False)
    assert [(closed.msg_id, closed.outcome) for closed in result.closed] == [("a", "dead_letter")]
    (letter,) = harness.dead()
    assert (letter.reason, letter.attempts) == ("rejected: not for me", 1)
    assert harness.take() == ["b"]


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("retries", [0, 1, 5])
def test_a_message_may_have_its_own_number_of_retries(retries: int, ordered: bool) -> None:
    harness = MailboxHarness()
    harness.send("a", max_retries=retries, ordered=ordered)
    for _ in range(retries):
        harness.nack(*harness.dequeue())
        harness.tick(3_600_000)
        assert harness.states() == {"a": "nacked"}
    harness.nack(*harness.dequeue())
    (letter,) = harness.dead()
    assert (letter.attempts, letter.max_retries) == (retries + 1, retries)
