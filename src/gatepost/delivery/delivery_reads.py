"""Queries on deliveries, for status, metrics, alerts and the hub."""

from gatepost.journal.transaction import Row, Tx
from gatepost.ledger import Ledger, make_ledger

# Follows `NOT EXISTS`: whether the delivery of `{event}` is open.
OPEN_DELIVERY_SQL = "SELECT 1 FROM delivery d WHERE d.event_id = {event} AND d.processed_at IS NULL"
_SELECT_OPEN_BY_NODE = """
SELECT node, count(*) FROM delivery WHERE processed_at IS NULL AND node IS NOT NULL AND node <> ?
GROUP BY node
"""
# Without a receipt, by the reason the owner gave.
_SELECT_WAITING = """
SELECT node, reason, count(*), min(emitted_at), max(attempt) FROM delivery
WHERE processed_at IS NULL AND accepted_at IS NULL AND node IS NOT ?1 GROUP BY node, reason
"""
_SELECT_ACCEPTED = """
SELECT node, count(*) FROM delivery
WHERE processed_at IS NULL AND accepted_at IS NOT NULL AND node IS NOT ?1 GROUP BY node
"""
_COUNT_BY_STATE = "SELECT state, count(*) FROM delivery WHERE processed_at IS NULL GROUP BY state"
_COUNT_UNDELIVERED = """
SELECT reason, count(*) FROM undelivered WHERE replayed_as IS NULL GROUP BY reason
"""
# Forwarded mail is in the ledger of the gateway that sent it first.
_SELECT_LEDGER = """
SELECT state, outcome, reason, count(*) FROM delivery WHERE kind <> 'reply' AND origin IS NULL
GROUP BY state, outcome, reason
"""


def open_by_node(tx: Tx, own: str) -> dict[str, int]:
    """Open deliveries to each other gateway."""
    return {row[0]: row[1] for row in tx.fetch_all(_SELECT_OPEN_BY_NODE, (own,))}


def open_by_state(tx: Tx) -> dict[str, int]:
    return {row[0]: row[1] for row in tx.fetch_all(_COUNT_BY_STATE)}


def undelivered_by_reason(tx: Tx) -> dict[str, int]:
    return {row[0]: row[1] for row in tx.fetch_all(_COUNT_UNDELIVERED)}


def waiting_by_node(tx: Tx, own: str) -> list[Row]:
    """(node, reason, count, first emitted, most attempts) of deliveries without a receipt."""
    return tx.fetch_all(_SELECT_WAITING, (own,))


def accepted_by_node(tx: Tx, own: str) -> list[Row]:
    """(node, count) of open deliveries that were accepted."""
    return tx.fetch_all(_SELECT_ACCEPTED, (own,))


def read_ledger(tx: Tx) -> Ledger:
    """The messages that were sent from here, as far as the journal remembers them."""
    return make_ledger((row[0], row[1], row[2], row[3]) for row in tx.fetch_all(_SELECT_LEDGER))


def sender_of(tx: Tx, event_id: bytes) -> str | None:
    """The agent that sent a message from here."""
    row = tx.fetch_one("SELECT from_agent FROM delivery WHERE event_id = ?", (event_id,))
    return None if row is None else row[0]


def sent_conversation(tx: Tx, event_id: bytes) -> str | None:
    """The conversation of a message that was sent from here."""
    row = tx.fetch_one("SELECT corr_id FROM delivery WHERE event_id = ?", (event_id,))
    return None if row is None else row[0]


def count_undelivered(tx: Tx) -> int:
    """All messages that were given up, also those that were sent again."""
    ((count,),) = tx.fetch_all("SELECT count(*) FROM undelivered")
    return int(count)


def is_open(tx: Tx, event_id: bytes) -> bool:
    return tx.fetch_one(OPEN_DELIVERY_SQL.format(event="?"), (event_id,)) is not None


def find_route(tx: Tx, event_id: bytes) -> Row | None:
    """(node,) of a message: the node that it went to, or None if it has no route."""
    return tx.fetch_one("SELECT node FROM delivery WHERE event_id = ?", (event_id,))
