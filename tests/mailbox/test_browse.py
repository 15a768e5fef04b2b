"""Looking at a mailbox."""

import pytest

from gatepost.errors import UnknownMessage
from gatepost.journal import Tx
from gatepost.mailbox import browse
from tests.mailbox.harness import START, MailboxHarness


def test_peek_changes_nothing() -> None:
    harness = MailboxHarness()
    harness.send("a")
    before = harness.sql("SELECT * FROM mail")
    (row,) = harness.peek()
    assert (row.msg_id, row.from_, row.created_at, row.attempt, row.state, row.size) == (
        "a", "alice", START // 1000, 0, "pending", 7,
    )  # fmt: skip
    assert harness.sql("SELECT * FROM mail") == before
    assert harness.take() == ["a"]


def test_peek_shows_everything_unsettled_in_the_order_it_is_handed_out() -> None:
    harness = MailboxHarness()
    harness.send("a1", "a2", "a3", by="alice")
    harness.send("b1", "b2", by="bert")
    harness.send("c1", by="carol")
    harness.ack(*harness.dequeue())
    harness.dequeue()  # a2
    (b1,) = harness.dequeue()
    harness.nack(b1)
    assert [(row.msg_id, row.state) for row in harness.peek()] == [
        ("a2", "in_flight"),
        ("a3", "pending"),
        ("b1", "nacked"),
        ("b2", "pending"),
        ("c1", "pending"),
    ]


def test_peek_keeps_the_order_of_a_pair_whatever_created_at_says() -> None:
    harness = MailboxHarness()
    harness.send("late", by="alice", at=START + 60_000)
    harness.send("early", by="alice", at=0)
    harness.send("between", by="carol", at=START + 30_000)
    assert [row.msg_id for row in harness.peek()] == ["between", "late", "early"]


def test_peek_says_when_a_nacked_message_is_retried() -> None:
    harness = MailboxHarness()
    harness.send("a")
    harness.nack(*harness.dequeue())
    (row,) = harness.peek()
    assert (row.attempt, row.not_before) == (1, START // 1000 + 5)


@pytest.mark.parametrize("limit", [1, 2, 3, 7])
def test_peek_pages_neither_skip_nor_repeat(limit: int) -> None:
    harness = MailboxHarness()
    for n in range(12):
        harness.send(f"m{n}", by=f"s{n % 4}")
    harness.dequeue(2)
    found, after = [], ""
    while page := harness.peek(limit, after):
        found += [row.msg_id for row in page]
        after = page[-1].msg_id
    assert found == [f"m{n}" for n in range(12)]


def test_peek_goes_on_behind_a_message_that_was_settled_meanwhile() -> None:
    harness = MailboxHarness()
    harness.send("a", "b", "c")
    harness.ack(*harness.dequeue())
    assert [row.msg_id for row in harness.peek(after="a")] == ["b", "c"]


def test_peek_behind_an_unknown_message_is_refused() -> None:
    with pytest.raises(UnknownMessage):
        MailboxHarness().peek(after="nobody")


def test_counts_of_every_mailbox() -> None:
    harness = MailboxHarness()
    harness.send("a", "b", to="bob")
    harness.dequeue()
    harness.send("c", to="anna")
    harness.purge(mailbox="anna")
    rows = browse.mailbox_counts(Tx(harness.connection, 0))
    assert rows == [("anna", 0, 0, 1, "fifo"), ("bob", 1, 1, 0, "fifo")]
