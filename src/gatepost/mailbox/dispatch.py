"""All operations on one gateway's mailboxes, and the service of waiting consumers.

A waiting consumer is served in the same transaction that makes mail available to it. A message
that finds a waiting consumer therefore costs one commit from enqueue to lease, and an ack shares
its commit with the lease of the next message. All of this runs in the writer thread.
"""

from collections.abc import Callable, Iterator
from functools import partial

from gatepost.clock import Clock
from gatepost.errors import GatepostError
from gatepost.journal.tx import Tx
from gatepost.journal.writer import Outcome
from gatepost.mailbox import deadletters, sweep
from gatepost.mailbox.enqueue import Mail, enqueue, find_mailbox, mailbox_id
from gatepost.mailbox.lease import Box, Taken, again, extend, held_by, parse_receipt, release, take
from gatepost.mailbox.line import Line, Waiter
from gatepost.mailbox.policy import Policy
from gatepost.mailbox.settle import Closed, Freed, Settlement, ack, nack, refs_of
from gatepost.wire import EnqueueAck, Message

__all__ = ["Dispatcher", "Waiter"]

# How many messages one commit group hands to waiters; the next group continues with the rest.
_SERVING = 2000


class Dispatcher:
    """Performs mailbox operations and takes part in every commit group.

    `ack` and `nack` return the messages they closed. `on_closed` is called with messages closed
    by a timeout, by expiry or by a purge.
    """

    def __init__(
        self, clock: Clock, policy: Policy, on_closed: Callable[[Tx, list[Closed]], None]
    ) -> None:
        self.policy = policy
        self._lease_ids = _random_ids(clock)
        self._on_closed = on_closed
        self._line = Line()
        # Mailboxes in which a message may have become ready or a waiter may have got credit.
        self._touched: set[int] = set()
        # The touched mailboxes of the group that is about to commit.
        self.ready: set[int] = set()
        self._served: list[tuple[Waiter, list[Message]]] = []
        # When the next sweep is due, None for never. 0 makes the current group sweep.
        self._due: int | None = 0
        # The time of the previous group.
        self._clock_was: int | None = None
        # Called with every batch of leased messages, each of which begins a turn.
        self.on_leased: Callable[[list[Message]], None] | None = None

    # -- operations

    def enqueue(
        self, tx: Tx, to: str, sender: str, mails: list[Mail], over: bool = False
    ) -> list[EnqueueAck]:
        """Enqueue one sender's messages. `over` lets them in even if the mailbox is full.

        It is for messages that this gateway has already accepted.
        """
        id = mailbox_id(tx, to)
        tx.effect(partial(self._touch, {id}))
        return enqueue(tx, id, sender, mails, self.policy, over)

    def dequeue(self, tx: Tx, mailbox: str, consumer: str, limit: int) -> list[Message]:
        """Return the messages `consumer` already holds, or else lease new ones."""
        self._sweep(tx)
        box = self.box(tx, mailbox)
        held = held_by(tx, box.id, consumer) if consumer else []
        if held:
            return again(tx, box, held, limit, self.policy)
        return self._take(tx, box, consumer, limit).messages

    def wait(self, tx: Tx, waiter: Waiter) -> list[Message]:
        """Serve `waiter` as mail comes. Return the messages its consumer already holds."""
        box, credit = waiter.box, waiter.credit
        held = held_by(tx, box.id, waiter.consumer) if waiter.consumer else []
        limit = credit if waiter.once else sum(lease.size for lease in held)
        for lease in held:
            tx.effect(partial(self._line.hand, tx, waiter, lease))
        if not (waiter.once and held):
            tx.effect(partial(self._line.join, tx, waiter))
        tx.effect(partial(self._touch, {box.id}))
        return again(tx, box, held, limit, self.policy)

    def ack(self, tx: Tx, mailbox: str, receipts: list[str], msg_ids: list[str]) -> Settlement:
        id = find_mailbox(tx, mailbox)
        refs, failures = refs_of(tx, id, receipts, msg_ids)
        result = ack(tx, id, refs)
        result.failures += failures
        return self._settled(tx, id, result)

    def nack(
        self, tx: Tx, mailbox: str, receipts: list[str], msg_ids: list[str], reason: str
    ) -> Settlement:
        id = find_mailbox(tx, mailbox)
        refs, failures = refs_of(tx, id, receipts, msg_ids)
        result = nack(tx, id, refs, reason, self.policy)
        result.failures += failures
        tx.effect(self._look_at_the_clock)
        return self._settled(tx, id, result)

    def extend(self, tx: Tx, mailbox: str, receipts: list[str]) -> list[str]:
        """Extend these leases; return the lease handles whose lease no longer exists."""
        id = find_mailbox(tx, mailbox)
        return [text for text in receipts if not self._extend(tx, id, text)]

    def leave(self, tx: Tx, waiter: Waiter) -> None:
        """Stop serving a consumer. It keeps its leases, because it may come back."""
        waiter.gone = True
        tx.effect(partial(self._line.part, tx, waiter))

    def give_up(self, tx: Tx, waiter: Waiter) -> None:
        """Stop serving a consumer for good and release its leases; no attempt is counted."""
        self.leave(tx, waiter)
        held = [
            lease
            for lease in held_by(tx, waiter.box.id, waiter.consumer)
            if self._line.holds(waiter, lease)
        ]
        for lease in held:
            release(tx, lease)
        freed = [Freed(lease.id, lease.size, 0) for lease in held]
        tx.effect(self._look_at_the_clock)
        tx.effect(partial(self._free, tx, waiter.box.id, freed))

    def purge(self, tx: Tx, mailbox: str, limit: int, actor: str) -> int:
        """Turn up to `limit` waiting messages into dead letters; repeat until it returns 0."""
        box = self.box(tx, mailbox)
        size, closed = deadletters.purge(tx, box.id, min(limit, sweep.BATCH), actor)
        self._close(tx, closed)
        tx.effect(partial(self._touch, {box.id}))
        return size

    def pass_on(self, tx: Tx, mailbox: str, consumer: str, limit: int) -> list[Message]:
        """Remove and return waiting mail; the caller forwards it and reports its outcome."""
        messages = self._take(tx, self.box(tx, mailbox), consumer, limit).messages
        if messages:
            self.ack(tx, mailbox, [message.receipt for message in messages], [])
        return messages

    def is_served(self, tx: Tx, mailbox: str) -> bool:
        """Tell whether a consumer waits for this mailbox's mail."""
        return self._line.is_served(find_mailbox(tx, mailbox))

    def box(self, tx: Tx, name: str) -> Box:
        return Box(mailbox_id(tx, name), name)

    # -- the commit group

    def before_commit(self, tx: Tx) -> None:
        if self._clock_was is None or tx.now < self._clock_was:
            sweep.shorten(tx, self.policy)
        self._clock_was = tx.now
        self._sweep(tx)
        tx.settle()
        capacity = _SERVING
        self.ready, self._touched = self._touched, set()
        for id in self.ready:
            capacity = self._serve(tx, id, capacity)

    def after_commit(self) -> list[Outcome]:
        served, self._served = self._served, []
        return [(_push(waiter), messages, None) for waiter, messages in served]

    def rolled_back(self) -> None:
        self._served.clear()
        self._touched |= self._line.mailboxes()
        self._due = 0
        self._clock_was = None

    def next_due(self, tx: Tx) -> int | None:
        self._due = tx.now if self._touched else sweep.next_due(tx)
        return self._due

    # -- internals

    def _take(self, tx: Tx, box: Box, consumer: str, limit: int) -> Taken:
        taken = take(tx, box, consumer, limit, self.policy, self._lease_ids)
        if self.on_leased is not None:
            self.on_leased(taken.messages)
        return taken

    def _settled(self, tx: Tx, mailbox: int, result: Settlement) -> Settlement:
        tx.effect(partial(self._free, tx, mailbox, result.freed))
        return result

    def _extend(self, tx: Tx, mailbox: int, text: str) -> bool:
        try:
            return extend(tx, mailbox, parse_receipt(text), self.policy)
        except GatepostError:
            return False

    def _touch(self, mailboxes: set[int]) -> None:
        self._touched |= mailboxes

    def _free(self, tx: Tx, mailbox: int, freed: list[Freed]) -> None:
        self._touched.add(mailbox)
        for each in freed:
            self._line.free(tx, each)

    def _serve(self, tx: Tx, mailbox: int, capacity: int) -> int:
        """Lease ready mail to the waiters in turn. Return how much more this group may lease."""
        while waiter := self._line.first(mailbox):
            if waiter.gone:
                self._line.part(tx, waiter)
                continue
            if capacity <= 0:
                self._touched.add(mailbox)
                return capacity
            taken = self._take(tx, waiter.box, waiter.consumer, min(waiter.credit, capacity))
            if not taken.messages:
                return capacity
            self._hand(tx, waiter, taken)
            capacity -= len(taken.messages)
        return capacity

    def _hand(self, tx: Tx, waiter: Waiter, taken: Taken) -> None:
        self._served.append((waiter, taken.messages))
        for lease in taken.leases:
            self._line.hand(tx, waiter, lease)
        if waiter.once:
            self._line.part(tx, waiter)

    def _look_at_the_clock(self) -> None:
        """Sweep in this group: mail that was given back may have expired while it was leased."""
        self._due = 0

    def _sweep(self, tx: Tx) -> None:
        """Time out leases, expire mail and end backoffs, if any of these is due."""
        if self._due is None or tx.now < self._due:
            return
        self._due = None
        for mailbox, result in sweep.time_out(tx, self.policy):
            self._close(tx, result.closed)
            self._settled(tx, mailbox, result)
        expired, closed = sweep.expire(tx)
        self._close(tx, closed)
        tx.effect(partial(self._touch, expired | sweep.promote(tx)))

    def _close(self, tx: Tx, closed: list[Closed]) -> None:
        if closed:
            self._on_closed(tx, closed)


def _push(waiter: Waiter) -> Callable[[list[Message], object], None]:
    return lambda messages, _: waiter.push(messages)


def _random_ids(clock: Clock) -> Iterator[int]:
    """Yield unguessable lease ids, drawn in blocks because the system call is the costly part."""
    while True:
        block = clock.random(8 * 64)
        for start in range(0, len(block), 8):
            yield int.from_bytes(block[start : start + 8]) >> 1
