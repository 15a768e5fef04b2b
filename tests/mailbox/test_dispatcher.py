"""Consumers that wait: turns, credit, coming back, and groups that fail."""

from typing import Any

import apsw
import pytest

from gatepost.errors import StorageFailed
from gatepost.journal import Tx
from gatepost.journal.writer import JobOutcome
from gatepost.mailbox import MailboxPolicy, NewMail, Waiter, waiter_service
from tests.mailbox.harness import MailboxHarness, ids


class FullDisk:
    """A participant on a disk that is full for as long as it says so."""

    full = False

    def before_commit(self, tx: Tx) -> None:
        if self.full:
            raise apsw.FullError("database or disk is full")

    def after_commit(self) -> list[JobOutcome]:
        return []

    def rolled_back(self) -> None:
        """Nothing is kept in memory."""

    def next_due(self, tx: Tx) -> int | None:
        return None


@pytest.fixture
def disk() -> FullDisk:
    return FullDisk()


@pytest.fixture
def frail(disk: FullDisk) -> MailboxHarness:
    harness = MailboxHarness()
    harness.writer._participants += (disk,)
    return harness


def test_waiter_is_served_in_the_very_group_that_brings_the_mail() -> None:
    harness = MailboxHarness()
    _, got = harness.waiter()
    before = harness.writer.group_count
    harness.send("a", "b")
    assert ids(got) == ["a", "b"]
    assert harness.writer.group_count == before + 1
    assert harness.states() == {"a": "in_flight", "b": "in_flight"}


def test_waiter_is_served_what_waited_before_it_came() -> None:
    harness = MailboxHarness()
    harness.send("a")
    assert ids(harness.waiter()[1]) == ["a"]


def test_waiter_never_holds_more_than_its_credit() -> None:
    harness = MailboxHarness()
    waiter, got = harness.waiter(2)
    harness.send("a", "b", "c")
    assert (ids(got), waiter.credit) == (["a", "b"], 0)


def test_ack_gives_credit_and_the_next_mail_in_one_group() -> None:
    harness = MailboxHarness()
    waiter, got = harness.waiter(1)
    harness.send("a", "b")
    harness.ack(got[0])
    assert ids(got) == ["a", "b"]
    assert waiter.credit == 0


def test_nack_gives_back_the_credit_of_the_whole_run() -> None:
    harness = MailboxHarness()
    waiter, got = harness.waiter(3)
    harness.send("a", "b", "c")
    harness.nack(got[0])
    assert waiter.credit == 3
    harness.tick(5_000)
    assert ids(got) == ["a", "b", "c"] * 2


def test_timeout_gives_credit_back() -> None:
    harness = MailboxHarness()
    waiter, got = harness.waiter(1)
    harness.send("a")
    harness.tick(30_000)
    assert waiter.credit == 1
    harness.tick(5_000)
    assert [(m.msg_id, m.attempt) for m in got] == [("a", 0), ("a", 1)]


def test_end_of_a_backoff_wakes_a_waiter() -> None:
    harness = MailboxHarness()
    _, got = harness.waiter(1)
    harness.send("a")
    harness.nack(got[0])
    harness.tick(4_999)
    assert len(got) == 1
    harness.tick(1)
    assert len(got) == 2


def test_expiry_of_a_head_that_backs_off_wakes_a_waiter_for_the_next() -> None:
    harness = MailboxHarness()
    _, got = harness.waiter(1)
    harness.send("a", ttl=1_000)
    harness.send("b")
    harness.nack(got[0])
    harness.tick(1_000)
    assert ids(got) == ["a", "b"]


def test_waiters_take_turns() -> None:
    harness = MailboxHarness()
    _, first = harness.waiter(10)
    _, second = harness.waiter(10)
    for n in range(4):
        harness.send(f"m{n}", by=f"s{n}")
    assert (ids(first), ids(second)) == (["m0", "m2"], ["m1", "m3"])


def test_waiter_without_credit_does_not_hold_up_the_line() -> None:
    harness = MailboxHarness()
    _, first = harness.waiter(1)
    _, second = harness.waiter(1)
    harness.send("a", by="s1")
    harness.send("b", by="s2")
    assert (ids(first), ids(second)) == (["a"], ["b"])


def test_credit_comes_back_to_the_waiter_that_held_the_mail() -> None:
    """Though two connections use one consumer name, or none."""
    harness = MailboxHarness()
    first, got = harness.waiter(1)
    second, other = harness.waiter(5)
    harness.send("a")
    assert (ids(got), ids(other)) == (["a"], [])
    harness.ack(got[0])
    assert (first.credit, second.credit) == (1, 5)


def test_dequeued_mail_gives_no_waiter_credit() -> None:
    harness = MailboxHarness()
    harness.send("a")
    (message,) = harness.dequeue(consumer="c1")
    waiter, _ = harness.waiter(5, consumer="other")
    harness.ack(message)
    assert waiter.credit == 5


def test_once_means_one_handful() -> None:
    harness = MailboxHarness()
    _, got = harness.waiter(5, once=True)
    harness.send("a", "b")
    harness.send("c", by="carol")
    assert ids(got) == ["a", "b"]
    harness.ack(*got)
    assert harness.take() == ["c"]


def test_waiter_that_is_gone_is_never_served() -> None:
    harness = MailboxHarness()
    waiter, got = harness.waiter()
    waiter.gone = True
    harness.send("a")
    assert got == []
    assert harness.take() == ["a"]


def test_consumer_that_leaves_keeps_its_leases_and_finds_them_again() -> None:
    harness = MailboxHarness()
    waiter, got = harness.waiter(2, consumer="c1")
    harness.send("a", "b", "c")
    harness.do(lambda tx: harness.dispatcher.remove_waiter(tx, waiter))
    assert harness.take() == []
    _, again = harness.waiter(2, consumer="c1")
    assert [m.receipt for m in again] == [m.receipt for m in got]


def test_consumer_that_comes_back_with_less_credit_is_not_overfilled() -> None:
    harness = MailboxHarness()
    waiter, _ = harness.waiter(3, consumer="c1")
    harness.send("a", "b", "c", "d")
    harness.do(lambda tx: harness.dispatcher.remove_waiter(tx, waiter))
    back, got = harness.waiter(1, consumer="c1")
    assert (ids(got), back.credit) == (["a", "b", "c"], -2)
    harness.ack(*got[:2])
    assert back.credit == 0
    harness.ack(got[2])
    assert ids(got) == ["a", "b", "c", "d"]


def test_second_connection_of_a_consumer_takes_over_what_the_first_held() -> None:
    harness = MailboxHarness()
    first, _ = harness.waiter(2, consumer="c1")
    harness.send("a", "b")
    second, got = harness.waiter(5, consumer="c1")
    assert (ids(got), first.credit, second.credit) == (["a", "b"], 2, 3)
    harness.ack(*got)
    assert (first.credit, second.credit) == (2, 5)


def test_once_waiter_that_holds_mail_gets_that_and_nothing_fresh() -> None:
    harness = MailboxHarness()
    harness.send("a", by="s1")
    harness.send("b", by="s2")
    harness.dequeue(consumer="c1")
    _, got = harness.waiter(5, consumer="c1", once=True)
    assert ids(got) == ["a"]
    assert harness.states() == {"a": "in_flight", "b": "pending"}


def test_giving_up_returns_the_mail_unharmed() -> None:
    harness = MailboxHarness()
    waiter, _ = harness.waiter(2, consumer="c1")
    harness.send("a", "b")
    harness.do(lambda tx: harness.dispatcher.release_waiter(tx, waiter))
    assert [(m.msg_id, m.attempt) for m in harness.dequeue(2)] == [("a", 0), ("b", 0)]


def test_giving_up_returns_only_what_this_waiter_was_handed() -> None:
    harness = MailboxHarness()
    harness.send("a", by="s1")
    harness.dequeue()
    waiter, got = harness.waiter(1)
    harness.send("b", by="s2")
    assert ids(got) == ["b"]
    harness.do(lambda tx: harness.dispatcher.release_waiter(tx, waiter))
    assert harness.states() == {"a": "in_flight", "b": "pending"}


def test_subscribing_and_giving_up_in_one_group_leaves_nothing_behind() -> None:
    harness = MailboxHarness()
    harness.send("a")
    harness.dequeue(consumer="c1")
    box = harness.do(lambda tx: harness.dispatcher.mailbox_ref(tx, "bob"))
    waiter = Waiter(box, "c1", 5, lambda messages: None)
    harness.group(
        lambda tx: harness.dispatcher.add_waiter(tx, waiter),
        lambda tx: harness.dispatcher.release_waiter(tx, waiter),
    )
    assert harness.states() == {"a": "pending"}
    assert harness.dispatcher._waiters._waiters == set()


def test_giving_up_lets_others_have_it_at_once() -> None:
    harness = MailboxHarness()
    waiter, _ = harness.waiter(1)
    harness.send("a")
    _, got = harness.waiter(1)
    harness.do(lambda tx: harness.dispatcher.release_waiter(tx, waiter))
    assert ids(got) == ["a"]


def test_one_group_hands_out_a_bounded_number_and_the_next_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(waiter_service, "_MAX_SERVED_PER_GROUP", 2)
    harness = MailboxHarness()
    for n in range(5):
        harness.send(f"m{n}", by=f"s{n}")
    _, got = harness.waiter(100)
    assert len(got) == 2
    assert harness.writer._next_due_at == harness.clock.now()
    harness.tick()
    harness.tick()
    assert ids(got) == [f"m{n}" for n in range(5)]


def test_operation_that_fails_leaves_no_waiter_and_no_credit() -> None:
    harness = MailboxHarness()
    box = harness.do(lambda tx: harness.dispatcher.mailbox_ref(tx, "bob"))
    waiter = Waiter(box, "", 5, lambda messages: None)

    def fails(tx: Tx) -> None:
        harness.dispatcher.add_waiter(tx, waiter)
        raise StorageFailed("changed my mind")

    harness.group(fails)
    assert harness.dispatcher._waiters._waiters == set()


def test_failed_group_gives_no_credit_for_acks_that_did_not_happen(
    frail: MailboxHarness, disk: FullDisk
) -> None:
    waiter, got = frail.waiter(1)
    frail.send("a", "b")
    disk.full = True
    with pytest.raises(StorageFailed):
        frail.ack(got[0])
    disk.full = False
    assert (waiter.credit, ids(got)) == (0, ["a"])
    assert frail.states() == {"a": "in_flight", "b": "pending"}
    frail.ack(got[0])
    assert ids(got) == ["a", "b"]


def test_failed_group_serves_nobody_and_the_next_one_does(
    frail: MailboxHarness, disk: FullDisk
) -> None:
    waiter, got = frail.waiter(1)
    disk.full = True
    with pytest.raises(StorageFailed):
        frail.send("a")
    disk.full = False
    assert (got, waiter.credit, frail.states()) == ([], 1, {})
    frail.send("a")
    assert ids(got) == ["a"]


def test_waiter_of_a_failed_group_was_never_there(frail: MailboxHarness, disk: FullDisk) -> None:
    box = frail.do(lambda tx: frail.dispatcher.mailbox_ref(tx, "bob"))
    waiter = Waiter(box, "", 5, lambda messages: None)
    disk.full = True
    with pytest.raises(StorageFailed):
        frail.do(lambda tx: frail.dispatcher.add_waiter(tx, waiter))
    disk.full = False
    assert frail.dispatcher._waiters._waiters == set()


def test_what_time_did_in_a_failed_group_is_done_again(
    frail: MailboxHarness, disk: FullDisk
) -> None:
    waiter, got = frail.waiter(1)
    frail.send("a")
    frail.nack(got[0])
    frail.clock.advance(5_000)
    disk.full = True
    frail.group()
    assert (len(got), waiter.credit) == (1, 1)
    disk.full = False
    frail.group()
    assert ids(got) == ["a", "a"]


def test_restart_keeps_leases_and_consumers_find_them() -> None:
    harness = MailboxHarness()
    harness.send("a", "b")
    (message,) = harness.dequeue(consumer="c1")
    again = MailboxHarness(harness.policy, harness.clock, harness.connection)
    assert [m.receipt for m in again.dequeue(consumer="c1")] == [message.receipt]
    again.ack(message)
    assert again.take() == ["b"]


def test_restart_sees_what_time_did_while_it_was_down() -> None:
    harness = MailboxHarness()
    harness.send("a")
    harness.dequeue()
    harness.send("b", by="carol", ttl=1_000)
    harness.clock.advance(60_000)
    again = MailboxHarness(harness.policy, harness.clock, harness.connection)
    again.tick()
    assert again.states() == {"a": "nacked", "b": "expired"}


def test_mail_about_closed_mail_is_served_in_the_next_group_which_is_due_at_once() -> None:
    harness = MailboxHarness(MailboxPolicy(max_retries=0))
    _, got = harness.waiter(mailbox="alice")

    def tell(tx: Tx, closed: list[Any]) -> None:
        news = [NewMail(f"about-{each.msg_id}", b"1") for each in closed]
        harness.dispatcher.enqueue(tx, "alice", "gateway", news)

    harness.report = tell
    harness.send("a", ttl=1_000, meta=b"{}")
    harness.tick(1_000)
    assert harness.writer.idle_timeout() == 0
    harness.tick()
    assert ids(got) == ["about-a"]


def test_only_waiters_with_credit_stand_in_line() -> None:
    harness = MailboxHarness()
    waiter, got = harness.waiter(1)
    line = harness.dispatcher._waiters
    assert line.waiting_mailboxes() == {waiter.mailbox.id}
    harness.send("a")
    assert line.waiting_mailboxes() == set()
    harness.ack(got[0])
    assert line.waiting_mailboxes() == {waiter.mailbox.id}


def test_consumer_that_subscribes_again_takes_its_own_place() -> None:
    harness = MailboxHarness()
    _, old = harness.waiter(2, consumer="c")
    _, new = harness.waiter(2, consumer="c")
    harness.send("a", by="x")
    harness.send("b", by="y")
    assert (ids(old), ids(new)) == ([], ["a", "b"])


def test_failed_group_leaves_the_old_connection_in_its_place(
    frail: MailboxHarness, disk: FullDisk
) -> None:
    _, old = frail.waiter(2, consumer="c")
    disk.full = True
    with pytest.raises(StorageFailed):
        frail.waiter(2, consumer="c")
    disk.full = False
    frail.tick()
    frail.send("a")
    assert ids(old) == ["a"]
