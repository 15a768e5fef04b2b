"""Open incidents that are not over, counted by class."""

from gatepost.journal import Tx

_COUNT_BY_CLASS = """
SELECT class, count(*) FROM incident WHERE raised_at >= ? AND status = 'open' AND ended_at IS NULL
GROUP BY class ORDER BY class
"""
_COUNT_OPEN = """
SELECT class, count(*) FROM incident WHERE status = 'open' GROUP BY class ORDER BY class LIMIT ?
"""


def count_incidents(tx: Tx, since: int = 0) -> dict[str, int]:
    """Return class → number of open incidents, not over, that were raised at `since` or later."""
    return {row[0]: row[1] for row in tx.fetch_all(_COUNT_BY_CLASS, (since,))}


def open_incidents(tx: Tx, limit: int) -> tuple[tuple[str, int], ...]:
    """(class, count) of the incidents that were not settled, of the first classes."""
    return tuple((row[0], row[1]) for row in tx.fetch_all(_COUNT_OPEN, (limit,)))
