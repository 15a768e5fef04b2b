"""Taking mail: order, runs, leases."""

import pytest

from gatepost.errors import StaleLeaseHandle
from gatepost.mailbox.leases import parse_lease_handle
from tests.mailbox.post import START, Post, codes, ids


def test_dequeue_of_nothing_is_nothing() -> None:
    assert Post().dequeue() == []


def test_dequeue_returns_the_oldest_and_takes_it_in_flight() -> None:
    post = Post()
    post.send("a", "b")
    (message,) = post.dequeue()
    assert (message.msg_id, message.from_, message.to, message.attempt) == ("a", "alice", "bob", 0)
    assert (bytes(message.payload), message.lease_secs) == (b'"hello"', 30.0)
    assert post.states() == {"a": "in_flight", "b": "pending"}
    assert post.counts() == (1, 1, 0)


def test_next_message_of_a_pair_waits_while_its_head_is_in_flight() -> None:
    post = Post()
    post.send("a", "b")
    (a,) = post.dequeue()
    assert post.take() == []
    post.ack(a)
    assert post.take() == ["b"]


def test_nacked_head_blocks_its_pair_only() -> None:
    post = Post()
    post.send("a1", "a2", by="alice")
    post.send("c1", by="carol")
    (a1,) = post.dequeue()
    post.nack(a1)
    assert post.take() == ["c1"]
    assert post.take() == []
    post.tick(5_000)
    assert post.take(10) == ["a1", "a2"]


def test_run_is_consecutive_and_of_one_lease() -> None:
    post = Post()
    post.send("a", "b", "c")
    run = post.dequeue(2)
    assert ids(run) == ["a", "b"]
    assert len({message.receipt.split(".")[1] for message in run}) == 1


def test_created_at_interleaves_senders() -> None:
    post = Post()
    post.send("a1", by="alice", at=START + 1)
    post.send("a2", by="alice", at=START + 3)
    post.send("c1", by="carol", at=START)
    post.send("c2", by="carol", at=START + 2)
    assert post.take(10) == ["c1", "a1", "c2", "a2"]


def test_created_at_never_reorders_a_pair() -> None:
    post = Post()
    post.send("late", at=START + 60_000)
    post.send("early", at=0)
    assert post.take(10) == ["late", "early"]


def test_equal_created_at_is_handed_out_as_it_arrived() -> None:
    post = Post()
    for n in range(6):
        post.send(f"m{n}", by=f"s{n % 3}", at=START)
    assert post.take(10) == [f"m{n}" for n in range(6)]


def test_arrival_orders_groups_of_the_same_millisecond() -> None:
    post = Post()
    post.send("a", "b", "c", by="zoe")
    post.send("d", by="alice")
    assert post.take(10) == ["a", "b", "c", "d"]


def test_mailboxes_do_not_wait_for_each_other() -> None:
    post = Post()
    post.send("a", to="bob")
    post.send("b", to="carol")
    assert post.take(mailbox="carol") == ["b"]


def test_receipt_is_not_guessable_and_new_for_every_delivery() -> None:
    post = Post()
    post.send("a")
    (first,) = post.dequeue()
    post.nack(first)
    post.tick(5_000)
    (second,) = post.dequeue()
    assert first.receipt != second.receipt
    assert int(second.receipt.split(".")[1], 16) > 1 << 32


@pytest.mark.parametrize(
    "text",
    ["", ".", "a", "1.", ".1", "1.2.3", "-1.2", "0x1.2", "1_0.2", " 1.2", "1.2\n", "g.1",
     "f" * 16 + ".1", "1." + "f" * 16, "1." + "1" * 17, "１.1"],
)  # fmt: skip
def test_anything_but_a_receipt_is_stale(text: str) -> None:
    with pytest.raises(StaleLeaseHandle):
        parse_lease_handle(text)


def test_bad_receipt_in_a_batch_fails_alone() -> None:
    post = Post()
    post.send("a")
    (message,) = post.dequeue()
    bad = ["f" * 32 + ".1", "nonsense"]
    result = post.do(lambda tx: post.dispatcher.ack(tx, "bob", [*bad, message.receipt], []))
    assert (result.settled, codes(result)) == (1, ["stale_receipt"] * 2)
    assert [failure.subject for failure in result.failures] == bad


def test_consumer_that_comes_back_is_handed_what_it_holds() -> None:
    post = Post()
    post.send("a", "b", "c")
    first = post.dequeue(2, consumer="c1")
    again = post.dequeue(5, consumer="c1")
    assert [m.receipt for m in again] == [m.receipt for m in first]
    post.ack(again[0])
    assert ids(post.dequeue(5, consumer="c1")) == ["b"]


def test_consumer_that_comes_back_gets_no_more_than_it_asks_for() -> None:
    post = Post()
    post.send("a", "b", "c")
    post.dequeue(3, consumer="c1")
    assert ids(post.dequeue(1, consumer="c1")) == ["a"]


def test_consumer_that_comes_back_has_its_full_time_again() -> None:
    post = Post()
    post.send("a")
    post.dequeue(consumer="c1")
    post.clock.advance(29_000)
    post.dequeue(consumer="c1")
    post.tick(29_000)
    assert post.states() == {"a": "in_flight"}


def test_consumers_without_a_name_share_nothing() -> None:
    post = Post()
    post.send("a", by="alice")
    post.send("b", by="carol")
    assert post.take() + post.take() + post.take() == ["a", "b"]


def test_extend_keeps_a_lease_alive() -> None:
    post = Post()
    post.send("a")
    (message,) = post.dequeue()
    for _ in range(5):
        post.clock.advance(29_000)
        assert post.extend(message) == []
        post.tick()
    assert post.states() == {"a": "in_flight"}


def test_extend_never_shortens_a_lease_though_the_clock_went_back() -> None:
    post = Post()
    post.send("a")
    (message,) = post.dequeue()
    post.clock.set(START - 60_000)
    post.extend(message)
    post.clock.set(START)
    post.tick()
    assert post.states() == {"a": "in_flight"}


def test_extend_of_a_lease_that_is_no_more_says_so() -> None:
    post = Post()
    post.send("a")
    (message,) = post.dequeue()
    post.tick(30_000)
    assert post.extend(message) == [message.receipt]


def test_extend_through_another_mailbox_is_refused() -> None:
    post = Post()
    post.send("a")
    post.send("b", to="carol")
    (message,) = post.dequeue()
    assert post.extend(message, mailbox="carol") == [message.receipt]
    post.tick(30_000)
    assert post.states()["a"] == "nacked"


def test_one_take_is_bounded_in_number_and_in_bytes() -> None:
    post = Post()
    post.send(*(f"m{n}" for n in range(1200)))
    assert len(post.dequeue(10_000)) == 1000
    post.send(*(f"big{n}" for n in range(6)), to="carol", payload=b'"' + b"x" * (1 << 20) + b'"')
    assert len(post.dequeue(10_000, mailbox="carol")) == 4


def test_asking_an_unknown_mailbox_to_settle_creates_none() -> None:
    post = Post()
    assert codes(post.ack_id("a", mailbox="nobody")) == ["unknown_message"]
    assert post.sql("SELECT * FROM mailbox") == []
