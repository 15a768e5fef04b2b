"""What went wrong and somebody should know of: counted, written down, never retried by itself."""

from collections import Counter

from gatepost.journal.transaction import Tx

_RAISE = """
INSERT OR IGNORE INTO incident (id, class, subject, detail, raised_at, source)
VALUES (?, ?, ?, ?, ?, ?)
"""


class Incidents:
    """`counts` is by class, since the process started."""

    def __init__(self, node: str) -> None:
        self._node = node
        self.counts: Counter[str] = Counter()

    def raise_(self, tx: Tx, kind: str, subject: str, detail: str) -> None:
        """The same class and subject again is the same incident."""
        tx.execute(_RAISE, (f"{kind}:{subject}", kind, subject, detail[:500], tx.now, self._node))
        if tx.changed_rows():
            tx.add_effect(lambda: self.counts.update([kind]))
