"""The order of a pair, as its sender keeps it: its numbers, their route, and how far it is closed.

A pair keeps its route as long as it has one. When the route changes while other numbers are still
open elsewhere, the pair is *moving*: the node that has later numbers holds them until the sender
tells it that everything before is closed. The pair may move on, or back, meanwhile. A parked number
is at no node, and every node with later numbers waits for it.
"""

from functools import partial
from typing import NamedTuple

from gatepost.delivery.delivery_states import IS_UNACCEPTED
from gatepost.delivery.outgoing import SenderPair
from gatepost.delivery.sender.delivery_table import IS_PARKED
from gatepost.journal.transaction import Tx

_OF_PAIR = "from_agent = ? AND to_agent = ? AND origin_node = ?"
_ADVANCE = """
INSERT INTO pair_seq (from_agent, to_agent, origin_node, last, node) VALUES (?, ?, ?, 1, ?)
ON CONFLICT (from_agent, to_agent, origin_node) DO UPDATE SET last = last + 1
RETURNING last, node, base
"""
_SELECT_PAIR = f"SELECT last, node, base, moving FROM pair_seq WHERE {_OF_PAIR}"
_SET_ROUTE = f"UPDATE pair_seq SET node = ?, base = ?, moving = ? WHERE {_OF_PAIR}"
_LOWEST_OPEN = f"""
SELECT min(pair_seq) FROM delivery WHERE {_OF_PAIR} AND processed_at IS NULL AND pair_seq > 0
"""
_LOWEST_OPEN_ELSEWHERE = f"{_LOWEST_OPEN} AND (node IS NOT ? OR {IS_PARKED})"
_LOWEST_NOT_HERE = f"{_LOWEST_OPEN} AND (node IS NOT ? OR {IS_UNACCEPTED})"
_LOWEST_OPEN_BY_NODE = f"""
SELECT iif({IS_PARKED}, NULL, node), min(pair_seq) FROM delivery
WHERE {_OF_PAIR} AND processed_at IS NULL AND pair_seq > 0
GROUP BY 1 ORDER BY 2
"""
_NOTE_PARKED = f"UPDATE pair_seq SET moving = ? WHERE {_OF_PAIR}"
_SELECT_MOVING = "SELECT from_agent, to_agent, origin_node FROM pair_seq WHERE moving > 0"

# The pair moves, and no node was told yet how far it is closed.
_UNTOLD = 1


class PairNumber(NamedTuple):
    """An event's number in its pair. Its receiver need not wait for numbers below `base`."""

    number: int
    base: int


class ClosedThrough(NamedTuple):
    """`node` is to be told that the pair is closed up to and with `number`."""

    node: str
    number: int


class SenderPairs:
    """The moving pairs are kept in memory, so that closing a number of any other costs nothing."""

    def __init__(self) -> None:
        self._moving: set[SenderPair] | None = None

    def next_number(self, tx: Tx, pair: SenderPair, node: str) -> PairNumber:
        """The next number of a pair, for an event that goes to `node`."""
        ((last, routed, base),) = tx.fetch_all(_ADVANCE, (*pair, node))
        if routed == node:
            return PairNumber(last, base)
        return PairNumber(last, self.set_route(tx, pair, node, last))

    def next_own_number(self, tx: Tx, pair: SenderPair, node: str) -> PairNumber:
        """The next number of a pair, for an event of `node` for itself.

        Numbers that were delivered locally never went through the inbox of this node, so it must
        not wait for them.
        """
        number = self.next_number(tx, pair, node).number
        return PairNumber(
            number, self._lowest_number(tx, _LOWEST_NOT_HERE, (*pair, node)) or number
        )

    def is_only_at(self, tx: Tx, pair: SenderPair, node: str) -> bool:
        """Whether no number of the pair is open at another node."""
        row = tx.fetch_one(_SELECT_PAIR, pair)
        if row is None or (row[1] == node and not row[3]):
            return True
        return self._lowest_number(tx, _LOWEST_OPEN_ELSEWHERE, (*pair, node)) is None

    def waits_for_others(self, tx: Tx, pair: SenderPair, node: str, number: int) -> bool:
        """Whether earlier numbers are still open elsewhere, so that `node` holds this one."""
        if not number or pair not in self._moving_pairs(tx):
            return False
        lowest = self._lowest_number(tx, _LOWEST_OPEN_ELSEWHERE, (*pair, node), below=number)
        return lowest is not None

    def set_route(self, tx: Tx, pair: SenderPair, node: str, first: int) -> int:
        """Route the pair to `node` from number `first` on; returns the base of that number.

        A node that gets a number which others were sent behind cannot know which of those have
        closed: only the old route was told. An unordered event, which has no number, moves nothing.
        """
        if not first:
            return 1
        ((last, routed, _, moving),) = tx.fetch_all(_SELECT_PAIR, pair)
        elsewhere = self._lowest_number(tx, _LOWEST_OPEN_ELSEWHERE, (*pair, node)) is not None
        # A pair that moves stops only when a node was told: this node may have restarted since.
        untold = elsewhere or moving > 0 or (routed != node and first < last)
        base = self._lowest_number(tx, _LOWEST_OPEN, pair, below=first) or first
        tx.execute(_SET_ROUTE, (node, base, _UNTOLD if untold else 0, *pair))
        if untold:
            self._moving_pairs(tx).add(pair)
        return base

    def close_numbers(self, tx: Tx, pair: SenderPair) -> ClosedThrough | None:
        """After a number was closed or moved: who has to be told, and up to which number.

        Of all nodes that have open numbers, only the one with the lowest can go on, up to where the
        next node's begin. `moving` is where that was when a node was last told.
        """
        if pair not in self._moving_pairs(tx):
            return None
        ((last, node, _, moving),) = tx.fetch_all(_SELECT_PAIR, pair)
        lowest = tx.fetch_all(_LOWEST_OPEN_BY_NODE, pair)
        is_open = bool(lowest)
        if node not in (row[0] for row in lowest):
            # The next number goes there, and has to wait for the numbers open elsewhere.
            lowest.append((node, last + 1))
        end = lowest[1][1] if len(lowest) > 1 else 0
        if end and end == moving:
            return None
        tx.execute(_SET_ROUTE, (node, lowest[0][1], end, *pair))
        if not end:
            tx.add_effect(partial(self._stop_moving, tx, pair))
        told = lowest[0][0] if is_open else None
        return None if told is None else ClosedThrough(told, end - 1 if end else last)

    def note_parked(self, tx: Tx, pair: SenderPair) -> None:
        """A number of the pair is at no node: no later number may overtake it."""
        tx.execute(_NOTE_PARKED, (_UNTOLD, *pair))
        self._moving_pairs(tx).add(pair)

    def forget_moving(self) -> None:
        """Read the moving pairs again, for memory and journal may differ."""
        self._moving = None

    def _stop_moving(self, tx: Tx, pair: SenderPair) -> None:
        ((_, _, _, moving),) = tx.fetch_all(_SELECT_PAIR, pair)
        # The same operation may have moved the pair again.
        if not moving:
            self._moving_pairs(tx).discard(pair)
            tx.on_rollback(self.forget_moving)

    def _moving_pairs(self, tx: Tx) -> set[SenderPair]:
        if self._moving is None:
            self._moving = {SenderPair(*row) for row in tx.fetch_all(_SELECT_MOVING)}
        return self._moving

    def _lowest_number(
        self, tx: Tx, query: str, params: tuple[str, ...], below: int = 0
    ) -> int | None:
        row = tx.fetch_one(query, params)
        lowest = row[0] if row else None
        return None if lowest is None or (below and lowest >= below) else int(lowest)
