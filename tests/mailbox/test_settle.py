"""Ending turns: ack, nack, retries, dead letters."""

import pytest

from gatepost.mailbox import MailboxPolicy
from tests.mailbox.post import Post, codes, ids


def test_ack_ends_the_turn() -> None:
    post = Post()
    post.send("a")
    result = post.ack(*post.dequeue())
    assert (result.settled, result.failures) == (1, [])
    assert post.states() == {"a": "acked"}
    assert post.counts() == (0, 0, 0)


def test_ack_of_already_acked_is_a_noop() -> None:
    post = Post()
    post.send("a")
    (message,) = post.dequeue()
    post.ack(message)
    result = post.ack(message)
    assert (result.settled, result.failures) == (0, [])
    assert codes(post.ack_id("a")) == []


def test_ack_twice_in_one_batch_counts_once() -> None:
    post = Post()
    post.send("a", "b")
    a, _ = post.dequeue(2)
    result = post.ack(a, a)
    assert (result.settled, result.failures) == (1, [])


def test_ack_by_msg_id_ends_the_latest_turn() -> None:
    post = Post()
    post.send("a")
    post.dequeue()
    assert post.ack_id("a").settled == 1


def test_ack_of_what_was_never_dequeued_is_wrong_state() -> None:
    post = Post()
    post.send("a")
    assert codes(post.ack_id("a")) == ["wrong_state"]
    assert codes(post.nack_id("a")) == ["wrong_state"]
    assert post.states() == {"a": "pending"}


def test_ack_of_an_unknown_message_fails_alone() -> None:
    post = Post()
    post.send("a")
    post.dequeue()
    result = post.ack_id("nobody", "a")
    assert (result.settled, codes(result)) == (1, ["unknown_message"])
    assert result.failures[0].subject == "nobody"


def test_ack_through_another_mailbox_is_refused() -> None:
    post = Post()
    post.send("a")
    post.send("b", to="carol")
    (message,) = post.dequeue()
    assert codes(post.ack(message, mailbox="carol")) == ["unknown_message"]
    assert post.states()["a"] == "in_flight"


def test_out_of_order_ack_refused() -> None:
    post = Post()
    post.send("a", "b", "c")
    _, b, c = post.dequeue(3)
    result = post.ack(b, c)
    assert (result.settled, codes(result)) == (0, ["out_of_order"] * 2)
    assert set(post.states().values()) == {"in_flight"}


def test_ack_of_a_prefix_leaves_the_rest_leased() -> None:
    post = Post()
    post.send("a", "b", "c")
    a, b, c = post.dequeue(3)
    assert post.ack(a, b).settled == 2
    assert post.states() == {"a": "acked", "b": "acked", "c": "in_flight"}
    assert post.ack(c).settled == 1


def test_ack_with_a_gap_ends_what_is_in_order() -> None:
    post = Post()
    post.send("a", "b", "c")
    a, _, c = post.dequeue(3)
    result = post.ack(a, c)
    assert (result.settled, codes(result)) == (1, ["out_of_order"])
    assert result.failures[0].subject == c.receipt


def test_acks_of_several_senders_may_be_mixed() -> None:
    post = Post()
    for n in range(6):
        post.send(f"m{n}", by=f"s{n % 2}")
    assert post.ack(*post.dequeue(6)).settled == 6


def test_forged_receipt_for_mail_that_expired_inside_a_run_ends_nothing_else() -> None:
    post = Post()
    post.send("a", "b", "c")
    post.sql("UPDATE mail SET expires_at = 1 WHERE msg_id = 'b'")
    post.tick(1)
    post.dispatcher._sweep_due_at = 0
    post.tick()
    a, c = post.dequeue(3)
    mail, lease = a.receipt.split(".")
    forged = f"{int(mail, 16) + 1:x}.{lease}"
    result = post.do(lambda tx: post.dispatcher.ack(tx, "bob", [a.receipt, forged], []))
    assert (result.settled, codes(result)) == (1, ["out_of_order"])
    assert post.counts() == (0, 1, 0)
    assert post.nack(c).settled == 1
    assert post.states() == {"a": "acked", "b": "expired", "c": "nacked"}


def test_nack_schedules_a_retry_with_the_attempt_counted() -> None:
    post = Post()
    post.send("a")
    post.nack(*post.dequeue())
    assert post.states() == {"a": "nacked"}
    assert post.counts() == (1, 0, 0)
    post.tick(5_000)
    (again,) = post.dequeue()
    assert (again.msg_id, again.attempt) == ("a", 1)


def test_backoff_is_5_10_20_seconds() -> None:
    post = Post()
    post.send("a")
    (message,) = post.dequeue()
    for seconds in (5, 10, 20):
        post.nack(message)
        post.clock.advance(seconds * 1000 - 1)
        assert post.take() == []
        post.clock.advance(1)
        (message,) = post.dequeue()
    assert message.attempt == 3


def test_four_deliveries_then_dead_letter_counts_four_attempts() -> None:
    post = Post()
    post.send("a")
    attempts = []
    for _ in range(4):
        (message,) = post.dequeue()
        attempts.append(message.attempt)
        post.nack(message, reason="boom")
        post.tick(60_000)
    assert attempts == [0, 1, 2, 3]
    assert post.take() == []
    (letter,) = post.dead()
    assert (letter.msg_id, letter.attempts) == ("a", 4)
    assert letter.reason == "max_retries exhausted: boom"
    assert bytes(letter.payload) == b'"hello"'  # type: ignore[arg-type]


def test_no_retries_means_one_delivery() -> None:
    post = Post(MailboxPolicy(max_retries=0))
    post.send("a")
    post.nack(*post.dequeue())
    assert post.states() == {"a": "dead_letter"}


def test_backoff_of_zero_is_ready_at_once() -> None:
    post = Post(MailboxPolicy(base_backoff=0))
    post.send("a")
    post.nack(*post.dequeue())
    assert post.take() == ["a"]


def test_dead_letter_frees_its_pair() -> None:
    post = Post(MailboxPolicy(max_retries=0))
    post.send("a", "b")
    post.nack(*post.dequeue())
    assert post.take() == ["b"]


def test_nack_releases_those_behind_unharmed() -> None:
    post = Post()
    post.send("a", "b", "c")
    a, *_ = post.dequeue(3)
    post.nack(a)
    assert post.states() == {"a": "nacked", "b": "pending", "c": "pending"}
    post.tick(5_000)
    assert [(m.msg_id, m.attempt) for m in post.dequeue(3)] == [("a", 1), ("b", 0), ("c", 0)]


def test_nack_of_a_later_message_is_out_of_order() -> None:
    post = Post()
    post.send("a", "b")
    _, b = post.dequeue(2)
    assert codes(post.nack(b)) == ["out_of_order"]
    assert set(post.states().values()) == {"in_flight"}


def test_nack_of_the_next_after_a_partial_ack() -> None:
    post = Post()
    post.send("a", "b", "c")
    a, b, _ = post.dequeue(3)
    post.ack(a)
    assert post.nack(b).settled == 1
    assert post.states() == {"a": "acked", "b": "nacked", "c": "pending"}


def test_nack_of_already_dead_lettered_is_a_noop() -> None:
    post = Post(MailboxPolicy(max_retries=0))
    post.send("a")
    (message,) = post.dequeue()
    post.nack(message)
    result = post.nack(message)
    assert (result.settled, result.failures) == (0, [])
    assert codes(post.nack_id("a")) == []


def test_nack_of_a_purged_message_is_a_noop() -> None:
    post = Post()
    post.send("a")
    post.purge()
    assert codes(post.nack_id("a")) == []


def test_nack_of_an_acked_message_is_refused() -> None:
    post = Post()
    post.send("a")
    (message,) = post.dequeue()
    post.ack(message)
    assert codes(post.nack(message)) == ["stale_receipt"]


def test_nack_twice_counts_one_attempt() -> None:
    post = Post()
    post.send("a", "b")
    run = post.dequeue(2)
    assert post.nack(*run).settled == 1
    assert post.nack(*run).settled == 0
    post.tick(5_000)
    assert [m.attempt for m in post.dequeue(2)] == [1, 0]


@pytest.mark.parametrize("settle", ["ack", "nack", "extend"])
def test_stale_receipt_after_redelivery(settle: str) -> None:
    post = Post()
    post.send("a")
    (old,) = post.dequeue()
    post.tick(30_000)
    post.tick(5_000)
    (new,) = post.dequeue()
    if settle == "extend":
        assert post.extend(old) == [old.receipt]
    else:
        result = post.ack(old) if settle == "ack" else post.nack(old)
        assert codes(result) == ["stale_receipt"]
    assert post.ack(new).settled == 1


def test_stale_ack_after_another_turn_completed_does_not_count() -> None:
    post = Post()
    post.send("a")
    (old,) = post.dequeue()
    post.tick(30_000)
    post.tick(5_000)
    post.ack(*post.dequeue())
    assert codes(post.ack(old)) == ["stale_receipt"]


def test_late_ack_counts_while_nobody_noticed_that_it_is_late() -> None:
    """A turn that ended just too late is still the one turn, if no other began."""
    post = Post()
    post.send("a")
    (message,) = post.dequeue()
    post.clock.advance(30_000)
    assert post.ack(message).settled == 1
    post.tick()
    assert post.states() == {"a": "acked"}


def test_tracked_mail_tells_its_end_once() -> None:
    post = Post(MailboxPolicy(max_retries=0))
    post.send("a", "b", meta=b"{}")
    post.send("c")
    a, b, c = post.dequeue(3)
    (closed,) = post.ack(a).closed
    assert (closed.msg_id, closed.outcome, closed.lease_handle) == ("a", "ok", a.receipt)
    (closed,) = post.nack(b, reason="no").closed
    assert (closed.msg_id, closed.outcome, closed.reason) == ("b", "dead_letter", "no")
    assert post.ack(a).closed == []
    assert post.ack(*post.dequeue()).closed == []
    assert post.closed == []
    assert ids([c]) == ["c"]


def test_expired_mail_inside_a_run_is_not_told_twice() -> None:
    post = Post()
    post.send("a", meta=b"{}")
    post.send("b", meta=b"{}", ttl=1_000)
    post.send("c", meta=b"{}")
    post.tick(1_000)
    assert [closed.msg_id for closed in post.closed] == ["b"]
    result = post.ack(*post.dequeue(3))
    assert [closed.msg_id for closed in result.closed] == ["a", "c"]
