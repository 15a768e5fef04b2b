"""Facts about a journal."""

import pytest

from gatepost.journal import Tx, open_memory_journal
from gatepost.journal.facts import (
    RESTORED_AT_SQL,
    add_facts,
    find_fact,
    load_facts,
    save_fact,
    was_restored,
)


@pytest.fixture
def tx() -> Tx:
    return Tx(open_memory_journal(), now=1_000)


def test_a_saved_fact_replaces_the_one_before(tx: Tx) -> None:
    assert find_fact(tx, "leap") is None
    save_fact(tx, "leap", 1)
    save_fact(tx, "leap", 2)
    assert find_fact(tx, "leap") == 2


def test_an_added_fact_leaves_the_known_one(tx: Tx) -> None:
    add_facts(tx, {"node_id": "ann"})
    add_facts(tx, {"node_id": "bob", "public_key": b"key"})
    assert load_facts(tx) == {"node_id": "ann", "public_key": b"key"}


def test_only_a_restored_journal_knows_when_it_was_restored(tx: Tx) -> None:
    query = f"SELECT {RESTORED_AT_SQL}"
    assert not was_restored(tx) and tx.fetch_one(query) == (0,)
    save_fact(tx, "restored_at", 700)
    assert was_restored(tx) and tx.fetch_one(query) == (700,)
