"""Messages that were sent from here, as they are found."""

from itertools import product

from gatepost.delivery.sent_search import SentFilter, find_sent
from gatepost.journal import Tx, open_memory_journal
from gatepost.ledger import TERMS, term_of

STATES = (
    *("emitted", "retry_pending", "accepted", "incident", "replied", "processed"),
    *("dead_letter", "expired", "refused"),
)
OUTCOMES = (None, "ok", "kept", "failed", "expired", "dead_letter")
REASONS = (None, "expired", "no_route")
_INSERT = """
INSERT INTO delivery (event_id, from_agent, to_agent, corr_id, state, outcome, reason, emitted_at,
    replies_to) VALUES (?, 'an', 'bo', 'talk', ?, ?, ?, 1, '')
"""


def test_the_term_that_is_searched_for_is_the_term_of_the_ledger() -> None:
    connection = open_memory_journal()
    tx = Tx(connection, 5)
    wanted = list(product(STATES, OUTCOMES, REASONS))
    for number, (state, outcome, reason) in enumerate(wanted):
        id = b"\x01" * 6 + b"\x70\x00\x80" + number.to_bytes(7, "big")
        connection.execute(_INSERT, (id, state, outcome, reason))
    assert len(find_sent(tx, SentFilter(), 1000)) == len(wanted)
    for term in TERMS:
        found = find_sent(tx, SentFilter(term=term), 1000)
        assert len(found) == sum(term_of(*each) == term for each in wanted) > 0
        assert {each.term for each in found} == {term}
