"""What this gateway has taken from other outboxes, for status, traces and proofs."""

from gatepost.journal.transaction import Row, Tx

_SELECT_SOURCES = """
SELECT source FROM inbox WHERE event_id = ? AND source IN (SELECT source FROM cursor)
"""
_SELECT_CONVERSATION = """
SELECT corr_id FROM inbox WHERE event_id = ? AND source IN (SELECT source FROM cursor) LIMIT 1
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
