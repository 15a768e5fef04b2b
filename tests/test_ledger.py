"""The ledger: every message is in one term, and the terms add up."""

from itertools import product

import pytest

from gatepost.delivery.delivery_states import DeliveryState
from gatepost.ledger import TERMS, Ledger, Term, add_ledgers, make_ledger, term_of


@pytest.mark.parametrize(
    ("state", "outcome", "reason", "term"),
    [
        ("emitted", None, None, "waiting"),
        ("retry_pending", None, "expiring", "waiting"),
        ("accepted", None, None, "in_motion"),
        ("incident", None, None, "in_motion"),
        ("processed", "ok", None, "processed"),
        ("processed", "kept", None, "processed"),
        ("replied", "ok", None, "processed"),
        ("processed", "expired", None, "expired"),
        ("dead_letter", "dead_letter", "expired", "expired"),
        ("dead_letter", "dead_letter", "no_route", "dead_letters"),
        ("processed", "dead_letter", "failed 4 times", "dead_letters"),
        # What an agent says of its turn is not what its sender says.
        ("processed", "dead_letter", "expired", "dead_letters"),
        # An amended end: it was given up as expired, and had its turn.
        ("processed", "ok", "expired", "processed"),
    ],
)
def test_each_end_has_its_term(
    state: str, outcome: str | None, reason: str | None, term: Term
) -> None:
    assert term_of(state, outcome, reason) == term


def test_whatever_the_states_are_the_terms_add_up() -> None:
    outcomes = (None, "ok", "kept", "dead_letter", "expired")
    rows = [(*each, None, 2) for each in product(DeliveryState, outcomes)]
    ledger = make_ledger(rows)
    assert ledger.adds_up and ledger.sent == 2 * len(rows)
    assert all(getattr(ledger, term) for term in TERMS)


def test_the_equation_is_in_the_words_of_all_surfaces() -> None:
    ledger = Ledger(sent=1_010, processed=1_000, in_motion=4, waiting=3, dead_letters=2, expired=1)
    assert str(ledger) == (
        "1,010 sent = 1,000 processed + 4 in motion + 3 waiting + 2 dead letters + 1 expired"
    )


def test_ledgers_of_parts_add_up_to_that_of_the_whole() -> None:
    rows = [("processed", "ok", None, 3), ("emitted", None, None, 2), ("accepted", None, None, 1)]
    assert add_ledgers(make_ledger([row]) for row in rows) == make_ledger(rows)
    assert add_ledgers([]) == Ledger()
