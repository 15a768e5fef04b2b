"""Queries on deliveries, for status, metrics, alerts and the hub."""

from typing import NamedTuple

from gatepost.journal.transaction import Row, Tx
from gatepost.ledger import Ledger, make_ledger

# Follows `NOT EXISTS`: whether the delivery of `{event}` is open.
OPEN_DELIVERY_SQL = "SELECT 1 FROM delivery d WHERE d.event_id = {event} AND d.processed_at IS NULL"
_SELECT_OPEN_BY_NODE = """
SELECT node, count(*) FROM delivery WHERE processed_at IS NULL AND node IS NOT NULL AND node <> ?
GROUP BY node
"""
# Deliveries without a receipt, by the owner's reason.
# Open deliveries to others, by the ranges of the index: most are to agents of this gateway.
_SELECT_WAITING = """
WITH elsewhere AS (
    SELECT * FROM delivery WHERE processed_at IS NULL AND node < ?1
    UNION ALL SELECT * FROM delivery WHERE processed_at IS NULL AND node > ?1
    UNION ALL SELECT * FROM delivery WHERE processed_at IS NULL AND node IS NULL
)
SELECT node, reason, count(*), min(emitted_at), max(attempt) FROM elsewhere
WHERE accepted_at IS NULL GROUP BY node, reason
"""
_SELECT_ACCEPTED = """
WITH elsewhere AS (
    SELECT * FROM delivery WHERE processed_at IS NULL AND node < ?1
    UNION ALL SELECT * FROM delivery WHERE processed_at IS NULL AND node > ?1
    UNION ALL SELECT * FROM delivery WHERE processed_at IS NULL AND node IS NULL
)
SELECT node, count(*) FROM elsewhere WHERE accepted_at IS NOT NULL GROUP BY node
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
# What became of them by a moment: what is known of a message now, as far as it happened before.
_SELECT_LEDGER_AT = """
SELECT CASE WHEN processed_at <= ?1 THEN state WHEN accepted_at <= ?1 THEN 'accepted'
    ELSE 'emitted' END,
    CASE WHEN processed_at <= ?1 THEN outcome END, CASE WHEN processed_at <= ?1 THEN reason END,
    count(*)
FROM delivery WHERE kind <> 'reply' AND origin IS NULL AND emitted_at <= ?1 GROUP BY 1, 2, 3
"""
_SELECT_RECORD = """
SELECT kind, from_agent, to_agent, node, outcome, reason, accepted_at, processed_at, state, verdict,
    verdict_at, emitted_at
FROM delivery WHERE event_id = ?
"""
_SELECT_GIVEN_UP = """
SELECT kind, from_agent, to_agent, node, NULL, reason, NULL, failed_at, 'dead_letter', verdict,
    verdict_at, NULL
FROM undelivered WHERE event_id = ?
"""


class DeliveryRecord(NamedTuple):
    """The sender's record of a message. `emitted_at` is None if the delivery is forgotten."""

    kind: str
    from_agent: str
    to_agent: str
    node: str | None
    outcome: str | None
    reason: str | None
    accepted_at: int | None
    processed_at: int | None
    state: str
    verdict: str | None
    verdict_at: int | None
    emitted_at: int | None


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


def read_ledger(tx: Tx, at: int | None = None) -> Ledger:
    """The messages that were sent from here, as far as the journal remembers them: now, or `at`."""
    rows = tx.fetch_all(_SELECT_LEDGER) if at is None else tx.fetch_all(_SELECT_LEDGER_AT, (at,))
    return make_ledger((row[0], row[1], row[2], row[3]) for row in rows)


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


def find_record(tx: Tx, event_id: bytes) -> DeliveryRecord | None:
    """The record of a message: its delivery, or the copy kept after it was given up."""
    id = (event_id,)
    row = tx.fetch_one(_SELECT_RECORD, id) or tx.fetch_one(_SELECT_GIVEN_UP, id)
    return None if row is None else DeliveryRecord(*row)


def local_mailboxes(tx: Tx, event_id: bytes, own: str) -> list[str]:
    """The mailbox of this gateway to which a message was sent from here, if it was."""
    sql = "SELECT to_agent FROM delivery WHERE event_id = ? AND node = ?"
    return [row[0] for row in tx.fetch_all(sql, (event_id, own))]


def sent_in(tx: Tx, corr_id: str, limit: int) -> list[bytes]:
    """The events of a conversation that were sent from here, oldest first."""
    sql = "SELECT event_id FROM delivery WHERE corr_id = ? ORDER BY event_id LIMIT ?"
    return [row[0] for row in tx.fetch_all(sql, (corr_id, limit))]


def count_open(tx: Tx) -> int:
    ((count,),) = tx.fetch_all("SELECT count(*) FROM delivery WHERE processed_at IS NULL")
    return int(count)


def count_given_up(tx: Tx) -> tuple[int, int]:
    """(messages that were given up and not sent again, those that were answered late)"""
    ((count, late),) = tx.fetch_all(
        "SELECT count(*), count(verdict_at) FROM undelivered WHERE replayed_as IS NULL"
    )
    return int(count), int(late)


def is_blob_sent_to(tx: Tx, digest: str, node: str) -> bool:
    """Whether a message with this blob was sent to a node."""
    sql = "SELECT 1 FROM delivery WHERE digest = ? AND node = ? LIMIT 1"
    return tx.fetch_one(sql, (digest, node)) is not None


def is_open(tx: Tx, event_id: bytes) -> bool:
    return tx.fetch_one(OPEN_DELIVERY_SQL.format(event="?"), (event_id,)) is not None


def find_route(tx: Tx, event_id: bytes) -> Row | None:
    """(node,) of a message: the node that it went to, or None if it has no route."""
    return tx.fetch_one("SELECT node FROM delivery WHERE event_id = ?", (event_id,))
