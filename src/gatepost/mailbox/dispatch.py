"""One gateway's mailboxes: every operation, and the consumers that wait for mail.

A consumer that waits is served inside the very transaction that makes mail available to it, so
a message that finds a waiting consumer costs one commit from enqueue to lease, and an ack costs
one commit together with the lease of what comes next. All of it runs in the writer's thread.
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

# How many messages one commit group hands to waiters; the next group goes on with the rest.
_SERVING = 2000


class Dispatcher:
    """The mailboxes' part in every commit group.

    `ack` and `nack` return the mail they closed. Mail that time or a purge closed is collected,
    and the next participant of the commit group takes it with `take_closed`.
    """

    def __init__(self, clock: Clock, policy: Policy) -> None:
        self.policy = policy
        self._lease_ids = _random_ids(clock)
        self._closed: list[Closed] = []
        self._line = Line()
        # Mailboxes in which a message may have become ready, or a waiter have got credit.
        self._touched: set[int] = set()
        # Those of the group that ends, once whoever waits was served.
        self.ready: set[int] = set()
        self._served: list[tuple[Waiter, list[Message]]] = []
        # Time is looked at once in a group, at the latest when it ends.
        self._due: int | None = 0
        # What the clock showed in the group before.
        self._clock_was: int | None = None
        # Hears of every message that a turn begins with.
        self.on_leased: Callable[[list[Message]], None] | None = None

    # -- operations

    def enqueue(
        self, tx: Tx, to: str, sender: str, mails: list[Mail], over: bool = False
    ) -> list[EnqueueAck]:
        """`over`: what was promised is let in though the mailbox is full."""
        id = mailbox_id(tx, to)
        tx.effect(partial(self._touch, {id}))
        return enqueue(tx, id, sender, mails, self.policy, over)

    def dequeue(self, tx: Tx, mailbox: str, consumer: str, limit: int) -> list[Message]:
        """What `consumer` holds already, or else a fresh lease."""
        self._sweep(tx)
        box = self.box(tx, mailbox)
        held = held_by(tx, box.id, consumer) if consumer else []
        if held:
            return again(tx, box, held, limit, self.policy)
        return self._take(tx, box, consumer, limit).messages

    def wait(self, tx: Tx, waiter: Waiter) -> list[Message]:
        """Serve `waiter` as mail comes. Returns what its consumer held already."""
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
        """Keep these leases alive; returns the receipts whose lease is no more."""
        id = find_mailbox(tx, mailbox)
        return [text for text in receipts if not self._extend(tx, id, text)]

    def leave(self, tx: Tx, waiter: Waiter) -> None:
        """A consumer stops listening. It keeps its leases, for it may come again."""
        waiter.gone = True
        tx.effect(partial(self._line.part, tx, waiter))

    def give_up(self, tx: Tx, waiter: Waiter) -> None:
        """A consumer stops listening for good: what was handed to it goes back, unharmed."""
        self.leave(tx, waiter)
        mine = [
            lease
            for lease in held_by(tx, waiter.box.id, waiter.consumer)
            if self._line.holds(waiter, lease)
        ]
        for lease in mine:
            release(tx, lease)
        freed = [Freed(lease.id, lease.size, 0) for lease in mine]
        tx.effect(self._look_at_the_clock)
        tx.effect(partial(self._free, tx, waiter.box.id, freed))

    def purge(self, tx: Tx, mailbox: str, limit: int, actor: str) -> int:
        """Turn up to `limit` waiting messages into dead letters; repeat it until it returns 0."""
        box = self.box(tx, mailbox)
        size, closed = deadletters.purge(tx, box.id, min(limit, sweep.BATCH), actor)
        tx.effect(partial(self._collect_closed, closed))
        tx.effect(partial(self._touch, {box.id}))
        return size

    def take_closed(self) -> list[Closed]:
        """Mail that time or a purge closed in this commit group."""
        closed, self._closed = self._closed, []
        return closed

    def pass_on(self, tx: Tx, mailbox: str, consumer: str, limit: int) -> list[Message]:
        """Take waiting mail out for good. What became of it is for the caller to say."""
        messages = self._take(tx, self.box(tx, mailbox), consumer, limit).messages
        if messages:
            self.ack(tx, mailbox, [message.receipt for message in messages], [])
        return messages

    def is_served(self, tx: Tx, mailbox: str) -> bool:
        """Whether somebody listens."""
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
        room = _SERVING
        self.ready, self._touched = self._touched, set()
        for id in self.ready:
            room = self._serve(tx, id, room)

    def after_commit(self) -> list[Outcome]:
        served, self._served = self._served, []
        return [(_push(waiter), messages, None) for waiter, messages in served]

    def rolled_back(self) -> None:
        self._closed.clear()
        self._served.clear()
        self._touched |= self._line.mailboxes()
        self._due = 0
        self._clock_was = None

    def next_due(self, tx: Tx) -> int | None:
        self._due = tx.now if self._touched else sweep.next_due(tx)
        return self._due

    # -- inside

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

    def _collect_closed(self, closed: list[Closed]) -> None:
        self._closed += closed

    def _free(self, tx: Tx, mailbox: int, freed: list[Freed]) -> None:
        self._touched.add(mailbox)
        for each in freed:
            self._line.free(tx, each)

    def _serve(self, tx: Tx, mailbox: int, room: int) -> int:
        """Hand out what is ready, in turn. Returns how much more this group may hand out."""
        while waiter := self._line.first(mailbox):
            if waiter.gone:
                self._line.part(tx, waiter)
                continue
            if room <= 0:
                self._touched.add(mailbox)
                return room
            taken = self._take(tx, waiter.box, waiter.consumer, min(waiter.credit, room))
            if not taken.messages:
                return room
            self._hand(tx, waiter, taken)
            room -= len(taken.messages)
        return room

    def _hand(self, tx: Tx, waiter: Waiter, taken: Taken) -> None:
        self._served.append((waiter, taken.messages))
        for lease in taken.leases:
            self._line.hand(tx, waiter, lease)
        if waiter.once:
            self._line.part(tx, waiter)

    def _look_at_the_clock(self) -> None:
        """What was given back may have outlived its time while it was out."""
        self._due = 0

    def _sweep(self, tx: Tx) -> None:
        """What time did since the last look: leases ran out, mail expired, backoffs ended."""
        if self._due is None or tx.now < self._due:
            return
        self._due = None
        for mailbox, result in sweep.time_out(tx, self.policy):
            tx.effect(partial(self._collect_closed, result.closed))
            self._settled(tx, mailbox, result)
        expired, closed = sweep.expire(tx)
        tx.effect(partial(self._collect_closed, closed))
        tx.effect(partial(self._touch, expired | sweep.promote(tx)))


def _push(waiter: Waiter) -> Callable[[list[Message], object], None]:
    return lambda messages, _: waiter.push(messages)


def _random_ids(clock: Clock) -> Iterator[int]:
    """Lease ids nobody can guess. Drawn in blocks, for the system call costs more than the id."""
    while True:
        block = clock.random(8 * 64)
        for start in range(0, len(block), 8):
            yield int.from_bytes(block[start : start + 8]) >> 1
