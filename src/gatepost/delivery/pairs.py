"""The theory of pairs and their numbers, and the table in which a sender keeps them.

A *pair* is a sender agent and a receiver agent. A gateway numbers the events that it emits for a
pair 1, 2, 3, ... and the node that the pair goes to accepts them in that order. Mail that a gateway
forwards has a separate sequence for each origin, so that two gateways which forward mail of each
other never wait for each other. The rules that make a pair first in, first out:

1. Every ordered event has a number, and a number is assigned once. A message that comes back to a
   gateway keeps the number that it has there (`find_numbered`), or it would wait behind itself.
2. A number is *open* until its delivery has ended, and *closed* from then on. A number whose turn
   has ended is closed too, though its reply may still be under way. Closed numbers never open
   again, except by a receiver that forwards what it accepted (`InboxPair.reopen_number`).
3. A receiver accepts the next number, holds those that come early, and passes over those that
   never come: below the `pair_base` of an event, named by a dead letter, or covered by
   `pair_closed`.
4. The unaccepted numbers of a pair at one node move together. They move to a fallback only if
   that node has accepted none that is still open. After a refusal they move anyway, and rule 5
   keeps their order.
5. A node that gets a number while earlier numbers are open at other nodes holds it, until the
   sender tells that node with `pair_closed` through which number everything is closed, on every
   gateway.
6. Of all nodes with open numbers, only the one with the lowest can go on. It is told how far: up
   to the first number that is open elsewhere, or parked. So no two nodes wait for each other.
7. A *parked* number is at no node. Every node with later numbers waits for it.
8. An unordered event has the number 0. It waits for nothing, and nothing waits for it.

A pair whose open numbers are not all at the node where its next number goes is *moving*. For such a
pair, `moving` is the number through which the node with the lowest open numbers was told to go,
plus one; all open numbers below it are at that node. Any change of the route resets it to "not
told". So a search for numbers open elsewhere begins at `moving`, and no number is looked at again
for each other one. A pair stops moving only when a node was told, since memory may be lost.

| column | meaning |
|---|---|
| `last` | the last number that was assigned |
| `node` | where the next number goes |
| `base` | numbers below it are closed, as far as `node` has to know |
| `moving` | 0 unless the pair moves |

The receiver's half is in `inbox/inbox_pairs.py`: `next`, what is held, and what is closed.
"""

from functools import partial
from typing import NamedTuple

from gatepost.delivery.delivery_states import IS_UNACCEPTED
from gatepost.delivery.delivery_table import IS_PARKED
from gatepost.delivery.outgoing import SenderPair
from gatepost.journal.transaction import Tx

_OF_PAIR = "from_agent = ? AND to_agent = ? AND origin_node = ?"
_ADVANCE = """
INSERT INTO pair_seq (from_agent, to_agent, origin_node, last, node) VALUES (?, ?, ?, 1, ?)
ON CONFLICT (from_agent, to_agent, origin_node) DO UPDATE SET last = last + 1
RETURNING last, node, base
"""
_SELECT_PAIR = f"SELECT last, node, base, moving FROM pair_seq WHERE {_OF_PAIR}"
_SET_ROUTE = f"UPDATE pair_seq SET node = ?, base = ?, moving = ? WHERE {_OF_PAIR}"
_SELECT_LOWEST_OPEN = f"""
SELECT pair_seq, iif({IS_PARKED}, NULL, node) FROM delivery
WHERE {_OF_PAIR} AND processed_at IS NULL AND pair_seq > 0 ORDER BY pair_seq LIMIT 1
"""
_SELECT_OPEN_ELSEWHERE = f"""
SELECT pair_seq FROM delivery WHERE {_OF_PAIR} AND processed_at IS NULL
    AND pair_seq >= ? AND pair_seq < ? AND (node IS NOT ? OR {IS_PARKED})
ORDER BY pair_seq LIMIT 1
"""
_SELECT_LOWEST_NOT_HERE = f"""
SELECT min(pair_seq) FROM delivery WHERE {_OF_PAIR} AND processed_at IS NULL AND pair_seq > 0
    AND (node IS NOT ? OR {IS_UNACCEPTED})
"""
_NOTE_PARKED = f"UPDATE pair_seq SET moving = ? WHERE {_OF_PAIR}"
_SELECT_MOVING = "SELECT from_agent, to_agent, origin_node FROM pair_seq WHERE moving > 0"

# The pair moves, and no node was told yet through which number it is closed.
_UNTOLD = 1
_ABOVE_ALL = 1 << 62


class PairNumber(NamedTuple):
    """An event's number in its pair. Its receiver does not wait for numbers below `base`."""

    number: int
    base: int


class LowestOpen(NamedTuple):
    """The lowest open number of a pair, and the node it is at: None if it is parked."""

    number: int
    node: str | None


class ClosedThrough(NamedTuple):
    """Tell `node` that the pair is closed through `number`."""

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
        ((base,),) = tx.fetch_all(_SELECT_LOWEST_NOT_HERE, (*pair, node))
        return PairNumber(number, base or number)

    def is_only_at(self, tx: Tx, pair: SenderPair, node: str) -> bool:
        """Whether no number of the pair is open at another node."""
        row = tx.fetch_one(_SELECT_PAIR, pair)
        if row is None or (row[1] == node and not row[3]):
            return True
        return self._lowest_elsewhere(tx, pair, node) is None

    def waits_for_others(self, tx: Tx, pair: SenderPair, node: str, number: int) -> bool:
        """Whether earlier numbers are still open elsewhere, so that `node` holds this one."""
        if not number or pair not in self._moving_pairs(tx):
            return False
        return self._lowest_elsewhere(tx, pair, node, below=number) is not None

    def set_route(self, tx: Tx, pair: SenderPair, node: str, first: int) -> int:
        """Route the pair to `node` from number `first` on; returns the base of that number.

        A node that gets a number which others were sent behind cannot know which of those have
        closed: only the old route was told. An unordered event, which has no number, moves nothing.
        """
        if not first:
            return 1
        ((last, routed, _, moving),) = tx.fetch_all(_SELECT_PAIR, pair)
        lowest = self._lowest_open(tx, pair)
        elsewhere = lowest is not None and lowest.node != node
        # A moving pair stops only after a node was told, because this process may have restarted.
        untold = elsewhere or moving > 0 or (routed != node and first < last)
        base = first if lowest is None else min(lowest.number, first)
        tx.execute(_SET_ROUTE, (node, base, _UNTOLD if untold else 0, *pair))
        if untold:
            self._moving_pairs(tx).add(pair)
        return base

    def close_numbers(self, tx: Tx, pair: SenderPair) -> ClosedThrough | None:
        """After a number was closed or moved: the node to tell, and through which number.

        Of all nodes that have open numbers, only the one with the lowest can go on, up to where the
        next node's begin. `moving` is where that was when a node was last told.
        """
        if pair not in self._moving_pairs(tx):
            return None
        ((last, node, _, moving),) = tx.fetch_all(_SELECT_PAIR, pair)
        lowest = self._lowest_open(tx, pair)
        if lowest is None:
            self._stop_moving(tx, pair, node, last + 1)
            return None
        if lowest.node is None:
            tx.execute(_SET_ROUTE, (node, lowest.number, _UNTOLD, *pair))
            return None
        end = self._lowest_elsewhere(tx, pair, lowest.node)
        if end is None and lowest.node == node:
            self._stop_moving(tx, pair, node, lowest.number)
            return ClosedThrough(node, last)
        # Otherwise the next number goes elsewhere, and has to wait for the numbers open here.
        end = last + 1 if end is None else end
        if end == moving:
            return None
        tx.execute(_SET_ROUTE, (node, lowest.number, end, *pair))
        return ClosedThrough(lowest.node, end - 1)

    def note_parked(self, tx: Tx, pair: SenderPair) -> None:
        """A number of the pair is at no node: no later number may overtake it."""
        tx.execute(_NOTE_PARKED, (_UNTOLD, *pair))
        self._moving_pairs(tx).add(pair)

    def forget_moving(self) -> None:
        """Read the moving pairs again, for memory and journal may differ."""
        self._moving = None

    def _stop_moving(self, tx: Tx, pair: SenderPair, node: str, base: int) -> None:
        """All open numbers of the pair are at the node where the next one goes."""
        tx.execute(_SET_ROUTE, (node, base, 0, *pair))
        tx.add_effect(partial(self._forget_stopped, tx, pair))

    def _forget_stopped(self, tx: Tx, pair: SenderPair) -> None:
        ((_, _, _, moving),) = tx.fetch_all(_SELECT_PAIR, pair)
        # The same operation may have moved the pair again.
        if not moving:
            self._moving_pairs(tx).discard(pair)
            tx.on_rollback(self.forget_moving)

    def _moving_pairs(self, tx: Tx) -> set[SenderPair]:
        if self._moving is None:
            self._moving = {SenderPair(*row) for row in tx.fetch_all(_SELECT_MOVING)}
        return self._moving

    def _lowest_open(self, tx: Tx, pair: SenderPair) -> LowestOpen | None:
        row = tx.fetch_one(_SELECT_LOWEST_OPEN, pair)
        return None if row is None else LowestOpen(*row)

    def _lowest_elsewhere(
        self, tx: Tx, pair: SenderPair, node: str, below: int = _ABOVE_ALL
    ) -> int | None:
        """The lowest number under `below` that is open, and not at `node`.

        The search begins at `moving`: every open number below it is where the lowest one is.
        """
        lowest = self._lowest_open(tx, pair)
        if lowest is None or lowest.number >= below:
            return None
        if lowest.node != node:
            return lowest.number
        ((_, _, _, moving),) = tx.fetch_all(_SELECT_PAIR, pair)
        span = (max(lowest.number, moving), below)
        row = tx.fetch_one(_SELECT_OPEN_ELSEWHERE, (*pair, *span, node))
        return None if row is None else int(row[0])
