"""The service of waiting consumers: each commit group leases them the mail that is ready."""

from collections.abc import Callable

from gatepost.journal.transaction import Tx
from gatepost.journal.writer import JobOutcome
from gatepost.mailbox.leases import ReadyMail, TakenMail, read_ready
from gatepost.mailbox.settle import FreedMail
from gatepost.mailbox.waiters import Waiter, WaiterQueue
from gatepost.wire.operations import LeasedMessage

# The most messages that one commit group leases to waiters; the next group leases more.
_MAX_SERVED_PER_GROUP = 2000

# Leases up to `limit` messages to a waiter, and up to `share` unordered ones.
TakeShare = Callable[[Tx, Waiter, ReadyMail, int, int], TakenMail]


class WaiterService:
    """Knows which mailboxes may have mail for a waiter, and leases that mail once per group."""

    def __init__(self, waiters: WaiterQueue, take_share: TakeShare) -> None:
        self._waiters = waiters
        self._take_share = take_share
        # Mailboxes in which a message may have become ready or a waiter may have got credit.
        self._touched_mailboxes: set[int] = set()
        self._served: list[tuple[Waiter, list[LeasedMessage]]] = []

    def mark_touched(self, mailboxes: set[int]) -> None:
        self._touched_mailboxes |= mailboxes

    def has_touched(self) -> bool:
        """Whether the next group has mailboxes to serve."""
        return bool(self._touched_mailboxes)

    def free_leases(self, tx: Tx, mailbox: int, freed: list[FreedMail]) -> None:
        """Give waiters back the credit of messages that were settled or released."""
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
        """Lease ready mail in rounds while any is left. Return how much more this group may lease.

        In a round each waiter has one turn.
        """
        while waiters := self._waiters.start_round(tx, mailbox):
            if capacity <= 0:
                self._touched_mailboxes.add(mailbox)
                break
            credit = min(sum(waiter.credit for waiter in waiters), capacity)
            ready = read_ready(tx, mailbox, credit)
            leased = self._serve_round(tx, waiters, ready, credit)
            capacity -= leased
            if not leased or (ready.complete and ready.is_empty()):
                break
        return capacity

    def _serve_round(self, tx: Tx, waiters: list[Waiter], ready: ReadyMail, limit: int) -> int:
        """Give each waiter its turn, up to `limit` messages in all. Return how many were leased.

        A waiter that could take all the unordered mail leaves the others their share of it.
        """
        share = -(-len(ready.unordered) // len(waiters))
        leased = 0
        for waiter in waiters:
            if ready.is_empty() or leased >= limit:
                break
            if waiter.gone:
                continue
            taken = self._take_share(tx, waiter, ready, min(waiter.credit, limit - leased), share)
            self._hand_to_waiter(tx, waiter, taken)
            leased += len(taken.messages)
        return leased

    def _hand_to_waiter(self, tx: Tx, waiter: Waiter, taken: TakenMail) -> None:
        self._served.append((waiter, taken.messages))
        for lease in taken.leases:
            self._waiters.assign_lease(tx, waiter, lease)
        if waiter.once:
            self._waiters.remove_waiter(tx, waiter)


def _push_callback(waiter: Waiter) -> Callable[[list[LeasedMessage], object], None]:
    return lambda messages, _: waiter.push(messages)
