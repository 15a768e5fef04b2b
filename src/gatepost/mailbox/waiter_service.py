"""The service of waiting consumers: each commit group leases them the mail that is ready."""

from collections.abc import Callable

from gatepost.journal.transaction import Tx
from gatepost.journal.writer import JobOutcome
from gatepost.mailbox.leases import MailboxRef, TakenMail, count_unordered
from gatepost.mailbox.settle import FreedMail
from gatepost.mailbox.waiters import Waiter, WaiterQueue
from gatepost.wire.operations import LeasedMessage

# How many messages one commit group hands to waiters; the next group continues with the rest.
_MAX_SERVED_PER_GROUP = 2000

# Leases up to `limit` messages of a mailbox to a consumer, and up to `share` unordered ones.
TakeMail = Callable[[Tx, MailboxRef, str, int, int], TakenMail]


class WaiterService:
    """Knows which mailboxes may have mail for a waiter, and leases that mail once per group."""

    def __init__(self, waiters: WaiterQueue, take_mail: TakeMail) -> None:
        self._waiters = waiters
        self._take_mail = take_mail
        # Mailboxes in which a message may have become ready or a waiter may have got credit.
        self._touched_mailboxes: set[int] = set()
        self._served: list[tuple[Waiter, list[LeasedMessage]]] = []

    def mark_touched(self, mailboxes: set[int]) -> None:
        self._touched_mailboxes |= mailboxes

    def has_touched(self) -> bool:
        """Tell whether the next group has mailboxes to look at."""
        return bool(self._touched_mailboxes)

    def free_leases(self, tx: Tx, mailbox: int, freed: list[FreedMail]) -> None:
        """Return the credit of settled or released messages to the waiters that held them."""
        self._touched_mailboxes.add(mailbox)
        for each in freed:
            self._waiters.free_lease(tx, each)

    def serve_touched(self, tx: Tx) -> set[int]:
        """Serve the waiters of all touched mailboxes, and return these mailboxes."""
        capacity = _MAX_SERVED_PER_GROUP
        ready, self._touched_mailboxes = self._touched_mailboxes, set()
        for id in ready:
            capacity = self._serve_mailbox(tx, id, capacity)
        return ready

    def take_served(self) -> list[JobOutcome]:
        """Return a push to each waiter that this group served; call it after the commit."""
        served, self._served = self._served, []
        return [(_push_callback(waiter), messages, None) for waiter, messages in served]

    def roll_back(self) -> None:
        """Forget the leases of this group; the next one serves all waiters again."""
        self._served.clear()
        self._touched_mailboxes |= self._waiters.waiting_mailboxes()

    def _serve_mailbox(self, tx: Tx, mailbox: int, capacity: int) -> int:
        """Lease ready mail to the waiters in turn. Return how much more this group may lease.

        A waiter that could take all the unordered mail leaves the others their share of it.
        """
        share = turns_left = 0
        while waiter := self._waiters.next_waiter(mailbox):
            if waiter.gone:
                self._waiters.remove_waiter(tx, waiter)
                continue
            if capacity <= 0:
                self._touched_mailboxes.add(mailbox)
                return capacity
            if not turns_left:
                self._waiters.remove_gone(tx, mailbox)
                share = self._find_share(tx, mailbox)
                turns_left = self._waiters.count_waiting(mailbox)
            turns_left -= 1
            taken = self._take_mail(
                tx, waiter.mailbox, waiter.consumer, min(waiter.credit, capacity), share
            )
            if not taken.messages:
                return capacity
            self._hand_to_waiter(tx, waiter, taken)
            capacity -= len(taken.messages)
        return capacity

    def _find_share(self, tx: Tx, mailbox: int) -> int:
        """How many unordered messages one waiter gets before the next has its turn."""
        waiting = self._waiters.count_waiting(mailbox)
        if waiting < 2:
            return _MAX_SERVED_PER_GROUP
        credit = min(self._waiters.total_credit(mailbox), _MAX_SERVED_PER_GROUP)
        return max(1, -(-count_unordered(tx, mailbox, credit) // waiting))

    def _hand_to_waiter(self, tx: Tx, waiter: Waiter, taken: TakenMail) -> None:
        self._served.append((waiter, taken.messages))
        for lease in taken.leases:
            self._waiters.assign_lease(tx, waiter, lease)
        if waiter.once:
            self._waiters.remove_waiter(tx, waiter)


def _push_callback(waiter: Waiter) -> Callable[[list[LeasedMessage], object], None]:
    return lambda messages, _: waiter.push(messages)
