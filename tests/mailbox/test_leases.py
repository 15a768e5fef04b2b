"""Taking mail: order, runs, leases."""

import pytest

from gatepost.errors import StaleLeaseHandle
from gatepost.mailbox.leases import parse_lease_handle
from tests.mailbox.harness import START, MailboxHarness, codes, ids


def test_dequeue_of_nothing_is_nothing() -> None:
    assert MailboxHarness().dequeue() == []


def test_dequeue_returns_the_oldest_and_takes_it_in_flight() -> None:
    harness = MailboxHarness()
    harness.send("a", "b")
    (message,) = harness.dequeue()
    assert (message.msg_id, message.from_, message.to, message.attempt) == ("a", "alice", "bob", 0)
    assert (bytes(message.payload), message.lease_secs) == (b'"hello"', 30.0)
    assert harness.states() == {"a": "in_flight", "b": "pending"}
    assert harness.counts() == (1, 1, 0)


def test_next_message_of_a_pair_waits_while_its_head_is_in_flight() -> None:
    harness = MailboxHarness()
    harness.send("a", "b")
    (a,) = harness.dequeue()
    assert harness.take() == []
    harness.ack(a)
    assert harness.take() == ["b"]


def test_nacked_head_blocks_its_pair_only() -> None:
    harness = MailboxHarness()
    harness.send("a1", "a2", by="alice")
    harness.send("c1", by="carol")
    (a1,) = harness.dequeue()
    harness.nack(a1)
    assert harness.take() == ["c1"]
    assert harness.take() == []
    harness.tick(5_000)
    assert harness.take(10) == ["a1", "a2"]


def test_run_is_consecutive_and_of_one_lease() -> None:
    harness = MailboxHarness()
    harness.send("a", "b", "c")
    run = harness.dequeue(2)
    assert ids(run) == ["a", "b"]
    assert len({message.receipt.split(".")[1] for message in run}) == 1


def test_created_at_interleaves_senders() -> None:
    harness = MailboxHarness()
    harness.send("a1", by="alice", at=START + 1)
    harness.send("a2", by="alice", at=START + 3)
    harness.send("c1", by="carol", at=START)
    harness.send("c2", by="carol", at=START + 2)
    assert harness.take(10) == ["c1", "a1", "c2", "a2"]


def test_created_at_never_reorders_a_pair() -> None:
    harness = MailboxHarness()
    harness.send("late", at=START + 60_000)
    harness.send("early", at=0)
    assert harness.take(10) == ["late", "early"]


def test_equal_created_at_is_handed_out_as_it_arrived() -> None:
    harness = MailboxHarness()
    for n in range(6):
        harness.send(f"m{n}", by=f"s{n % 3}", at=START)
    assert harness.take(10) == [f"m{n}" for n in range(6)]


def test_arrival_orders_groups_of_the_same_millisecond() -> None:
    harness = MailboxHarness()
    harness.send("a", "b", "c", by="zoe")
    harness.send("d", by="alice")
    assert harness.take(10) == ["a", "b", "c", "d"]


def test_mailboxes_do_not_wait_for_each_other() -> None:
    harness = MailboxHarness()
    harness.send("a", to="bob")
    harness.send("b", to="carol")
    assert harness.take(mailbox="carol") == ["b"]


def test_receipt_is_not_guessable_and_new_for_every_delivery() -> None:
    harness = MailboxHarness()
    harness.send("a")
    (first,) = harness.dequeue()
    harness.nack(first)
    harness.tick(5_000)
    (second,) = harness.dequeue()
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
    harness = MailboxHarness()
    harness.send("a")
    (message,) = harness.dequeue()
    bad = ["f" * 32 + ".1", "nonsense"]
    result = harness.do(lambda tx: harness.dispatcher.ack(tx, "bob", [*bad, message.receipt], []))
    assert (result.settled, codes(result)) == (1, ["stale_receipt"] * 2)
    assert [failure.subject for failure in result.failures] == bad


def test_consumer_that_comes_back_is_handed_what_it_holds() -> None:
    harness = MailboxHarness()
    harness.send("a", "b", "c")
    first = harness.dequeue(2, consumer="c1")
    again = harness.dequeue(5, consumer="c1")
    assert [m.receipt for m in again] == [m.receipt for m in first]
    harness.ack(again[0])
    assert ids(harness.dequeue(5, consumer="c1")) == ["b"]


def test_consumer_that_comes_back_gets_no_more_than_it_asks_for() -> None:
    harness = MailboxHarness()
    harness.send("a", "b", "c")
    harness.dequeue(3, consumer="c1")
    assert ids(harness.dequeue(1, consumer="c1")) == ["a"]


def test_consumer_that_comes_back_has_its_full_time_again() -> None:
    harness = MailboxHarness()
    harness.send("a")
    harness.dequeue(consumer="c1")
    harness.clock.advance(29_000)
    harness.dequeue(consumer="c1")
    harness.tick(29_000)
    assert harness.states() == {"a": "in_flight"}


def test_consumers_without_a_name_share_nothing() -> None:
    harness = MailboxHarness()
    harness.send("a", by="alice")
    harness.send("b", by="carol")
    assert harness.take() + harness.take() + harness.take() == ["a", "b"]


def test_extend_keeps_a_lease_alive() -> None:
    harness = MailboxHarness()
    harness.send("a")
    (message,) = harness.dequeue()
    for _ in range(5):
        harness.clock.advance(29_000)
        assert harness.extend(message) == []
        harness.tick()
    assert harness.states() == {"a": "in_flight"}


def test_extend_gives_a_lease_its_full_length_though_the_clock_went_back() -> None:
    harness = MailboxHarness()
    harness.send("a")
    (message,) = harness.dequeue()
    harness.clock.set(START - 60_000)
    harness.extend(message)
    harness.tick(29_999)
    assert harness.states() == {"a": "in_flight"}
    harness.tick(1)
    assert harness.states() == {"a": "nacked"}


def test_extend_of_a_lease_that_is_no_more_says_so() -> None:
    harness = MailboxHarness()
    harness.send("a")
    (message,) = harness.dequeue()
    harness.tick(30_000)
    assert harness.extend(message) == [message.receipt]


def test_extend_through_another_mailbox_is_refused() -> None:
    harness = MailboxHarness()
    harness.send("a")
    harness.send("b", to="carol")
    (message,) = harness.dequeue()
    assert harness.extend(message, mailbox="carol") == [message.receipt]
    harness.tick(30_000)
    assert harness.states()["a"] == "nacked"


def test_one_take_is_bounded_in_number_and_in_bytes() -> None:
    harness = MailboxHarness()
    harness.send(*(f"m{n}" for n in range(1200)))
    assert len(harness.dequeue(10_000)) == 1000
    harness.send(*(f"big{n}" for n in range(6)), to="carol", payload=b'"' + b"x" * (1 << 20) + b'"')
    assert len(harness.dequeue(10_000, mailbox="carol")) == 4


def test_asking_an_unknown_mailbox_to_settle_creates_none() -> None:
    harness = MailboxHarness()
    assert codes(harness.ack_id("a", mailbox="nobody")) == ["unknown_message"]
    assert harness.sql("SELECT * FROM mailbox") == []
