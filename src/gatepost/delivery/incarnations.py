"""The incarnations of an outbox, as one line of events.

A restored journal goes on under a new incarnation after the last event of its backup. Events that
the earlier incarnation wrote after that backup are off the line, so a position behind the fork
counts as the fork itself.
"""

from collections.abc import Sequence

from gatepost.delivery.frames import Incarnation, Position
from gatepost.journal.transaction import Tx

_NO_END = 2**53
_SELECT_INCARNATIONS = "SELECT id, first_seq FROM incarnation ORDER BY first_seq"


def load_incarnations(tx: Tx) -> list[Incarnation]:
    """The incarnations of our own outbox."""
    return [(row[0], row[1]) for row in tx.fetch_all(_SELECT_INCARNATIONS)]


def incarnation_at(incarnations: Sequence[Incarnation], seq: int) -> Incarnation:
    """The incarnation that wrote event `seq`; the first one for anything before it."""
    started = (each for each in incarnations if each[1] <= seq)
    return max(started, key=_first_seq, default=incarnations[0])


def next_stretch(incarnations: Sequence[Incarnation], after: int) -> tuple[Incarnation, int]:
    """The incarnation of the event after `after`, and the last seq of that incarnation."""
    incarnation = incarnation_at(incarnations, after + 1)
    return incarnation, last_seq_of(incarnations, incarnation)


def last_seq_of(incarnations: Sequence[Incarnation], incarnation: Incarnation) -> int:
    later = (first - 1 for _, first in incarnations if first > incarnation[1])
    return min(later, default=_NO_END)


def position_after(
    incarnations: Sequence[Incarnation], positions: Sequence[Position], source: str
) -> int:
    """How far a reader at these positions has read the events that are still on the line."""
    known = {incarnation: seq for node, incarnation, seq in positions if node == source}
    for incarnation in sorted(incarnations, key=_first_seq, reverse=True):
        name, first = incarnation
        if name in known:
            return min(max(known[name], first - 1), last_seq_of(incarnations, incarnation))
    return incarnations[0][1] - 1


def _first_seq(incarnation: Incarnation) -> int:
    return incarnation[1]
