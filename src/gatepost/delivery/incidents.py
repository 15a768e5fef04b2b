"""The incident log: problems a person should know of. They are recorded, and never retried."""

from collections import Counter

from gatepost.journal.transaction import Tx

# A peer can cause these as often as it likes. Their subjects begin with its name.
_CAUSED_BY_PEERS = frozenset(
    {
        "link_error",
        "skipped",
        "unreadable_event",
        "relay",
        "replica_gap",
        "blob_missing",
        "blob_forged",
        "blob_unused",
    }
)
_MOST_OF_PEER = 100
_PERIOD_MS = 3_600_000

_RAISE = """
INSERT OR IGNORE INTO incident (id, class, subject, detail, raised_at, source)
VALUES (?, ?, ?, ?, ?, ?)
"""


class IncidentLog:
    """`counts` is by class, since the process started.

    Of one class and one peer, at most 100 incidents are recorded in an hour; all are counted.
    """

    def __init__(self, node: str) -> None:
        self._node = node
        self.counts: Counter[str] = Counter()
        # (Class, peer) → incidents in this period.
        self._of_peers: Counter[tuple[str, str]] = Counter()
        self._period = 0

    def raise_(self, tx: Tx, kind: str, subject: str, detail: str) -> None:
        """Record an incident. The same class and subject again is the same incident."""
        if self._is_one_too_many(kind, subject, tx.now):
            tx.add_effect(lambda: self.counts.update([kind]))
            return
        tx.execute(_RAISE, (f"{kind}:{subject}", kind, subject, detail[:500], tx.now, self._node))
        if tx.changed_rows():
            tx.add_effect(lambda: self.counts.update([kind]))

    def _is_one_too_many(self, kind: str, subject: str, now: int) -> bool:
        if kind not in _CAUSED_BY_PEERS:
            return False
        if now // _PERIOD_MS != self._period:
            self._period = now // _PERIOD_MS
            self._of_peers.clear()
        key = (kind, subject.partition("/")[0].partition("@")[0])
        self._of_peers[key] += 1
        return self._of_peers[key] > _MOST_OF_PEER
