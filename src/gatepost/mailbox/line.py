"""The consumers that wait for mail, their turns, and how many more messages each can take.

All of this is in memory and changes together with a transaction. Every change therefore registers
its reverse with `on_rollback`.
"""

from collections.abc import Callable
from functools import partial

from msgspec import Struct

from gatepost.journal.tx import Tx
from gatepost.mailbox.lease import Box, Lease
from gatepost.mailbox.settle import Freed
from gatepost.wire import Message


class Waiter(Struct, eq=False):
    """A waiting consumer that can take `credit` more messages.

    After the commit, `push` is called with the messages leased for it. With `once` it is served
    one batch only. `gone` may be set from any thread; a waiter that is gone is never served again.
    A consumer that comes back holding more messages than it asked for has a negative credit until
    it has settled the surplus.
    """

    box: Box
    consumer: str
    credit: int
    push: Callable[[list[Message]], None]
    once: bool = False
    gone: bool = False


class Line:
    """Knows which waiters wait for each mailbox, and which waiter holds each lease."""

    def __init__(self) -> None:
        self._members: set[Waiter] = set()
        # Waiters with credit only, the longest-waiting first; a dict for its order.
        self._waiting: dict[int, dict[Waiter, None]] = {}
        self._holders: dict[int, Waiter] = {}
        self._named: dict[tuple[int, str], Waiter] = {}

    def first(self, mailbox: int) -> Waiter | None:
        """Return the waiter whose turn it is."""
        return next(iter(self._waiting.get(mailbox, ())), None)

    def mailboxes(self) -> set[int]:
        return set(self._waiting)

    def is_served(self, mailbox: int) -> bool:
        return any(each.box.id == mailbox and not each.gone for each in self._members)

    def holds(self, waiter: Waiter, lease: Lease) -> bool:
        return self._holders.get(lease.id) is waiter

    def join(self, tx: Tx, waiter: Waiter) -> None:
        """Add a waiter. It replaces an earlier subscription of its consumer, which must be dead."""
        before = None if waiter.once else self._named.get(_name(waiter))
        if before is not None:
            self.part(tx, before)
        self._enter(waiter)
        tx.on_rollback(partial(self._exit, waiter))

    def part(self, tx: Tx, waiter: Waiter) -> None:
        """Remove a waiter; its leases are still attributed to it."""
        if waiter in self._members:
            self._exit(waiter)
            tx.on_rollback(partial(self._enter, waiter))

    def hand(self, tx: Tx, waiter: Waiter, lease: Lease) -> None:
        """Attribute the rest of `lease` to `waiter` instead of its previous holder."""
        before = self._holders.get(lease.id)
        if before is not None:
            self._credit(tx, before, lease.size)
        self._credit(tx, waiter, -lease.size)
        self._hold(lease.id, waiter)
        tx.on_rollback(partial(self._hold, lease.id, before))

    def free(self, tx: Tx, freed: Freed) -> None:
        """Return credit to the holder of messages that were settled or released."""
        waiter = self._holders.get(freed.lease)
        if waiter is None:
            return
        self._credit(tx, waiter, freed.size)
        if not freed.left:
            self._hold(freed.lease, None)
            tx.on_rollback(partial(self._hold, freed.lease, waiter))

    def _credit(self, tx: Tx, waiter: Waiter, size: int) -> None:
        self._change(waiter, size)
        tx.on_rollback(partial(self._change, waiter, -size))

    def _change(self, waiter: Waiter, size: int) -> None:
        """Change a waiter's credit; one that got mail goes last, so that consumers take turns."""
        waiter.credit += size
        if size < 0 or waiter.credit - size <= 0:
            self._place(waiter)

    def _hold(self, lease: int, waiter: Waiter | None) -> None:
        if waiter is None:
            self._holders.pop(lease, None)
        else:
            self._holders[lease] = waiter

    def _enter(self, waiter: Waiter) -> None:
        self._members.add(waiter)
        if waiter.consumer and not waiter.once:
            self._named[_name(waiter)] = waiter
        self._place(waiter)

    def _exit(self, waiter: Waiter) -> None:
        self._members.discard(waiter)
        if self._named.get(_name(waiter)) is waiter:
            del self._named[_name(waiter)]
        self._place(waiter)

    def _place(self, waiter: Waiter) -> None:
        turns = self._waiting.setdefault(waiter.box.id, {})
        turns.pop(waiter, None)
        if waiter.credit > 0 and waiter in self._members:
            turns[waiter] = None
        if not turns:
            del self._waiting[waiter.box.id]


def _name(waiter: Waiter) -> tuple[int, str]:
    return waiter.box.id, waiter.consumer
