"""Mail without order: several consumers share one sender's work, and nothing waits for it."""

import pytest

from gatepost.mailbox import MailboxPolicy, sweep
from gatepost.mailbox.leases import format_lease_handle, parse_lease_handle
from tests.mailbox.harness import MailboxHarness, codes, ids


@pytest.fixture
def harness() -> MailboxHarness:
    return MailboxHarness()


def test_several_consumers_share_the_work_of_one_sender(harness: MailboxHarness) -> None:
    harness.send("a", "b", "c", ordered=False)
    assert [ids(harness.dequeue(consumer=name)) for name in ("c1", "c2", "c3")] == [
        ["a"], ["b"], ["c"]
    ]  # fmt: skip


def test_ordered_mail_of_one_sender_has_one_consumer(harness: MailboxHarness) -> None:
    harness.send("a", "b")
    assert ids(harness.dequeue(consumer="c1")) == ["a"]
    assert harness.take() == []


def test_unordered_mail_does_not_wait_for_ordered_mail_nor_is_it_waited_for(
    harness: MailboxHarness,
) -> None:
    harness.send("a", "b")
    harness.send("x", "y", ordered=False)
    first = harness.dequeue()
    assert ids(first) == ["a"]
    assert harness.take(5) == ["x", "y"], "`b` waits behind `a`"
    harness.ack(*first)
    assert harness.take(5) == ["b"]


def test_messages_of_one_take_are_settled_in_any_order(harness: MailboxHarness) -> None:
    harness.send("a", "b", "c", ordered=False)
    a, b, c = harness.dequeue(3)
    assert codes(harness.ack(c)) == codes(harness.nack(b)) == codes(harness.ack(a)) == []
    assert harness.states() == {"a": "acked", "b": "nacked", "c": "acked"}
    assert codes(harness.ack(b)) == ["stale_receipt"]
    harness.tick(5_000)
    assert harness.take(5) == ["b"]


def test_an_ack_of_some_messages_leaves_those_between_them_leased(harness: MailboxHarness) -> None:
    harness.send("a", "b", "c", "d", "e", ordered=False)
    a, b, c, d, e = harness.dequeue(5)
    settled = harness.ack(e, a, b)
    assert (settled.settled, codes(settled)) == (3, [])
    states = {"a": "acked", "b": "acked", "c": "in_flight", "d": "in_flight", "e": "acked"}
    assert harness.states() == states
    again = harness.ack(a, b, c, d, e)
    assert (again.settled, codes(again)) == (2, []), "what was acked before counts no second time"
    assert set(harness.states().values()) == {"acked"}


def test_an_ack_of_a_run_spares_messages_that_another_consumer_leased_since(
    harness: MailboxHarness,
) -> None:
    harness.send("a", "b", "c", ordered=False)
    a, b, c = harness.dequeue(3)
    harness.nack(b)
    harness.tick(5_000)
    (again,) = harness.dequeue()
    assert codes(harness.ack(a, b, c)) == ["stale_receipt"]
    assert harness.states() == {"a": "acked", "b": "in_flight", "c": "acked"}
    assert codes(harness.ack(again)) == []


def test_a_consumer_cannot_tell_the_lease_handles_of_another_from_its_own(
    harness: MailboxHarness,
) -> None:
    harness.send("a", "b", ordered=False)
    mine, other = harness.dequeue(consumer="c1")[0], harness.dequeue(consumer="c2")[0]
    (mail, lease), (next_mail, _) = map(parse_lease_handle, (mine.receipt, other.receipt))
    guess = format_lease_handle(next_mail, lease + next_mail - mail)
    forged = harness.do(lambda tx: harness.dispatcher.ack(tx, "bob", [mine.receipt, guess], []))
    assert codes(forged) == ["stale_receipt"]
    assert harness.states() == {"a": "acked", "b": "in_flight"}


def test_a_message_that_backs_off_holds_nobody_up(harness: MailboxHarness) -> None:
    harness.send("a", "b", ordered=False)
    harness.nack(*harness.dequeue())
    assert harness.take() == ["b"]
    assert harness.writer.idle_timeout() == 5.0


def test_each_lease_runs_out_on_its_own(harness: MailboxHarness) -> None:
    harness.send("a", "b", ordered=False)
    a, b = harness.dequeue(2)
    harness.tick(20_000)
    assert harness.extend(b) == []
    harness.tick(10_000)
    assert harness.states() == {"a": "nacked", "b": "in_flight"}
    assert codes(harness.ack(a)) == ["stale_receipt"]
    assert codes(harness.ack(b)) == []


def test_a_consumer_that_comes_back_gets_all_it_holds(harness: MailboxHarness) -> None:
    harness.send("a", "b", "c", ordered=False)
    harness.dequeue(2, consumer="c1")
    assert ids(harness.dequeue(5, consumer="c1")) == ["a", "b"]


def test_a_consumer_that_leaves_returns_its_unordered_mail(harness: MailboxHarness) -> None:
    harness.send("a", "b", ordered=False)
    waiter, got = harness.waiter(credit=2)
    assert ids(got) == ["a", "b"]
    harness.do(lambda tx: harness.dispatcher.release_waiter(tx, waiter))
    assert [(m.msg_id, m.attempt) for m in harness.dequeue(5)] == [("a", 0), ("b", 0)]


def test_waiters_get_unordered_mail_by_turns(harness: MailboxHarness) -> None:
    _, first = harness.waiter(credit=1, consumer="c1")
    _, second = harness.waiter(credit=1, consumer="c2")
    harness.send("a", "b", ordered=False)
    assert (ids(first), ids(second)) == (["a"], ["b"])


def test_the_oldest_and_the_urgent_go_first(harness: MailboxHarness) -> None:
    harness.send("late", by="zoe", at=harness.clock.now(), ordered=False)
    harness.send("old", by="zoe", at=harness.clock.now() - 9_000, ordered=False)
    harness.send("urgent", by="zoe", ordered=False, priority=60)
    harness.send("fifo", by="ann", at=harness.clock.now() - 5_000)
    assert harness.take(5) == ["urgent", "old", "fifo", "late"]


@pytest.mark.parametrize("ordered", [True, False])
def test_nobody_gets_ahead_of_all_others_by_a_date_in_the_past(
    harness: MailboxHarness, ordered: bool
) -> None:
    harness.send("honest", by="zoe", at=harness.clock.now(), ordered=ordered)
    harness.clock.advance(3_600_001)
    harness.send("backdated", by="eve", at=0, ordered=ordered)
    assert harness.take(5) == ["honest", "backdated"]


def test_a_mailbox_may_be_unordered_and_a_message_may_still_ask_for_order(
    harness: MailboxHarness,
) -> None:
    harness.send("before", "behind")
    harness.do(lambda tx: harness.dispatcher.set_order(tx, "bob", "none"))
    harness.send("free")
    harness.send("again", ordered=True)
    harness.dequeue()
    assert harness.take(5) == ["free"], "`behind` and `again` wait for `before`"
    harness.do(lambda tx: harness.dispatcher.set_order(tx, "bob", "fifo"))
    harness.send("last")
    assert harness.take(5) == []


def test_unordered_mail_expires_without_a_gap(harness: MailboxHarness) -> None:
    harness.send("a", ordered=False, ttl=1_000, meta=b"{}")
    harness.send("b", ordered=False)
    harness.tick(1_000)
    assert harness.states() == {"a": "expired", "b": "pending"}
    assert [closed.outcome for closed in harness.closed] == ["expired"]
    assert harness.take(5) == ["b"]


def test_purge_peek_and_counts_know_unordered_mail(harness: MailboxHarness) -> None:
    harness.send("a", "b", "c", ordered=False)
    harness.send("d")
    harness.dequeue()
    assert [(row.msg_id, row.state, row.order) for row in harness.peek()] == [
        ("a", "in_flight", "none"), ("b", "pending", "none"), ("c", "pending", "none"),
        ("d", "pending", "fifo"),
    ]  # fmt: skip
    assert [row.msg_id for row in harness.peek(2, after="b")] == ["c", "d"]
    assert harness.counts() == (3, 1, 0)
    assert harness.purge(2) == 2
    assert harness.purge() == 1
    assert harness.counts() == (0, 1, 3)
    orders = {letter.msg_id: letter.order for letter in harness.dead()}
    assert orders == {"b": "none", "c": "none", "d": "fifo"}


def test_a_pair_with_unordered_mail_left_is_not_forgotten(harness: MailboxHarness) -> None:
    harness.send("a")
    harness.send("x", ordered=False)
    harness.ack(*harness.dequeue())
    harness.tick(1_000)
    now = harness.clock.now()
    harness.do(lambda tx: sweep.forget_settled_mail(tx, now, now, 10))
    assert harness.take() == ["x"]


def test_a_known_msg_id_is_known_in_either_order(harness: MailboxHarness) -> None:
    assert harness.send("a", ordered=False) == [True]
    assert harness.send("a", ordered=True) == [False]


def test_retries_of_unordered_mail_are_no_longer_though_the_clock_was_set_back() -> None:
    harness = MailboxHarness(MailboxPolicy(base_backoff=5_000))
    harness.send("a", ordered=False)
    harness.nack(*harness.dequeue())
    harness.clock.set(harness.clock.now() - 3_600_000)
    harness.tick()
    assert harness.writer.idle_timeout() == 5.0
    harness.tick(5_000)
    assert harness.take() == ["a"]


@pytest.mark.parametrize("credits", [(64, 64, 64, 64), (10, 64, 64, 2000)])
def test_waiting_consumers_share_what_arrives_at_once(
    harness: MailboxHarness, credits: tuple[int, ...]
) -> None:
    got = [harness.waiter(credit, f"c{number}")[1] for number, credit in enumerate(credits)]
    harness.send(*(f"m{number}" for number in range(40)), ordered=False)
    assert [len(each) for each in got] == [10, 10, 10, 10]


def test_a_consumer_with_little_credit_leaves_its_share_to_the_others(
    harness: MailboxHarness,
) -> None:
    got = [harness.waiter(credit, f"c{number}")[1] for number, credit in enumerate((1, 64, 64))]
    harness.send(*(f"m{number}" for number in range(31)), ordered=False)
    assert [len(each) for each in got] == [1, 15, 15]


def test_what_a_small_credit_leaves_over_is_shared_again_in_the_same_group(
    harness: MailboxHarness,
) -> None:
    got = [harness.waiter(credit, f"c{number}")[1] for number, credit in enumerate((2, 30, 30))]
    harness.send(*(f"m{number}" for number in range(40)), ordered=False)
    assert [len(each) for each in got] == [2, 19, 19]


def test_ordered_mail_is_leased_in_whole_runs_beside_a_share(harness: MailboxHarness) -> None:
    got = [harness.waiter(64, name)[1] for name in ("c1", "c2")]
    harness.send(*"abcdef")
    assert sorted(map(len, got)) == [0, 6]
