"""Looking at a mailbox."""

import pytest

from gatepost.errors import UnknownMessage
from gatepost.journal import Tx
from gatepost.mailbox import browse
from tests.mailbox.post import START, Post


def test_peek_changes_nothing() -> None:
    post = Post()
    post.send("a")
    before = post.sql("SELECT * FROM mail")
    (row,) = post.peek()
    assert (row.msg_id, row.from_, row.created_at, row.attempt, row.state, row.size) == (
        "a", "alice", START // 1000, 0, "pending", 7,
    )  # fmt: skip
    assert post.sql("SELECT * FROM mail") == before
    assert post.take() == ["a"]


def test_peek_shows_everything_unsettled_in_the_order_it_is_handed_out() -> None:
    post = Post()
    post.send("a1", "a2", "a3", by="alice")
    post.send("b1", "b2", by="bert")
    post.send("c1", by="carol")
    post.ack(*post.dequeue())
    post.dequeue()  # a2
    (b1,) = post.dequeue()
    post.nack(b1)
    assert [(row.msg_id, row.state) for row in post.peek()] == [
        ("a2", "in_flight"),
        ("a3", "pending"),
        ("b1", "nacked"),
        ("b2", "pending"),
        ("c1", "pending"),
    ]


def test_peek_keeps_the_order_of_a_pair_whatever_created_at_says() -> None:
    post = Post()
    post.send("late", by="alice", at=START + 60_000)
    post.send("early", by="alice", at=0)
    post.send("between", by="carol", at=START + 30_000)
    assert [row.msg_id for row in post.peek()] == ["between", "late", "early"]


def test_peek_says_when_a_nacked_message_is_retried() -> None:
    post = Post()
    post.send("a")
    post.nack(*post.dequeue())
    (row,) = post.peek()
    assert (row.attempt, row.not_before) == (1, START // 1000 + 5)


@pytest.mark.parametrize("limit", [1, 2, 3, 7])
def test_peek_pages_neither_skip_nor_repeat(limit: int) -> None:
    post = Post()
    for n in range(12):
        post.send(f"m{n}", by=f"s{n % 4}")
    post.dequeue(2)
    found, after = [], ""
    while page := post.peek(limit, after):
        found += [row.msg_id for row in page]
        after = page[-1].msg_id
    assert found == [f"m{n}" for n in range(12)]


def test_peek_goes_on_behind_a_message_that_was_settled_meanwhile() -> None:
    post = Post()
    post.send("a", "b", "c")
    post.ack(*post.dequeue())
    assert [row.msg_id for row in post.peek(after="a")] == ["b", "c"]


def test_peek_behind_an_unknown_message_is_refused() -> None:
    with pytest.raises(UnknownMessage):
        Post().peek(after="nobody")


def test_counts_of_every_mailbox() -> None:
    post = Post()
    post.send("a", "b", to="bob")
    post.dequeue()
    post.send("c", to="anna")
    post.purge(mailbox="anna")
    rows = browse.mailbox_counts(Tx(post.connection, 0))
    assert rows == [("anna", 0, 0, 1), ("bob", 1, 1, 0)]
