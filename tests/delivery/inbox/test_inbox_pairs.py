"""Pairs as their receiver keeps them: read once in a transaction, saved if they changed."""

import pytest

from gatepost.delivery.inbox.inbox_pairs import InboxPair, InboxPairs, PairKey, pair_incarnation
from gatepost.journal import Tx, open_memory_journal

KEY = PairKey("a", "al", "bob")


@pytest.fixture
def tx() -> Tx:
    return Tx(open_memory_journal(), 1)


def test_an_unknown_pair_begins_with_one(tx: Tx) -> None:
    pair = InboxPairs("a-1").load_pair(tx, KEY)
    assert (pair.incarnation, pair.next, pair.held, pair.offered) == ("a-1", 1, 0, 0)


def test_only_pairs_that_changed_are_saved(tx: Tx) -> None:
    pairs = InboxPairs("a-1")
    pairs.load_pair(tx, PairKey("a", "al", "idle"))
    pairs.load_pair(tx, KEY).advance_to(4)
    pairs.save_changed(tx)
    assert tx.fetch_all("SELECT mailbox, next FROM inbox_pair") == [("bob", 4)]
    assert pair_incarnation(tx, KEY) == "a-1"
    assert pair_incarnation(tx, PairKey("a", "al", "idle")) == ""


def test_a_pair_goes_forward_and_back(tx: Tx) -> None:
    pair = InboxPairs("a-1").load_pair(tx, KEY)
    pair.advance_to(9)
    pair.advance_to(3)
    assert pair.next == 9, "never back by advancing"
    pair.go_back_to(5)
    pair.go_back_to(7)
    assert pair.next == 5, "never forward by going back"


def test_a_new_incarnation_may_use_numbers_again(tx: Tx) -> None:
    pair = InboxPairs("a-2").load_pair(tx, KEY)
    pair.advance_to(9)
    pair.begin_incarnation("a-2", 6)
    assert (pair.incarnation, pair.next, pair.changed) == ("a-2", 6, True)


def test_there_are_never_less_than_no_offers(tx: Tx) -> None:
    pair = InboxPairs("a-1").load_pair(tx, KEY)
    pair.count_offered(1)
    pair.count_offered(-2)
    assert pair.offered == 0


def test_a_refused_number_among_closed_ones_is_still_its_senders_to_decide() -> None:
    pair = InboxPair("a-1", 3)
    pair.close_through(9)
    assert pair.is_next_closed()
    pair.note_refused(3)
    assert not pair.is_next_closed(), "the later ones wait for what becomes of it"
    pair.close_through(10)
    assert not pair.is_next_closed(), "its sender may not know of the refusal yet"
    pair.advance_to(4)
    assert pair.is_next_closed(), "it came again"
    pair.note_refused(4)
    pair.go_back_to(4)
    pair.close_through(10)
    assert pair.is_next_closed(), "it was withdrawn, and closed elsewhere"


def test_a_refused_number_that_was_given_up_holds_up_no_number_that_comes_again() -> None:
    pair = InboxPair("a-1", 3)
    pair.note_refused(3)
    pair.advance_to(4)
    pair.go_back_to(1)  # The sender withdraws earlier numbers, and sends them here again.
    pair.advance_to(3)
    pair.close_through(3)
    assert pair.is_next_closed()
