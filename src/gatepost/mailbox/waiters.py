"""The consumers that wait for mail, their turns, and the credit of each.

All of this is in memory and changes together with a transaction. Every change therefore registers
its reverse with `on_rollback`.
"""

from collections.abc import Callable
from functools import partial

from msgspec import Struct

from gatepost.journal.transaction import Tx
from gatepost.mailbox.leases import Lease, MailboxRef
from gatepost.mailbox.settle import FreedMail
from gatepost.wire.operations import LeasedMessage


class Waiter(Struct, eq=False):
    """A waiting consumer that can take `credit` more messages.

    After the commit, `push` is called with the messages leased for it. With `once` it is served one
    batch only. `gone` may be set from any thread; a waiter that is gone is never served again. If a
    returning consumer holds more messages than it asks for, its credit is negative until it has
    settled the surplus.
    """

    mailbox: MailboxRef
    consumer: str
    credit: int
    push: Callable[[list[LeasedMessage]], None]
    once: bool = False
    gone: bool = False


class WaiterQueue:
    """Knows which waiters wait for each mailbox, and which waiter holds each lease."""

    def __init__(self) -> None:
        self._waiters: set[Waiter] = set()
        # Waiters with credit only, the longest-waiting first; a dict for its order.
        self._turns: dict[int, dict[Waiter, None]] = {}
        self._lease_holders: dict[int, Waiter] = {}
        self._subscribers: dict[tuple[int, str], Waiter] = {}

    def start_round(self, tx: Tx, mailbox: int) -> list[Waiter]:
        """Return the waiters with credit, in their order; remove those that are gone."""
        waiters = list(self._turns.get(mailbox, ()))
        for waiter in waiters:
            if waiter.gone:
                self.remove_waiter(tx, waiter)
        return [waiter for waiter in waiters if not waiter.gone]

    def waiting_mailboxes(self) -> set[int]:
        return set(self._turns)

    def has_consumer(self, mailbox: int) -> bool:
        return any(each.mailbox.id == mailbox and not each.gone for each in self._waiters)

    def consumed_mailboxes(self) -> set[str]:
        """The mailboxes for whose mail a consumer waits."""
        return {each.mailbox.name for each in self._waiters if not each.gone}

    def holds_lease(self, waiter: Waiter, lease: Lease) -> bool:
        return self._lease_holders.get(lease.id) is waiter

    def add_waiter(self, tx: Tx, waiter: Waiter) -> None:
        """Add a waiter. It replaces an earlier subscription of its consumer, which must be dead."""
        before = None if waiter.once else self._subscribers.get(_consumer_key(waiter))
        if before is not None:
            self.remove_waiter(tx, before)
        self._add_member(waiter)
        tx.on_rollback(partial(self._remove_member, waiter))

    def remove_waiter(self, tx: Tx, waiter: Waiter) -> None:
        """Remove a waiter; its leases are still attributed to it."""
        if waiter in self._waiters:
            self._remove_member(waiter)
            tx.on_rollback(partial(self._add_member, waiter))

    def assign_lease(self, tx: Tx, waiter: Waiter, lease: Lease) -> None:
        """Attribute the rest of `lease` to `waiter` instead of its previous holder."""
        before = self._lease_holders.get(lease.id)
        if before is not None:
            self._adjust_credit(tx, before, lease.size)
        self._adjust_credit(tx, waiter, -lease.size)
        self._set_holder(lease.id, waiter)
        tx.on_rollback(partial(self._set_holder, lease.id, before))

    def free_lease(self, tx: Tx, freed: FreedMail) -> None:
        """Return credit to the holder of messages that were settled or released."""
        waiter = self._lease_holders.get(freed.lease)
        if waiter is None:
            return
        self._adjust_credit(tx, waiter, freed.size)
        if not freed.left:
            self._set_holder(freed.lease, None)
            tx.on_rollback(partial(self._set_holder, freed.lease, waiter))

    def _adjust_credit(self, tx: Tx, waiter: Waiter, size: int) -> None:
        self._apply_credit(waiter, size)
        tx.on_rollback(partial(self._apply_credit, waiter, -size))

    def _apply_credit(self, waiter: Waiter, size: int) -> None:
        """Change a waiter's credit; one that got mail moves to the end, so that they take turns."""
        waiter.credit += size
        if size < 0 or waiter.credit - size <= 0:
            self._requeue(waiter)

    def _set_holder(self, lease: int, waiter: Waiter | None) -> None:
        if waiter is None:
            self._lease_holders.pop(lease, None)
        else:
            self._lease_holders[lease] = waiter

    def _add_member(self, waiter: Waiter) -> None:
        self._waiters.add(waiter)
        if waiter.consumer and not waiter.once:
            self._subscribers[_consumer_key(waiter)] = waiter
        self._requeue(waiter)

    def _remove_member(self, waiter: Waiter) -> None:
        self._waiters.discard(waiter)
        if self._subscribers.get(_consumer_key(waiter)) is waiter:
            del self._subscribers[_consumer_key(waiter)]
        self._requeue(waiter)

    def _requeue(self, waiter: Waiter) -> None:
        turns = self._turns.setdefault(waiter.mailbox.id, {})
        turns.pop(waiter, None)
        if waiter.credit > 0 and waiter in self._waiters:
            turns[waiter] = None
        if not turns:
            del self._turns[waiter.mailbox.id]


def _consumer_key(waiter: Waiter) -> tuple[int, str]:
    return waiter.mailbox.id, waiter.consumer
