"""The real mailbox core on a journal in memory, driven one commit group at a time."""

from collections.abc import Callable
from typing import Any, TypeVar

import apsw

from gatepost.journal import JobOutcome, Tx, Writer, open_memory_journal
from gatepost.mailbox import (
    ClosedMail,
    Dispatcher,
    MailboxPolicy,
    NewMail,
    Settlement,
    Waiter,
    browse,
)
from gatepost.mailbox.dead_letters import DeadLetterFilter, find_dead_letters
from gatepost.testing import ManualClock
from gatepost.wire.operations import DeadLetter, EnqueueAck, LeasedMessage, Summary

T = TypeVar("T")

SECOND = 1000
START = 1_700_000_000 * SECOND


class Reporter:
    """The participant behind the dispatcher: it takes the mail that time or a purge closed."""

    def __init__(self, harness: "MailboxHarness") -> None:
        self._post = harness
        self._taken: list[ClosedMail] = []

    def before_commit(self, tx: Tx) -> None:
        self._taken = self._post.dispatcher.take_closed()
        if self._taken:
            self._post.report(tx, self._taken)

    def after_commit(self) -> list[JobOutcome]:
        self._post.closed += self._taken
        self._taken = []
        return []

    def rolled_back(self) -> None:
        self._taken = []

    def next_due(self, tx: Tx) -> int | None:
        return None


class MailboxHarness:
    """Each call is one operation in a commit group of its own, unless `group` takes several."""

    def __init__(
        self,
        policy: MailboxPolicy | None = None,
        clock: ManualClock | None = None,
        connection: apsw.Connection | None = None,
    ) -> None:
        self.policy = policy or MailboxPolicy()
        self.clock = clock or ManualClock(START)
        self.connection = open_memory_journal() if connection is None else connection
        self.closed: list[ClosedMail] = []
        self.dispatcher = Dispatcher(self.clock, self.policy)
        participants = (self.dispatcher, Reporter(self))
        self.writer = Writer(
            self.connection, self.clock, lambda outcomes: None, participants=participants
        )
        # Called, as the coordinator would be, with mail that time or a purge closed.
        self.report: Callable[[Tx, list[ClosedMail]], None] = lambda tx, closed: None

    def group(self, *operations: Callable[[Tx], Any]) -> list[Any]:
        """All in one commit group; an operation that fails gives its error."""
        outcomes = self.writer.run_group([(operation, _hear) for operation in operations])
        for done, value, error in outcomes[len(operations) :]:
            done(value, error)
        return [value if error is None else error for _, value, error in outcomes][
            : len(operations)
        ]

    def do(self, operation: Callable[[Tx], T]) -> T:
        (value,) = self.group(operation)
        if isinstance(value, Exception):
            raise value
        return value  # type: ignore[no-any-return]

    def tick(self, ms: int = 0) -> None:
        """Let time pass, and a commit group look at it."""
        self.clock.advance(ms)
        before = self.writer.group_count
        self.group()
        assert self.writer.group_count == before + 1, "the group failed"

    def send(self, *msg_ids: str, to: str = "bob", by: str = "alice", **more: Any) -> list[bool]:
        """Enqueue messages; whether each was queued."""
        return [ack.queued for ack in self.enqueue(*msg_ids, to=to, by=by, **more)]

    def enqueue(
        self, *msg_ids: str, to: str = "bob", by: str = "alice", **more: Any
    ) -> list[EnqueueAck]:
        mails = [mail(msg_id, **more) for msg_id in msg_ids]
        return self.do(lambda tx: self.dispatcher.enqueue(tx, to, by, mails))

    def dequeue(
        self, limit: int = 1, mailbox: str = "bob", consumer: str = ""
    ) -> list[LeasedMessage]:
        return self.do(lambda tx: self.dispatcher.dequeue(tx, mailbox, consumer, limit))

    def take(self, limit: int = 1, mailbox: str = "bob") -> list[str]:
        return ids(self.dequeue(limit, mailbox))

    def ack(self, *messages: LeasedMessage, mailbox: str = "bob") -> Settlement:
        receipts = [message.receipt for message in messages]
        return self.do(lambda tx: self.dispatcher.ack(tx, mailbox, receipts, []))

    def ack_id(self, *msg_ids: str, mailbox: str = "bob") -> Settlement:
        return self.do(lambda tx: self.dispatcher.ack(tx, mailbox, [], list(msg_ids)))

    def nack(
        self,
        *messages: LeasedMessage,
        reason: str = "",
        mailbox: str = "bob",
        retry: bool = True,
    ) -> Settlement:
        receipts = [message.receipt for message in messages]
        nack = self.dispatcher.nack
        return self.do(lambda tx: nack(tx, mailbox, receipts, [], reason, retry=retry))

    def nack_id(self, *msg_ids: str, mailbox: str = "bob") -> Settlement:
        return self.do(lambda tx: self.dispatcher.nack(tx, mailbox, [], list(msg_ids), ""))

    def extend(self, *messages: LeasedMessage, mailbox: str = "bob") -> list[str]:
        receipts = [message.receipt for message in messages]
        return self.do(lambda tx: self.dispatcher.extend(tx, mailbox, receipts))

    def purge(self, limit: int = 1000, mailbox: str = "bob") -> int:
        return self.do(lambda tx: self.dispatcher.purge(tx, mailbox, limit, "operator"))

    def waiter(
        self, credit: int = 10, consumer: str = "", once: bool = False, mailbox: str = "bob"
    ) -> tuple[Waiter, list[LeasedMessage]]:
        """A waiter and the list its mail goes to, which begins with what it held already."""
        got: list[LeasedMessage] = []
        box = self.do(lambda tx: self.dispatcher.mailbox_ref(tx, mailbox))
        waiter = Waiter(box, consumer, credit, got.extend, once)
        got[:0] = self.do(lambda tx: self.dispatcher.add_waiter(tx, waiter))
        return waiter, got

    def read(self, query: Callable[[Tx, int], T], mailbox: str) -> T:
        """Look without committing anything."""
        ((id,),) = self.sql("SELECT id FROM mailbox WHERE name = ?", (mailbox,)) or [(0,)]
        return query(Tx(self.connection, self.clock.now()), id)

    def peek(self, limit: int = 100, after: str = "", mailbox: str = "bob") -> list[Summary]:
        return self.read(lambda tx, id: browse.peek_mailbox(tx, id, limit, after), mailbox)

    def dead(
        self,
        wanted: DeadLetterFilter | None = None,
        limit: int = 100,
        after: str = "",
        mailbox: str = "bob",
    ) -> list[DeadLetter]:
        wanted = wanted or DeadLetterFilter()
        return self.read(lambda tx, id: find_dead_letters(tx, id, wanted, limit, after), mailbox)

    def states(self) -> dict[str, str]:
        """The state of every message, by msg_id."""
        names = ["pending", "in_flight", "nacked", "acked", "dead_letter", "expired"]
        rows = self.sql("SELECT msg_id, state FROM mail")
        return {msg_id: names[state] for msg_id, state in rows}

    def counts(self, mailbox: str = "bob") -> tuple[int, int, int]:
        """(waiting, in flight, dead) as the mailbox knows them."""
        query = "SELECT waiting, in_flight, dead FROM mailbox WHERE name = ?"
        return self.sql(query, (mailbox,))[0]

    def sql(self, query: str, params: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        return self.connection.execute(query, params).fetchall()


def mail(
    msg_id: str, payload: bytes = b'"hello"', at: int | None = None, ttl: int | None = None,
    meta: bytes | None = None, **more: Any,
) -> NewMail:  # fmt: skip
    return NewMail(msg_id, payload, at, ttl, meta, **more)


def ids(messages: list[LeasedMessage]) -> list[str]:
    return [message.msg_id for message in messages]


def codes(result: Settlement) -> list[str]:
    return [failure.code for failure in result.failures]


def _hear(value: Any, error: Exception | None) -> None:
    """Outcomes are read from what run_group returns."""
