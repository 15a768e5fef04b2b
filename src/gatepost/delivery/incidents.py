"""The incident log: problems a person should know of. They are recorded, and never retried."""

from collections import Counter

from gatepost.journal.transaction import Tx

_RAISE = """
INSERT OR IGNORE INTO incident (id, class, subject, detail, raised_at, source)
VALUES (?, ?, ?, ?, ?, ?)
"""


class IncidentLog:
    """`counts` is by class, since the process started."""

    def __init__(self, node: str) -> None:
        self._node = node
        self.counts: Counter[str] = Counter()

    def raise_(self, tx: Tx, kind: str, subject: str, detail: str) -> None:
        """Record an incident. The same class and subject again is the same incident."""
        tx.execute(_RAISE, (f"{kind}:{subject}", kind, subject, detail[:500], tx.now, self._node))
        if tx.changed_rows():
            tx.add_effect(lambda: self.counts.update([kind]))
