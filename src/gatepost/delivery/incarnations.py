"""The lives of an outbox, as one line of events.

A restored journal goes on under a new name after the last event of its backup. What the earlier
life wrote after that is on no line any more, so a position in it counts as the line's fork.
"""

from collections.abc import Sequence

from gatepost.delivery.frames import Incarnation, Position

_NO_END = 2**53


def incarnation_at(lives: Sequence[Incarnation], seq: int) -> Incarnation:
    """The life in which this event was written; the first one, if it was before all."""
    return max((life for life in lives if life[1] <= seq), key=_first_seq, default=lives[0])


def next_stretch(lives: Sequence[Incarnation], after: int) -> tuple[Incarnation, int]:
    """The life the next event belongs to, and where that life ends."""
    life = incarnation_at(lives, after + 1)
    return life, last_seq_of(lives, life)


def last_seq_of(lives: Sequence[Incarnation], life: Incarnation) -> int:
    return min((first - 1 for _, first in lives if first > life[1]), default=_NO_END)


def position_after(lives: Sequence[Incarnation], positions: Sequence[Position], source: str) -> int:
    """How far a reader at these positions has read what is still one line of events."""
    known = {life: seq for node, life, seq in positions if node == source}
    for life in sorted(lives, key=_first_seq, reverse=True):
        if life[0] in known:
            return min(max(known[life[0]], life[1] - 1), last_seq_of(lives, life))
    return lives[0][1] - 1


def _first_seq(life: Incarnation) -> int:
    return life[1]
