"""The order of a pair at its receiver: the next number to accept, and the numbers that wait.

The rules are in `gatepost.delivery.pairs`.
"""

from operator import attrgetter
from typing import NamedTuple

from msgspec import Struct

from gatepost.journal.transaction import Tx


class PairKey(NamedTuple):
    """A pair at its receiver. Each source numbers it separately, for each origin.

    `origin_node` is the node for which the source forwards mail; empty for its own mail.
    """

    source: str
    sender: str
    mailbox: str
    origin_node: str = ""


class InboxPair(Struct):
    """`next` is the next number to accept, `held` how many rows wait out of turn, and `offered`
    how many accepted offers are not confirmed. Numbers up to `closed` that are not held never come,
    except the one that was `refused` last: its sender decides what becomes of it.
    """

    incarnation: str
    next: int
    held: int = 0
    offered: int = 0
    closed: int = 0
    refused: int = 0
    changed: bool = False
    is_new: bool = False

    def advance_to(self, number: int) -> None:
        if number > self.next:
            self.next, self.changed = number, True
            if self.refused < number:
                # Its sender has decided, and may still withdraw earlier numbers.
                self.refused = 0

    def close_through(self, number: int) -> None:
        self.closed, self.changed = max(self.closed, number), True

    def reopen_number(self, number: int) -> None:
        """This number has not ended; those after it, up to the next one, stay accepted."""
        if number < self.next:
            self.close_through(self.next - 1)
            self.next = number

    def note_refused(self, number: int) -> None:
        """The sender may have closed the numbers around this one before it hears of the refusal.

        It sends the number again, withdraws it or gives it up. No later number is refused before.
        """
        if number == self.next:
            self.refused, self.changed = number, True

    def forget_refused(self) -> None:
        """The sender was restored, and decides nothing about the numbers from before."""
        self.refused, self.changed = 0, True

    def is_next_closed(self) -> bool:
        return self.next <= self.closed and self.next != self.refused

    def go_back_to(self, number: int) -> None:
        self.next, self.closed = min(self.next, number), min(self.closed, number - 1)
        if number == self.refused:
            self.refused = 0
        self.changed = True

    def count_held(self, more: int) -> None:
        self.held, self.changed = self.held + more, True

    def count_offered(self, more: int) -> None:
        self.offered, self.changed = max(0, self.offered + more), True

    def begin_incarnation(self, incarnation: str, number: int) -> None:
        """The source has a new incarnation, which may reuse numbers."""
        self.incarnation, self.refused = incarnation, 0
        self.go_back_to(number)


_KEY = PairKey._fields
_COLUMNS = ("incarnation", "next", "held", "offered", "closed", "refused")
_SELECT_PAIR = f"""
SELECT {", ".join(_COLUMNS)} FROM inbox_pair WHERE ({", ".join(_KEY)}) = (?, ?, ?, ?)
"""
_SAVE_PAIR = f"""
INSERT INTO inbox_pair ({", ".join((*_KEY, *_COLUMNS))}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT ({", ".join(_KEY)}) DO UPDATE SET
    {", ".join(f"{column} = excluded.{column}" for column in _COLUMNS)}
"""
_values_of = attrgetter(*_COLUMNS)


class InboxPairs:
    """The pairs of one transaction, each loaded once and saved at the end."""

    def __init__(self, incarnation: str) -> None:
        self.incarnation = incarnation
        self._loaded: dict[PairKey, InboxPair] = {}

    def load_pair(self, tx: Tx, key: PairKey) -> InboxPair:
        pair = self._loaded.get(key)
        if pair is None:
            row = tx.fetch_one(_SELECT_PAIR, key)
            pair = InboxPair(*row) if row else InboxPair(self.incarnation, 1, is_new=True)
            self._loaded[key] = pair
        return pair

    def save_changed(self, tx: Tx) -> None:
        loaded = self._loaded.items()
        rows = [(*key, *_values_of(pair)) for key, pair in loaded if pair.changed]
        tx.execute_many(_SAVE_PAIR, rows)


def pair_incarnation(tx: Tx, key: PairKey) -> str:
    """The incarnation of the outbox a pair was last read from."""
    row = tx.fetch_one(_SELECT_PAIR, key)
    return row[0] if row else ""
