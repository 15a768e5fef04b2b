"""The order of a pair, as its sender keeps it: numbers, the route they take, and what is settled.

A pair keeps its route as long as it has one. When the route changes while other numbers are still
open elsewhere, the pair is *moving*: who has later ones holds them until the sender tells it that
everything before is settled. It may move on, or back, while it does.
"""

from functools import partial
from typing import NamedTuple

from gatepost.journal.transaction import Tx

_NEXT = """
INSERT INTO pair_seq (from_agent, to_agent, last, node) VALUES (?, ?, 1, ?)
ON CONFLICT (from_agent, to_agent) DO UPDATE SET last = last + 1 RETURNING last, node, base
"""
_FIND = "SELECT last, node, base, moving FROM pair_seq WHERE from_agent = ? AND to_agent = ?"
_PIN = "UPDATE pair_seq SET node = ?, base = ?, moving = ? WHERE from_agent = ? AND to_agent = ?"
_LOWEST = """
SELECT min(pair_seq) FROM delivery
WHERE from_agent = ? AND to_agent = ? AND processed_at IS NULL AND pair_seq > 0
"""
_LOWEST_ELSEWHERE = _LOWEST + " AND node IS NOT ?"
_LOWEST_BY_NODE = """
SELECT node, min(pair_seq) FROM delivery
WHERE from_agent = ? AND to_agent = ? AND processed_at IS NULL AND pair_seq > 0
GROUP BY node ORDER BY 2
"""
_MOVING = "SELECT from_agent, to_agent FROM pair_seq WHERE moving > 0"

# The pair moves, and nobody was told how far others are settled.
_UNTOLD = 1

Pair = tuple[str, str]


class Place(NamedTuple):
    """Where an event stands in its pair, and what its receiver need not wait for."""

    number: int
    base: int


class Pairs:
    """`moving` is kept in memory so that closing a delivery costs nothing for all other pairs."""

    def __init__(self) -> None:
        self._moving: set[Pair] | None = None

    def next(self, tx: Tx, pair: Pair, node: str) -> Place:
        """The next number of a pair, for an event that goes to `node`."""
        ((last, pinned, base),) = tx.fetch_all(_NEXT, (*pair, node))
        if pinned == node:
            return Place(last, base)
        return Place(last, self.pin(tx, pair, node, last))

    def is_home(self, tx: Tx, pair: Pair, node: str) -> bool:
        """Whether nothing of the pair is on its way to another node than this."""
        row = tx.fetch_one(_FIND, pair)
        if row is None or (row[1] == node and not row[3]):
            return True
        return self._lowest(tx, _LOWEST_ELSEWHERE, (*pair, node)) is None

    def waits(self, tx: Tx, pair: Pair, node: str, number: int) -> bool:
        """Whether earlier numbers of a pair are still open elsewhere, so that `node` holds this."""
        if pair not in self._pairs(tx):
            return False
        return self._lowest(tx, _LOWEST_ELSEWHERE, (*pair, node), below=number) is not None

    def pin(self, tx: Tx, pair: Pair, node: str, first: int) -> int:
        """From number `first` on, the pair goes to `node`; returns what it need not wait for.

        Who gets a number that others were sent behind cannot know which of those have ended: only
        the old route was told.
        """
        ((last, pinned, _, _),) = tx.fetch_all(_FIND, pair)
        elsewhere = self._lowest(tx, _LOWEST_ELSEWHERE, (*pair, node)) is not None
        untold = elsewhere or (pinned != node and first < last)
        base = self._lowest(tx, _LOWEST, pair, below=first) or first
        tx.execute(_PIN, (node, base, _UNTOLD if untold else 0, *pair))
        if untold:
            self._pairs(tx).add(pair)
        return base

    def settled(self, tx: Tx, pair: Pair) -> tuple[str, int] | None:
        """After a number of a pair was settled: whom to tell, and up to where it is true now.

        Of all nodes that have open numbers, only the one with the lowest can go on, up to where the
        next one's begin. `moving` is where that was when somebody was last told.
        """
        if pair not in self._pairs(tx):
            return None
        ((last, node, _, moving),) = tx.fetch_all(_FIND, pair)
        lowest = tx.fetch_all(_LOWEST_BY_NODE, pair)
        is_open = bool(lowest)
        if node not in (row[0] for row in lowest):
            # What comes next goes there, and has to wait for what is open elsewhere.
            lowest.append((node, last + 1))
        end = lowest[1][1] if len(lowest) > 1 else 0
        if end and end == moving:
            return None
        tx.execute(_PIN, (node, lowest[0][1], end, *pair))
        if not end:
            tx.add_effect(partial(self._arrived, tx, pair))
        return (lowest[0][0], end - 1 if end else last) if is_open else None

    def _arrived(self, tx: Tx, pair: Pair) -> None:
        self._pairs(tx).discard(pair)
        tx.on_rollback(self.forget)

    def forget(self) -> None:
        """Read again what is moving, for memory and journal may differ."""
        self._moving = None

    def _pairs(self, tx: Tx) -> set[Pair]:
        if self._moving is None:
            self._moving = {(row[0], row[1]) for row in tx.fetch_all(_MOVING)}
        return self._moving

    def _lowest(self, tx: Tx, query: str, params: tuple[str, ...], below: int = 0) -> int | None:
        row = tx.fetch_one(query, params)
        lowest = row[0] if row else None
        return None if lowest is None or (below and lowest >= below) else int(lowest)
