"""A pair whose numbers are open at several nodes: which node is told how far it is closed."""

import pytest

from gatepost.delivery.outgoing import SenderPair
from gatepost.delivery.pairs import SenderPairs
from gatepost.journal import Tx, open_memory_journal

PAIR = SenderPair("ann", "bob")
_OPEN = """
INSERT INTO delivery (event_id, from_agent, to_agent, corr_id, state, emitted_at, replies_to,
    node, pair_seq) VALUES (?, 'ann', 'bob', 'c', 'emitted', 0, 'caller', ?, ?)
"""


class Book:
    """A pair's numbers, and where each is open."""

    def __init__(self) -> None:
        self.tx = Tx(open_memory_journal(), 0)
        self.pairs = SenderPairs()

    def send(self, node: str) -> tuple[int, int]:
        number = self.pairs.next_number(self.tx, PAIR, node)
        self.tx.execute(_OPEN, (number.number.to_bytes(16), node, number.number))
        return number.number, number.base

    def move(self, number: int, node: str) -> tuple[str, int] | None:
        self.tx.execute("UPDATE delivery SET node = ? WHERE pair_seq = ?", (node, number))
        self.pairs.set_route(self.tx, PAIR, node, number)
        told = self.pairs.close_numbers(self.tx, PAIR)
        self.tx.run_effects()
        return told

    def park(self, number: int) -> None:
        parked = "UPDATE delivery SET state = 'retry_pending', reason = 'moved' WHERE pair_seq = ?"
        self.tx.execute(parked, (number,))
        self.pairs.note_parked(self.tx, PAIR)

    def close(self, number: int) -> tuple[str, int] | None:
        told = self.close_within_operation(number)
        self.tx.run_effects()
        return told

    def close_within_operation(self, number: int) -> tuple[str, int] | None:
        self.tx.execute("UPDATE delivery SET processed_at = 1 WHERE pair_seq = ?", (number,))
        return self.pairs.close_numbers(self.tx, PAIR)


@pytest.fixture
def book() -> Book:
    return Book()


def test_a_pair_that_stays_where_it_is_tells_nobody(book: Book) -> None:
    assert [book.send("x") for _ in range(3)] == [(1, 1), (2, 1), (3, 1)]
    assert [book.close(number) for number in (1, 3, 2)] == [None] * 3


def test_the_new_node_is_told_when_all_before_is_closed(book: Book) -> None:
    book.send("x")
    book.send("x")
    assert book.send("y") == (3, 1)
    assert book.close(1) == ("x", 2)
    assert book.close(2) == ("y", 3)
    assert book.close(3) is None


def test_a_pair_that_drained_starts_anew_elsewhere(book: Book) -> None:
    book.send("x")
    book.close(1)
    assert book.send("y") == (2, 2)


def test_there_and_back_each_goes_on_in_its_turn(book: Book) -> None:
    for node in "xxyyx":
        book.send(node)
    assert book.close(1) == ("x", 2)
    assert book.close(2) == ("y", 4)
    assert book.close(3) is None
    assert book.close(4) == ("x", 5)


def test_a_number_sent_after_the_pair_seemed_closed_still_waits(book: Book) -> None:
    """The new route has nothing open for a moment, and the old one has: the next must wait."""
    book.send("x")
    book.send("y")
    assert book.close(2) == ("x", 2)
    assert book.send("y") == (3, 1)
    assert book.close(1) == ("y", 3)


def test_a_node_that_gets_an_earlier_number_is_told_of_closed_ones_behind_it(book: Book) -> None:
    for _ in range(3):
        book.send("x")
    book.close(2)
    book.close(3)
    assert book.move(1, "y") == ("y", 3)
    assert book.send("y") == (4, 1)
    assert book.close(1) is None


def test_a_node_that_gets_a_number_again_is_told_nothing_new(book: Book) -> None:
    book.send("x")
    book.send("x")
    book.close(2)
    assert book.move(1, "x") is None


def test_a_parked_number_is_at_no_node_and_nothing_overtakes_it(book: Book) -> None:
    book.send("x")
    book.send("x")
    book.park(2)
    assert not book.pairs.is_only_at(book.tx, PAIR, "x"), "it is not at its last node either"
    assert book.send("x") == (3, 1)
    assert book.close(1) is None, "there is nobody to tell how far the pair is closed"
    assert not book.pairs.is_only_at(book.tx, PAIR, "x")
    assert book.pairs.waits_for_others(book.tx, PAIR, "x", 3)
    assert book.close(2) == ("x", 3)
    assert book.pairs.is_only_at(book.tx, PAIR, "x")


def test_what_is_before_a_parked_number_goes_on(book: Book) -> None:
    for node in "xyx":
        book.send(node)
    book.park(3)
    assert book.close(1) == ("y", 2)
    assert book.close(2) is None


def test_a_pair_that_moves_again_in_the_operation_that_closed_it_is_moving(book: Book) -> None:
    book.send("x")
    book.send("y")
    assert book.close_within_operation(1) == ("y", 2)
    book.send("x")
    book.tx.run_effects()
    assert book.close(2) == ("x", 3)
