"""The incident log: problems a person should know of. They are recorded, and never retried."""

from collections import Counter

from gatepost.delivery.incident_table import amend_incident, raise_incident
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
        "backend_unhealthy",
    }
)
_MOST_OF_PEER = 100
_MOST_OF_CLASS = 1000
_PERIOD_MS = 3_600_000
# Stands for the peer in the count of a whole class.
_EVERYBODY = "all"


class IncidentLog:
    """`counts` is by class, since the process started.

    In an hour, at most 100 incidents of one class and one peer are recorded, and 1,000 of one
    class. All are counted; those beyond are one more incident, which says how many there were.
    """

    def __init__(self, node: str) -> None:
        self._node = node
        self.counts: Counter[str] = Counter()
        # (Class, peer) → incidents that were recorded in this period, and those beyond the bound.
        self._recorded: Counter[tuple[str, str]] = Counter()
        self._beyond: Counter[tuple[str, str]] = Counter()
        self._period = 0

    def raise_(self, tx: Tx, kind: str, subject: str, detail: str) -> None:
        """Record an incident. The same class and subject again is the same incident."""
        self._start_period(tx.now)
        bounds = _bounds_of(kind, subject)
        full = next((share for share, most in bounds if self._recorded[share] >= most), None)
        if full is not None:
            tx.add_effect(lambda: self.counts.update([kind]))
            self._note_beyond(tx, full, subject)
            return
        if raise_incident(tx, self._row(tx, kind, subject, detail)):
            self._recorded.update(share for share, _ in bounds)
            tx.add_effect(lambda: self.counts.update([kind]))

    def amend(self, tx: Tx, kind: str, subject: str, detail: str) -> None:
        """Raise an incident, or replace the detail of the one that is open."""
        amend_incident(tx, self._row(tx, kind, subject, detail))

    def _row(self, tx: Tx, kind: str, subject: str, detail: str) -> tuple[str | int, ...]:
        return f"{kind}:{subject}", kind, subject, detail[:500], tx.now, self._node

    def _start_period(self, now: int) -> None:
        if now // _PERIOD_MS != self._period:
            self._period = now // _PERIOD_MS
            self._recorded.clear()
            self._beyond.clear()

    def _note_beyond(self, tx: Tx, share: tuple[str, str], subject: str) -> None:
        """Update the number of unrecorded incidents each time it has doubled."""
        self._beyond[share] += 1
        number, (kind, peer) = self._beyond[share], share
        if number & (number - 1) == 0:
            detail = f"{number} or more others in this hour are not recorded, such as {subject}"
            self.amend(tx, kind, f"{peer}/others@{self._period * _PERIOD_MS}", detail)


def _bounds_of(kind: str, subject: str) -> list[tuple[tuple[str, str], int]]:
    """The limits that apply to an incident: (class, peer) and the maximum of each."""
    bounds = [((kind, _EVERYBODY), _MOST_OF_CLASS)]
    if kind in _CAUSED_BY_PEERS:
        peer = subject.partition("/")[0].partition("@")[0]
        bounds.insert(0, ((kind, peer), _MOST_OF_PEER))
    return bounds
