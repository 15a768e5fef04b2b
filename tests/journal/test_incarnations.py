"""The incarnations of a journal."""

import pytest

from gatepost.journal import Tx, open_memory_journal
from gatepost.journal.incarnations import (
    add_first_incarnation,
    add_restored_incarnation,
    first_seq_of,
    load_incarnations,
)


@pytest.fixture
def tx() -> Tx:
    return Tx(open_memory_journal(), now=1_000)


def test_a_journal_that_is_opened_again_keeps_its_first_incarnation(tx: Tx) -> None:
    add_first_incarnation(tx, "a")
    add_first_incarnation(tx, "a")
    assert load_incarnations(tx) == [("a", 1)]
    assert first_seq_of(tx, "a") == 1 and first_seq_of(tx, "unknown") == 1


def test_an_incarnation_without_events_leaves_no_trace(tx: Tx) -> None:
    add_first_incarnation(tx, "a")
    add_restored_incarnation(tx, "b", 8)
    add_restored_incarnation(tx, "c", 8)
    assert load_incarnations(tx) == [("a", 1), ("c", 8)]
    assert first_seq_of(tx, "c") == 8
