"""Quotas: how much of this journal one source may occupy with events that are not accepted yet.

An event beyond the quota is not taken. Its sender hears that it is held, for `quota`, and asks
again later, as for a mailbox that is full.
"""

from typing import TYPE_CHECKING

from msgspec import Struct

from gatepost.delivery.abuse import AbuseKind
from gatepost.journal.transaction import Tx

if TYPE_CHECKING:
    from gatepost.delivery.receiver.acceptance import ReceiverParts

QUOTA = "quota"

_SELECT_USAGE = "SELECT events, bytes, pairs FROM source_usage WHERE source = ?"


class SourceLimits(Struct, frozen=True):
    """What one source may occupy. `pairs` are the pairs of agents between which it has sent."""

    held_events: int = 100_000
    held_bytes: int = 256 * 1024 * 1024
    pairs: int = 200_000


class SourceQuota:
    """The quota of one source, in one transaction."""

    def __init__(self, parts: "ReceiverParts", tx: Tx, source: str) -> None:
        self._tx = tx
        self._source = source
        self._limits = parts.limits
        self._abuse = parts.abuse
        self._is_own = source == parts.node.id
        # Pairs are saved when the transaction ends.
        self._added_pairs = 0

    def can_hold(self, size: int) -> bool:
        """Whether one more event of that size may be held. If not, that is reported."""
        limits, (events, held, _) = self._limits, self._read_usage()
        if self._is_own or (events < limits.held_events and held + size <= limits.held_bytes):
            return True
        return self._report(f"it has {events} events of {held} bytes here that cannot be accepted")

    def can_add_pair(self) -> bool:
        """Whether one more pair of agents may be kept. If not, that is reported."""
        pairs = self._read_usage()[2] + self._added_pairs
        if self._is_own or pairs < self._limits.pairs:
            self._added_pairs += 1
            return True
        return self._report(f"it has {pairs} pairs of agents here")

    def _read_usage(self) -> tuple[int, int, int]:
        row = self._tx.fetch_one(_SELECT_USAGE, (self._source,))
        return (0, 0, 0) if row is None else (row[0], row[1], row[2])

    def _report(self, detail: str) -> bool:
        self._abuse.report_abuse(self._source, AbuseKind.QUOTA_EXCEEDED, detail)
        return False
