"""Queries on the events taken from other outboxes, for status, traces and proofs."""

from typing import NamedTuple

from gatepost.journal.transaction import Row, Tx

_SELECT_SOURCES = """
SELECT source FROM inbox WHERE event_id = ? AND source IN (SELECT source FROM cursor)
"""
_SELECT_CONVERSATION = """
SELECT corr_id FROM inbox WHERE event_id = ? AND source IN (SELECT source FROM cursor) LIMIT 1
"""
_SELECT_TAKEN = """
SELECT source, state, mailbox, sender, at, reason FROM inbox WHERE source = ? AND event_id = ?
"""
_COUNT_HELD = "SELECT why, count(*) FROM held WHERE event_id IS NOT NULL GROUP BY why"
# Held events were taken, but have no receipt yet.
_SELECT_PROGRESS = """
SELECT sum(seq - first_seq + 1), max(at), (SELECT count(*) FROM held WHERE event_id IS NOT NULL)
FROM cursor
"""
_SELECT_SEEN = """
SELECT seq, at, x'' FROM cursor WHERE source = ?1 AND incarnation = ?2 AND seq >= ?3
"""


class TakenEvent(NamedTuple):
    source: str
    state: str
    mailbox: str
    sender: str
    at: int
    reason: str | None


def find_taken(tx: Tx, source: str, event_id: bytes) -> TakenEvent | None:
    """An event that was taken from the outbox of `source`."""
    row = tx.fetch_one(_SELECT_TAKEN, (source, event_id))
    return None if row is None else TakenEvent(*row)


def taken_in(tx: Tx, corr_id: str, limit: int) -> list[bytes]:
    """The events of a conversation that were taken here, oldest first."""
    sql = "SELECT event_id FROM inbox WHERE corr_id = ? ORDER BY event_id LIMIT ?"
    return [row[0] for row in tx.fetch_all(sql, (corr_id, limit))]


def sources_of(tx: Tx, event_id: bytes) -> list[str]:
    """The outboxes from which an event was taken."""
    return [row[0] for row in tx.fetch_all(_SELECT_SOURCES, (event_id,))]


def taken_conversation(tx: Tx, event_id: bytes) -> str | None:
    """The conversation of a message that was taken from another outbox."""
    row = tx.fetch_one(_SELECT_CONVERSATION, (event_id,))
    return None if row is None else row[0]


def held_by_reason(tx: Tx) -> dict[str, int]:
    return {row[0]: row[1] for row in tx.fetch_all(_COUNT_HELD)}


def read_progress(tx: Tx) -> tuple[int | None, int | None, int]:
    """The events taken from all outboxes, the time of the last one, and how many are held."""
    ((taken, last_at, held),) = tx.fetch_all(_SELECT_PROGRESS)
    return taken, last_at, held


def seen_position(tx: Tx, source: str, incarnation: str, seq: int) -> Row | None:
    """(seq, at, no chain) of our position in an outbox, if that is at `seq` or behind it."""
    return tx.fetch_one(_SELECT_SEEN, (source, incarnation, seq))
