"""Incidents on record, counted by class."""

from gatepost.journal import Tx

_COUNT_BY_CLASS = """
SELECT class, count(*) FROM incident WHERE raised_at >= ? GROUP BY class ORDER BY class
"""


def count_incidents(tx: Tx, since: int = 0) -> dict[str, int]:
    """Return class → number of incidents raised at `since` or later."""
    return {row[0]: row[1] for row in tx.fetch_all(_COUNT_BY_CLASS, (since,))}
