"""Quotas: how much of this journal one source may occupy with events that are not accepted yet.

An event beyond the quota is not taken. Its sender hears that it is held, for `quota`, and asks
again later, as for a mailbox that is full.
"""

from msgspec import Struct

from gatepost.journal.transaction import Tx

QUOTA = "quota"

_SELECT_USAGE = "SELECT events, bytes, pairs FROM source_usage WHERE source = ?"


class SourceLimits(Struct, frozen=True):
    """What one source may occupy. `pairs` are the pairs of agents between which it has sent."""

    held_events: int = 100_000
    held_bytes: int = 256 * 1024 * 1024
    pairs: int = 200_000


def excess_of_events(tx: Tx, source: str, limits: SourceLimits, size: int) -> str:
    """Why one more event of that size may not be held; empty if it may."""
    events, held, _ = _read_usage(tx, source)
    if events < limits.held_events and held + size <= limits.held_bytes:
        return ""
    return f"it has {events} events of {held} bytes here that cannot be accepted"


def excess_of_pairs(tx: Tx, source: str, limits: SourceLimits, added: int) -> str:
    """Why one more pair of agents may not be kept, beside those `added`; empty if it may."""
    pairs = _read_usage(tx, source)[2] + added
    return "" if pairs < limits.pairs else f"it has {pairs} pairs of agents here"


def _read_usage(tx: Tx, source: str) -> tuple[int, int, int]:
    row = tx.fetch_one(_SELECT_USAGE, (source,))
    return (0, 0, 0) if row is None else (row[0], row[1], row[2])
