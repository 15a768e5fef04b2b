"""All operations on one gateway's mailboxes.

A waiting consumer is served in the same transaction that makes mail available to it
(waiter_service.py shares the mail out; waiters.py has the turns). A message
that finds a waiting consumer therefore costs one commit from enqueue to lease, and an ack shares
its commit with the lease of the next message. All of this runs in the writer thread.
"""

from collections.abc import Callable, Iterator
from functools import partial
from types import MappingProxyType

from gatepost.clock import Clock
from gatepost.errors import GatepostError
from gatepost.events import Order
from gatepost.journal.transaction import Tx
from gatepost.journal.writer import JobOutcome
from gatepost.mailbox import dead_letters, sweep
from gatepost.mailbox.enqueue import (
    NewMail,
    enqueue_mail,
    ensure_mailbox,
    find_mailbox,
    find_unordered_mailboxes,
    set_mailbox_order,
)
from gatepost.mailbox.leases import (
    FORWARD_READY,
    READY,
    MailboxRef,
    MailChoice,
    ReadyMail,
    TakenMail,
    extend_lease,
    leases_held_by,
    parse_lease_handle,
    read_ready,
    release_lease,
    reread_leases,
    take_mail,
)
from gatepost.mailbox.policy import MailboxPolicy
from gatepost.mailbox.settle import (
    ClosedMail,
    FailedTurn,
    FreedMail,
    ReplyMarks,
    Settlement,
    ack_mail,
    nack_mail,
    resolve_refs,
)
from gatepost.mailbox.waiter_service import WaiterService
from gatepost.mailbox.waiters import Waiter, WaiterQueue
from gatepost.wire.operations import EnqueueAck, LeasedMessage

__all__ = ["Dispatcher", "Waiter"]


class Dispatcher:
    """Performs mailbox operations and takes part in every commit group.

    `ack` and `nack` return the messages they closed. Messages closed by a timeout, by expiry or by
    a purge are collected; the next participant of the commit group takes them with `take_closed`.
    """

    def __init__(self, clock: Clock, policy: MailboxPolicy) -> None:
        self.policy = policy
        self._lease_ids = _random_lease_ids(clock)
        self._closed: list[ClosedMail] = []
        self._waiters = WaiterQueue()
        self._service = WaiterService(self._waiters, self._take_share)
        # The mailboxes in which the group that is about to commit may have made mail ready.
        self.ready_mailboxes: set[int] = set()
        # When the next sweep is due, None for never. 0 makes the current group sweep.
        self._sweep_due_at: int | None = 0
        # The time of the previous group.
        self._previous_now: int | None = None
        # The mailboxes without order; None until they are read from the journal.
        self._unordered: set[str] | None = None
        # Called with every batch of leased messages, each of which begins a turn.
        self.on_leased: Callable[[list[LeasedMessage]], None] | None = None

    # -- operations

    def enqueue(
        self, tx: Tx, to: str, sender: str, mails: list[NewMail], even_if_full: bool = False
    ) -> list[EnqueueAck]:
        """Enqueue one sender's messages. `even_if_full` is for mail that was accepted before."""
        id = ensure_mailbox(tx, to)
        tx.add_effect(partial(self._service.mark_touched, {id}))
        return enqueue_mail(tx, id, sender, mails, self.policy, even_if_full)

    def dequeue(self, tx: Tx, mailbox: str, consumer: str, limit: int) -> list[LeasedMessage]:
        """Return the messages `consumer` already holds, or else lease new ones."""
        self._sweep_if_due(tx)
        box = self.mailbox_ref(tx, mailbox)
        held = leases_held_by(tx, box.id, consumer) if consumer else []
        if held:
            return reread_leases(tx, box, held, limit, self.policy)
        return self._take_mail(tx, box, consumer, limit).messages

    def add_waiter(self, tx: Tx, waiter: Waiter) -> list[LeasedMessage]:
        """Begin to serve `waiter`. Return the messages that its consumer already holds."""
        box, credit = waiter.mailbox, waiter.credit
        held = leases_held_by(tx, box.id, waiter.consumer) if waiter.consumer else []
        limit = credit if waiter.once else sum(lease.size for lease in held)
        for lease in held:
            tx.add_effect(partial(self._waiters.assign_lease, tx, waiter, lease))
        if not (waiter.once and held):
            tx.add_effect(partial(self._waiters.add_waiter, tx, waiter))
        tx.add_effect(partial(self._service.mark_touched, {box.id}))
        return reread_leases(tx, box, held, limit, self.policy)

    def ack(
        self,
        tx: Tx,
        mailbox: str,
        lease_handles: list[str],
        msg_ids: list[str],
        marks: ReplyMarks = MappingProxyType({}),
    ) -> Settlement:
        """Ack leased mail; `marks` are the fingerprints of the replies that come with it."""
        id = find_mailbox(tx, mailbox)
        refs, failures = resolve_refs(tx, id, lease_handles, msg_ids)
        result = ack_mail(tx, id, refs, marks)
        result.failures += failures
        tx.add_effect(partial(self._service.free_leases, tx, id, result.freed))
        return result

    def nack(
        self,
        tx: Tx,
        mailbox: str,
        lease_handles: list[str],
        msg_ids: list[str],
        reason: str,
        *,
        retry: bool = True,
    ) -> Settlement:
        id = find_mailbox(tx, mailbox)
        refs, failures = resolve_refs(tx, id, lease_handles, msg_ids)
        turn = FailedTurn(reason or "nacked", rejected=not retry)
        result = nack_mail(tx, id, refs, turn, self.policy)
        result.failures += failures
        tx.add_effect(self._force_sweep)
        tx.add_effect(partial(self._service.free_leases, tx, id, result.freed))
        return result

    def extend(self, tx: Tx, mailbox: str, lease_handles: list[str]) -> list[str]:
        """Extend these leases; return the lease handles whose lease no longer exists."""
        id = find_mailbox(tx, mailbox)
        return [text for text in lease_handles if not _try_extend_lease(tx, id, text, self.policy)]

    def remove_waiter(self, tx: Tx, waiter: Waiter) -> None:
        """Stop serving a consumer. It keeps its leases, because it may come back."""
        waiter.gone = True
        tx.add_effect(partial(self._waiters.remove_waiter, tx, waiter))

    def release_waiter(self, tx: Tx, waiter: Waiter) -> None:
        """Stop serving a consumer for good and release its leases; no attempt is counted."""
        self.remove_waiter(tx, waiter)
        held = [
            lease
            for lease in leases_held_by(tx, waiter.mailbox.id, waiter.consumer)
            if self._waiters.holds_lease(waiter, lease)
        ]
        for lease in held:
            release_lease(tx, lease)
        freed = [FreedMail(lease.id, lease.size, 0) for lease in held]
        tx.add_effect(self._force_sweep)
        tx.add_effect(partial(self._service.free_leases, tx, waiter.mailbox.id, freed))

    def purge(self, tx: Tx, mailbox: str, limit: int, actor: str) -> int:
        """Turn up to `limit` waiting messages into dead letters; repeat until it returns 0."""
        box = self.mailbox_ref(tx, mailbox)
        size, closed = dead_letters.purge_mailbox(tx, box.id, min(limit, sweep.SWEEP_BATCH), actor)
        tx.add_effect(lambda: self._closed.extend(closed))
        tx.add_effect(partial(self._service.mark_touched, {box.id}))
        return size

    def take_closed(self) -> list[ClosedMail]:
        """Mail that time or a purge closed in this commit group."""
        closed, self._closed = self._closed, []
        return closed

    def take_mail_to_forward(
        self, tx: Tx, mailbox: str, consumer: str, limit: int, choice: MailChoice = FORWARD_READY
    ) -> list[LeasedMessage]:
        """Remove and return mail; the caller forwards it and reports its outcome.

        Unordered mail is taken even if it is delayed. Ordered mail is taken once the first mail of
        its pair is ready, because earlier it could wait elsewhere for numbers that wait for it.
        Then the whole pair is taken: mail left behind would be overtaken, or overtake, if the rest
        came back.
        """
        box = self.mailbox_ref(tx, mailbox)
        messages = self._take_mail(tx, box, consumer, limit, choice).messages
        if messages:
            self.ack(tx, mailbox, [message.receipt for message in messages], [])
        return messages

    def has_consumer(self, tx: Tx, mailbox: str) -> bool:
        """Tell whether a consumer waits for this mailbox's mail."""
        return self._waiters.has_consumer(find_mailbox(tx, mailbox))

    def consumed_mailboxes(self) -> set[str]:
        return self._waiters.consumed_mailboxes()

    def set_order(self, tx: Tx, mailbox: str, order: Order) -> None:
        """Set the default order of a mailbox, for mail that does not state one."""
        set_mailbox_order(tx, ensure_mailbox(tx, mailbox), order == "fifo")
        self._unordered = None
        tx.on_rollback(self._forget_unordered)

    def is_unordered(self, tx: Tx, mailbox: str) -> bool:
        """Whether mail of a mailbox is unordered by default."""
        if self._unordered is None:
            self._unordered = find_unordered_mailboxes(tx)
        return mailbox in self._unordered

    def mailbox_ref(self, tx: Tx, name: str) -> MailboxRef:
        return MailboxRef(ensure_mailbox(tx, name), name)

    # -- the commit group

    def before_commit(self, tx: Tx) -> None:
        if self._previous_now is None or tx.now < self._previous_now:
            sweep.cap_deadlines(tx, self.policy)
        self._previous_now = tx.now
        self._sweep_if_due(tx)
        tx.run_effects()
        self.ready_mailboxes = self._service.serve_touched(tx)

    def after_commit(self) -> list[JobOutcome]:
        return self._service.take_served()

    def rolled_back(self) -> None:
        self._forget_unordered()
        self._closed.clear()
        self._service.roll_back()
        self._sweep_due_at = 0
        self._previous_now = None

    def next_due(self, tx: Tx) -> int | None:
        self._sweep_due_at = tx.now if self._service.has_touched() else sweep.next_due(tx)
        return self._sweep_due_at

    # -- internals

    def _forget_unordered(self) -> None:
        self._unordered = None

    def _take_mail(
        self, tx: Tx, box: MailboxRef, consumer: str, limit: int, choice: MailChoice = READY
    ) -> TakenMail:
        ready, ids = read_ready(tx, box.id, limit, choice), self._lease_ids
        taken = take_mail(
            tx, box, ready, consumer, limit, self.policy, ids, whole_pairs=choice.whole_pairs
        )
        return self._note_taken(taken)

    def _take_share(
        self, tx: Tx, waiter: Waiter, ready: ReadyMail, limit: int, share: int
    ) -> TakenMail:
        """Take ready mail for one of several waiters: up to `share` unordered messages."""
        box, consumer, ids = waiter.mailbox, waiter.consumer, self._lease_ids
        return self._note_taken(
            take_mail(tx, box, ready, consumer, limit, self.policy, ids, unordered_limit=share)
        )

    def _note_taken(self, taken: TakenMail) -> TakenMail:
        if self.on_leased is not None:
            self.on_leased(taken.messages)
        return taken

    def _force_sweep(self) -> None:
        """Sweep in this group, because returned mail may have expired while it was leased."""
        self._sweep_due_at = 0

    def _sweep_if_due(self, tx: Tx) -> None:
        """Time out leases, expire mail and end backoffs that are due."""
        if self._sweep_due_at is None or tx.now < self._sweep_due_at:
            return
        self._sweep_due_at = None
        closed: list[ClosedMail] = []
        for mailbox, result in sweep.time_out_leases(tx, self.policy):
            closed += result.closed
            tx.add_effect(partial(self._service.free_leases, tx, mailbox, result.freed))
        expired, ended = sweep.expire_mail(tx)
        tx.add_effect(lambda: self._closed.extend([*closed, *ended]))
        tx.add_effect(partial(self._service.mark_touched, expired | sweep.promote_mail(tx)))


def _try_extend_lease(tx: Tx, mailbox: int, handle: str, policy: MailboxPolicy) -> bool:
    try:
        return extend_lease(tx, mailbox, parse_lease_handle(handle), policy)
    except GatepostError:
        return False


def _random_lease_ids(clock: Clock) -> Iterator[int]:
    """Yield unguessable lease ids, drawn in blocks because the system call is the costly part."""
    while True:
        block = clock.random(8 * 64)
        for start in range(0, len(block), 8):
            yield int.from_bytes(block[start : start + 8]) >> 1
