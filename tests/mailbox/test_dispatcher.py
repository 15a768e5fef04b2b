"""Consumers that wait: turns, credit, coming back, and groups that fail."""

from typing import Any

import apsw
import pytest

from gatepost.errors import StorageFailed
from gatepost.journal import Tx
from gatepost.journal.writer import JobOutcome
from gatepost.mailbox import MailboxPolicy, NewMail, Waiter, dispatcher
from tests.mailbox.post import Post, ids


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
def frail(disk: FullDisk) -> Post:
    post = Post()
    post.writer._participants += (disk,)
    return post


def test_waiter_is_served_in_the_very_group_that_brings_the_mail() -> None:
    post = Post()
    _, got = post.waiter()
    before = post.writer.group_count
    post.send("a", "b")
    assert ids(got) == ["a", "b"]
    assert post.writer.group_count == before + 1
    assert post.states() == {"a": "in_flight", "b": "in_flight"}


def test_waiter_is_served_what_waited_before_it_came() -> None:
    post = Post()
    post.send("a")
    assert ids(post.waiter()[1]) == ["a"]


def test_waiter_never_holds_more_than_its_credit() -> None:
    post = Post()
    waiter, got = post.waiter(2)
    post.send("a", "b", "c")
    assert (ids(got), waiter.credit) == (["a", "b"], 0)


def test_ack_gives_credit_and_the_next_mail_in_one_group() -> None:
    post = Post()
    waiter, got = post.waiter(1)
    post.send("a", "b")
    post.ack(got[0])
    assert ids(got) == ["a", "b"]
    assert waiter.credit == 0


def test_nack_gives_back_the_credit_of_the_whole_run() -> None:
    post = Post()
    waiter, got = post.waiter(3)
    post.send("a", "b", "c")
    post.nack(got[0])
    assert waiter.credit == 3
    post.tick(5_000)
    assert ids(got) == ["a", "b", "c"] * 2


def test_timeout_gives_credit_back() -> None:
    post = Post()
    waiter, got = post.waiter(1)
    post.send("a")
    post.tick(30_000)
    assert waiter.credit == 1
    post.tick(5_000)
    assert [(m.msg_id, m.attempt) for m in got] == [("a", 0), ("a", 1)]


def test_end_of_a_backoff_wakes_a_waiter() -> None:
    post = Post()
    _, got = post.waiter(1)
    post.send("a")
    post.nack(got[0])
    post.tick(4_999)
    assert len(got) == 1
    post.tick(1)
    assert len(got) == 2


def test_expiry_of_a_head_that_backs_off_wakes_a_waiter_for_the_next() -> None:
    post = Post()
    _, got = post.waiter(1)
    post.send("a", ttl=1_000)
    post.send("b")
    post.nack(got[0])
    post.tick(1_000)
    assert ids(got) == ["a", "b"]


def test_waiters_take_turns() -> None:
    post = Post()
    _, first = post.waiter(10)
    _, second = post.waiter(10)
    for n in range(4):
        post.send(f"m{n}", by=f"s{n}")
    assert (ids(first), ids(second)) == (["m0", "m2"], ["m1", "m3"])


def test_waiter_without_credit_does_not_hold_up_the_line() -> None:
    post = Post()
    _, first = post.waiter(1)
    _, second = post.waiter(1)
    post.send("a", by="s1")
    post.send("b", by="s2")
    assert (ids(first), ids(second)) == (["a"], ["b"])


def test_credit_comes_back_to_the_waiter_that_held_the_mail() -> None:
    """Though two connections use one consumer name, or none."""
    post = Post()
    first, got = post.waiter(1)
    second, other = post.waiter(5)
    post.send("a")
    assert (ids(got), ids(other)) == (["a"], [])
    post.ack(got[0])
    assert (first.credit, second.credit) == (1, 5)


def test_dequeued_mail_gives_no_waiter_credit() -> None:
    post = Post()
    post.send("a")
    (message,) = post.dequeue(consumer="c1")
    waiter, _ = post.waiter(5, consumer="other")
    post.ack(message)
    assert waiter.credit == 5


def test_once_means_one_handful() -> None:
    post = Post()
    _, got = post.waiter(5, once=True)
    post.send("a", "b")
    post.send("c", by="carol")
    assert ids(got) == ["a", "b"]
    post.ack(*got)
    assert post.take() == ["c"]


def test_waiter_that_is_gone_is_never_served() -> None:
    post = Post()
    waiter, got = post.waiter()
    waiter.gone = True
    post.send("a")
    assert got == []
    assert post.take() == ["a"]


def test_consumer_that_leaves_keeps_its_leases_and_finds_them_again() -> None:
    post = Post()
    waiter, got = post.waiter(2, consumer="c1")
    post.send("a", "b", "c")
    post.do(lambda tx: post.dispatcher.remove_waiter(tx, waiter))
    assert post.take() == []
    _, again = post.waiter(2, consumer="c1")
    assert [m.receipt for m in again] == [m.receipt for m in got]


def test_consumer_that_comes_back_with_less_credit_is_not_overfilled() -> None:
    post = Post()
    waiter, _ = post.waiter(3, consumer="c1")
    post.send("a", "b", "c", "d")
    post.do(lambda tx: post.dispatcher.remove_waiter(tx, waiter))
    back, got = post.waiter(1, consumer="c1")
    assert (ids(got), back.credit) == (["a", "b", "c"], -2)
    post.ack(*got[:2])
    assert back.credit == 0
    post.ack(got[2])
    assert ids(got) == ["a", "b", "c", "d"]


def test_second_connection_of_a_consumer_takes_over_what_the_first_held() -> None:
    post = Post()
    first, _ = post.waiter(2, consumer="c1")
    post.send("a", "b")
    second, got = post.waiter(5, consumer="c1")
    assert (ids(got), first.credit, second.credit) == (["a", "b"], 2, 3)
    post.ack(*got)
    assert (first.credit, second.credit) == (2, 5)


def test_once_waiter_that_holds_mail_gets_that_and_nothing_fresh() -> None:
    post = Post()
    post.send("a", by="s1")
    post.send("b", by="s2")
    post.dequeue(consumer="c1")
    _, got = post.waiter(5, consumer="c1", once=True)
    assert ids(got) == ["a"]
    assert post.states() == {"a": "in_flight", "b": "pending"}


def test_giving_up_returns_the_mail_unharmed() -> None:
    post = Post()
    waiter, _ = post.waiter(2, consumer="c1")
    post.send("a", "b")
    post.do(lambda tx: post.dispatcher.release_waiter(tx, waiter))
    assert [(m.msg_id, m.attempt) for m in post.dequeue(2)] == [("a", 0), ("b", 0)]


def test_giving_up_returns_only_what_this_waiter_was_handed() -> None:
    post = Post()
    post.send("a", by="s1")
    post.dequeue()
    waiter, got = post.waiter(1)
    post.send("b", by="s2")
    assert ids(got) == ["b"]
    post.do(lambda tx: post.dispatcher.release_waiter(tx, waiter))
    assert post.states() == {"a": "in_flight", "b": "pending"}


def test_subscribing_and_giving_up_in_one_group_leaves_nothing_behind() -> None:
    post = Post()
    post.send("a")
    post.dequeue(consumer="c1")
    box = post.do(lambda tx: post.dispatcher.mailbox_ref(tx, "bob"))
    waiter = Waiter(box, "c1", 5, lambda messages: None)
    post.group(
        lambda tx: post.dispatcher.add_waiter(tx, waiter),
        lambda tx: post.dispatcher.release_waiter(tx, waiter),
    )
    assert post.states() == {"a": "pending"}
    assert post.dispatcher._waiters._waiters == set()


def test_giving_up_lets_others_have_it_at_once() -> None:
    post = Post()
    waiter, _ = post.waiter(1)
    post.send("a")
    _, got = post.waiter(1)
    post.do(lambda tx: post.dispatcher.release_waiter(tx, waiter))
    assert ids(got) == ["a"]


def test_one_group_hands_out_a_bounded_number_and_the_next_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dispatcher, "_MAX_SERVED_PER_GROUP", 2)
    post = Post()
    for n in range(5):
        post.send(f"m{n}", by=f"s{n}")
    _, got = post.waiter(100)
    assert len(got) == 2
    assert post.writer._next_due_at == post.clock.now()
    post.tick()
    post.tick()
    assert ids(got) == [f"m{n}" for n in range(5)]


def test_operation_that_fails_leaves_no_waiter_and_no_credit() -> None:
    post = Post()
    box = post.do(lambda tx: post.dispatcher.mailbox_ref(tx, "bob"))
    waiter = Waiter(box, "", 5, lambda messages: None)

    def fails(tx: Tx) -> None:
        post.dispatcher.add_waiter(tx, waiter)
        raise StorageFailed("changed my mind")

    post.group(fails)
    assert post.dispatcher._waiters._waiters == set()


def test_failed_group_gives_no_credit_for_acks_that_did_not_happen(
    frail: Post, disk: FullDisk
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


def test_failed_group_serves_nobody_and_the_next_one_does(frail: Post, disk: FullDisk) -> None:
    waiter, got = frail.waiter(1)
    disk.full = True
    with pytest.raises(StorageFailed):
        frail.send("a")
    disk.full = False
    assert (got, waiter.credit, frail.states()) == ([], 1, {})
    frail.send("a")
    assert ids(got) == ["a"]


def test_waiter_of_a_failed_group_was_never_there(frail: Post, disk: FullDisk) -> None:
    box = frail.do(lambda tx: frail.dispatcher.mailbox_ref(tx, "bob"))
    waiter = Waiter(box, "", 5, lambda messages: None)
    disk.full = True
    with pytest.raises(StorageFailed):
        frail.do(lambda tx: frail.dispatcher.add_waiter(tx, waiter))
    disk.full = False
    assert frail.dispatcher._waiters._waiters == set()


def test_what_time_did_in_a_failed_group_is_done_again(frail: Post, disk: FullDisk) -> None:
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
    post = Post()
    post.send("a", "b")
    (message,) = post.dequeue(consumer="c1")
    again = Post(post.policy, post.clock, post.connection)
    assert [m.receipt for m in again.dequeue(consumer="c1")] == [message.receipt]
    again.ack(message)
    assert again.take() == ["b"]


def test_restart_sees_what_time_did_while_it_was_down() -> None:
    post = Post()
    post.send("a")
    post.dequeue()
    post.send("b", by="carol", ttl=1_000)
    post.clock.advance(60_000)
    again = Post(post.policy, post.clock, post.connection)
    again.tick()
    assert again.states() == {"a": "nacked", "b": "expired"}


def test_mail_about_closed_mail_is_served_in_the_next_group_which_is_due_at_once() -> None:
    post = Post(MailboxPolicy(max_retries=0))
    _, got = post.waiter(mailbox="alice")

    def tell(tx: Tx, closed: list[Any]) -> None:
        news = [NewMail(f"about-{each.msg_id}", b"1") for each in closed]
        post.dispatcher.enqueue(tx, "alice", "gateway", news)

    post.report = tell
    post.send("a", ttl=1_000, meta=b"{}")
    post.tick(1_000)
    assert post.writer.idle_timeout() == 0
    post.tick()
    assert ids(got) == ["about-a"]


def test_only_waiters_with_credit_stand_in_line() -> None:
    post = Post()
    waiter, got = post.waiter(1)
    line = post.dispatcher._waiters
    assert line.next_waiter(waiter.mailbox.id) is waiter
    post.send("a")
    assert line.waiting_mailboxes() == set()
    post.ack(got[0])
    assert line.next_waiter(waiter.mailbox.id) is waiter


def test_consumer_that_subscribes_again_takes_its_own_place() -> None:
    post = Post()
    _, old = post.waiter(2, consumer="c")
    _, new = post.waiter(2, consumer="c")
    post.send("a", by="x")
    post.send("b", by="y")
    assert (ids(old), ids(new)) == ([], ["a", "b"])


def test_failed_group_leaves_the_old_connection_in_its_place(frail: Post, disk: FullDisk) -> None:
    _, old = frail.waiter(2, consumer="c")
    disk.full = True
    with pytest.raises(StorageFailed):
        frail.waiter(2, consumer="c")
    disk.full = False
    frail.tick()
    frail.send("a")
    assert ids(old) == ["a"]
