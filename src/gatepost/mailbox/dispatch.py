"""One gateway's mailboxes: every operation, and the consumers that wait for mail.

A consumer that waits is served inside the very transaction that makes mail available to it, so
a message that finds a waiting consumer costs one commit from enqueue to lease, and an ack costs
one commit together with the lease of what comes next. All of it runs in the writer's thread.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial

from msgspec import Struct

from gatepost.clock import Clock
from gatepost.journal.tx import Tx
from gatepost.journal.writer import Outcome
from gatepost.mailbox import sweep
from gatepost.mailbox.enqueue import Mail, enqueue, mailbox_id
from gatepost.mailbox.lease import Box, Lease, extend, held, parse_receipt, release, take
from gatepost.mailbox.policy import Policy
from gatepost.mailbox.settle import Closed, Settlement, ack, nack, refs_of
from gatepost.wire import EnqueueAck, Message


class Waiter(Struct, eq=False):
    """A consumer with room for `credit` more messages. `once`: it wants one handful only.

    `push` is called, after the commit, with what was leased for it. `gone` may be set from any
    thread; a waiter that is gone is never served again.
    """

    box: Box
    consumer: str
    credit: int
    push: Callable[[list[Message]], None]
    once: bool = False
    gone: bool = False


class Dispatcher:
    """The mailboxes' part in every commit group.

    `ack` and `nack` return what they closed; `on_closed` hears of what time alone closed.
    """

    def __init__(
        self, clock: Clock, policy: Policy, on_closed: Callable[[Tx, list[Closed]], None]
    ) -> None:
        self.policy = policy
        self._lease_ids = _random_ids(clock)
        self._on_closed = on_closed
        self._waiters: dict[int, list[Waiter]] = defaultdict(list)
        self._touched: set[int] = set()
        self._served: list[tuple[Waiter, list[Message]]] = []
        self._swept_at = 0
        self._due: int | None = 0

    # -- operations

    def enqueue(self, tx: Tx, to: str, sender: str, mails: list[Mail]) -> list[EnqueueAck]:
        id = mailbox_id(tx, to)
        tx.effect(partial(self._touched.add, id))
        return enqueue(tx, id, sender, mails, self.policy)

    def dequeue(self, tx: Tx, mailbox: str, consumer: str, limit: int) -> list[Message]:
        """What `consumer` holds already, or else a fresh lease."""
        box = self.box(tx, mailbox)
        if consumer and (again := held(tx, box, consumer, self.policy)):
            return again
        return self._take(tx, box, consumer, limit)

    def wait(self, tx: Tx, waiter: Waiter) -> list[Message]:
        """Serve `waiter` as mail comes. Returns what its consumer held already."""
        again = held(tx, waiter.box, waiter.consumer, self.policy) if waiter.consumer else []
        waiter.credit -= len(again)
        tx.effect(partial(self._join, waiter))
        return again

    def ack(self, tx: Tx, mailbox: str, receipts: list[str], msg_ids: list[str]) -> Settlement:
        id = mailbox_id(tx, mailbox)
        return self._settled(tx, id, ack(tx, id, refs_of(tx, id, receipts, msg_ids)))

    def nack(
        self, tx: Tx, mailbox: str, receipts: list[str], msg_ids: list[str], reason: str
    ) -> Settlement:
        id = mailbox_id(tx, mailbox)
        refs = refs_of(tx, id, receipts, msg_ids)
        return self._settled(tx, id, nack(tx, id, refs, reason, self.policy))

    def extend(self, tx: Tx, mailbox: str, receipts: list[str]) -> list[str]:
        """Keep these leases alive; returns the receipts whose lease is no more."""
        found = {
            lease for _, lease in map(parse_receipt, receipts) if extend(tx, lease, self.policy)
        }
        return [text for text in receipts if parse_receipt(text)[1] not in found]

    def leave(self, tx: Tx, waiter: Waiter) -> None:
        """A consumer stops listening. It keeps its leases, for it may come again."""
        waiter.gone = True
        tx.effect(partial(self._part, waiter))

    def give_up(self, tx: Tx, waiter: Waiter) -> None:
        """A consumer stops listening for good: what it holds goes back, unharmed."""
        self.leave(tx, waiter)
        query = "SELECT * FROM lease WHERE mailbox = ? AND consumer = ?"
        for row in tx.rows(query, (waiter.box.id, waiter.consumer)):
            release(tx, Lease(*row))
        tx.effect(partial(self._touched.add, waiter.box.id))

    def box(self, tx: Tx, name: str) -> Box:
        return Box(mailbox_id(tx, name), name)

    # -- the commit group

    def before_commit(self, tx: Tx) -> None:
        if self._due is not None and tx.now >= self._due:
            self._sweep(tx)
        for id in self._touched:
            self._serve(tx, id)
        self._touched.clear()

    def after_commit(self) -> list[Outcome]:
        served, self._served = self._served, []
        return [(_push(waiter), messages, None) for waiter, messages in served]

    def rolled_back(self) -> None:
        for waiter, messages in self._served:
            waiter.credit += len(messages)
            self._join(waiter)
        self._served.clear()

    def next_due(self, tx: Tx) -> int | None:
        self._due = sweep.next_due(tx)
        return self._due

    # -- inside

    def _take(self, tx: Tx, box: Box, consumer: str, limit: int) -> list[Message]:
        taken = take(tx, box, consumer, limit, self.policy, self._lease_ids)
        if taken.expired:
            self._on_closed(tx, [Closed(id, "expired", "too late") for id in taken.expired])
        return taken.messages

    def _settled(self, tx: Tx, mailbox: int, result: Settlement) -> Settlement:
        tx.effect(partial(self._free, mailbox, result.freed))
        return result

    def _free(self, mailbox: int, freed: list[tuple[str, int]]) -> None:
        self._touched.add(mailbox)
        for consumer, size in freed:
            for waiter in self._waiters.get(mailbox, ()):
                if waiter.consumer == consumer and not waiter.once:
                    waiter.credit += size

    def _join(self, waiter: Waiter) -> None:
        if waiter not in self._waiters[waiter.box.id]:
            self._waiters[waiter.box.id].append(waiter)
        self._touched.add(waiter.box.id)

    def _part(self, waiter: Waiter) -> None:
        waiters = self._waiters.get(waiter.box.id, [])
        if waiter in waiters:
            waiters.remove(waiter)
        if not waiters:
            self._waiters.pop(waiter.box.id, None)

    def _serve(self, tx: Tx, mailbox: int) -> None:
        for waiter in list(self._waiters.get(mailbox, ())):
            if waiter.gone:
                self._part(waiter)
            elif waiter.credit > 0:
                messages = self._take(tx, waiter.box, waiter.consumer, waiter.credit)
                if not messages:
                    return
                self._hand(waiter, messages)

    def _hand(self, waiter: Waiter, messages: list[Message]) -> None:
        waiter.credit -= len(messages)
        self._served.append((waiter, messages))
        if waiter.once:
            self._part(waiter)
        else:
            # Whoever was served goes to the end of the line, so that consumers take turns.
            waiters = self._waiters[waiter.box.id]
            waiters.remove(waiter)
            waiters.append(waiter)

    def _sweep(self, tx: Tx) -> None:
        for mailbox, result in sweep.time_out(tx, self.policy):
            if result.closed:
                self._on_closed(tx, result.closed)
            self._free(mailbox, result.freed)
        closed = sweep.expire(tx, 5_000)
        if closed:
            self._on_closed(tx, closed)
        self._touched |= sweep.ready_since(tx, self._swept_at)
        self._swept_at = tx.now


def _push(waiter: Waiter) -> Callable[[list[Message], object], None]:
    return lambda messages, _: waiter.push(messages)


def _random_ids(clock: Clock) -> Iterator[int]:
    """Lease ids nobody can guess. Drawn in blocks, for the system call costs more than the id."""
    while True:
        block = clock.random(8 * 64)
        for start in range(0, len(block), 8):
            yield int.from_bytes(block[start : start + 8]) >> 1
