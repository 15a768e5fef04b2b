"""The whole dispatcher against a model of it: any history must look the same to both."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any

import apsw
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gatepost.errors import StorageFailed
from gatepost.journal import Tx
from gatepost.journal.database import migrate_schema
from gatepost.journal.writer import JobOutcome
from gatepost.mailbox import MailboxPolicy, NewMail, Settlement, Waiter, dead_letters, sweep
from gatepost.mailbox.dead_letters import DeadLetterFilter
from gatepost.testing import ManualClock
from gatepost.wire.operations import DeadLetter, EnqueueAck, LeasedMessage
from tests.conftest import choose
from tests.mailbox.harness import START, MailboxHarness
from tests.mailbox.model import Letter, Model, ModelWaiter

POLICY = MailboxPolicy(max_retries=3, base_backoff=5_000, inflight_timeout=30_000, ttl=120_000,
                max_pending=12)  # fmt: skip
MAILBOXES = ["bob", "carol"]
SENDERS = ["ann", "ben", "cat"]

mailboxes = st.sampled_from(MAILBOXES)
senders = st.sampled_from(SENDERS)
consumers = st.sampled_from(["", "c1", "c2"])
limits = st.integers(1, 5)
msg_ids = st.integers(0, 60).map("m{}".format)
mails = st.tuples(
    msg_ids,
    st.sampled_from([b"1", b"1", b"1", b"2"]),
    st.sampled_from([None, None, 0, START - 5_000, START + 10_000]),
    st.sampled_from([None, None, 1, 4_000, 31_000]),
    st.booleans(),
    st.sampled_from([None, None, True, False, False]),
    st.sampled_from([None, None, None, -5_000, 2_000, 40_000]),
    st.sampled_from([None, None, 0, 1]),
)
MailArguments = tuple[str, bytes, int | None, int | None, bool, bool | None, int | None, int | None]


class Saboteur:
    """A participant that fails the whole group, after everyone else has done their part."""

    armed = False

    def before_commit(self, tx: Tx) -> None:
        if self.armed:
            raise apsw.FullError("no space left")

    def after_commit(self) -> list[JobOutcome]:
        return []

    def rolled_back(self) -> None:
        self.armed = False

    def next_due(self, tx: Tx) -> int | None:
        return None


class MailboxMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(mkdtemp())
        self.clock = ManualClock(START)
        self.model = Model(POLICY, START)
        self.harness = self._open()
        self.jobs: list[tuple[Callable[[Tx], Any], Callable[[Any], None]]] = []
        self.receipts: list[tuple[str, Letter, str]] = []  # mailbox, message, receipt
        self.waiting: list[tuple[Waiter, ModelWaiter, list[LeasedMessage]]] = []
        self.replays = self.steps = 0
        self.gather, self.fail = 1, False

    def _open(self) -> MailboxHarness:
        connection = apsw.Connection(str(self.folder / "journal.db"))
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = OFF")
        migrate_schema(connection, Path("journal.db"))
        harness = MailboxHarness(POLICY, self.clock, connection)
        self.saboteur = Saboteur()
        harness.writer._participants += (self.saboteur,)
        return harness

    def teardown(self) -> None:
        self.harness.connection.close()
        rmtree(self.folder)

    # -- commit groups

    def queue(self, operation: Callable[[Tx], Any], check: Callable[[Any], None]) -> None:
        """`check` gets what the core answered, and lets the model do the same."""
        self.jobs.append((operation, check))
        if len(self.jobs) >= self.gather:
            self.commit()

    @rule(size=st.integers(2, 4), fail=st.booleans())
    def share_a_group(self, size: int, fail: bool) -> None:
        """The next operations share one group, which may fail."""
        self.gather, self.fail = size, fail

    def commit(self) -> None:
        """One group: the core's answers to each operation are the model's."""
        jobs, self.jobs = self.jobs, []
        fail, self.fail, self.gather = self.fail, False, 1
        self.saboteur.armed = fail
        values = self.harness.group(*(operation for operation, _ in jobs))
        if fail:
            assert all(isinstance(value, StorageFailed) for value in values)
            self._line_up()
            return
        self.model.now = self.clock.now()
        for value, (_, check) in zip(values, jobs, strict=True):
            check(value)
        for _, letters in self.model.serve():
            self._learn(letters)
        for _, modelled, got in self.waiting:
            assert [message.msg_id for message in got] == modelled.got

    def _line_up(self) -> None:
        """A failed group may leave the waiters in another order, though never in another number."""
        order = [w for line in self.harness.dispatcher._waiters._turns.values() for w in line]
        expected = {waiter: modelled for waiter, modelled, _ in self.waiting}
        before = [modelled for modelled in self.model.queue if not modelled.gone]
        self.model.queue = [expected[waiter] for waiter in order if not waiter.gone]
        assert sorted(map(id, before)) == sorted(map(id, self.model.queue))

    def _learn(self, letters: list[Letter]) -> None:
        """Find out which receipts the core gave for what the model handed out too."""
        for letter in letters:
            id, lease = self.harness.sql(
                """SELECT m.id, l.id FROM mail m JOIN mailbox b ON b.id = m.mailbox
                   JOIN lease l ON l.slot IN (m.id, m.id >> 38) AND l.id = m.lease
                   WHERE b.name = ? AND m.msg_id = ?""",
                (letter.mailbox, letter.msg_id),
            )[0]
            self.model.learn(letter, f"{lease:x}")
            self.receipts.append((letter.mailbox, letter, f"{id:x}.{lease:x}"))

    def rarely(self) -> bool:
        """What clears the table is allowed only every so often, or nothing would ever be on it."""
        self.steps += 1
        return self.steps % 8 == 0

    # -- operations

    @rule(to=mailboxes, sender=senders, batch=st.lists(mails, min_size=1, max_size=6))
    def enqueue(self, to: str, sender: str, batch: list[MailArguments]) -> None:
        def check(acks: list[EnqueueAck]) -> None:
            found = [(a.queued, a.pending, a.error.code if a.error else None) for a in acks]
            assert found == self.model.enqueue(to, sender, new)

        new = [self._mail(*each) for each in batch]
        self.queue(lambda tx: self.harness.dispatcher.enqueue(tx, to, sender, new), check)

    def _mail(
        self, msg_id: str, body: bytes, at: int | None, ttl: int | None, tracked: bool,
        ordered: bool | None, delay: int | None, max_retries: int | None,
    ) -> NewMail:  # fmt: skip
        not_before = 0 if delay is None else self.clock.now() + delay
        return NewMail(
            msg_id, body, at, ttl, b"{}" if tracked else None, ordered=ordered,
            not_before=not_before, max_retries=max_retries,
        )  # fmt: skip

    @rule(mailbox=mailboxes, ordered=st.booleans())
    def set_order(self, mailbox: str, ordered: bool) -> None:
        def check(_: None) -> None:
            (self.model.unordered.discard if ordered else self.model.unordered.add)(mailbox)

        dispatcher, order = self.harness.dispatcher, "fifo" if ordered else "none"
        self.queue(lambda tx: dispatcher.set_order(tx, mailbox, order), check)  # type: ignore[arg-type]

    @rule(mailbox=mailboxes, consumer=consumers, limit=limits)
    def dequeue(self, mailbox: str, consumer: str, limit: int) -> None:
        def check(messages: list[LeasedMessage]) -> None:
            letters = self.model.dequeue(mailbox, consumer, limit)
            assert [(m.msg_id, m.from_, m.attempt, bytes(m.payload)) for m in messages] == [
                (x.msg_id, x.sender, x.attempt, x.payload) for x in letters
            ]
            for letter, message in zip(letters, messages, strict=True):
                self.model.learn(letter, message.receipt.split(".")[1])
                self.receipts.append((mailbox, letter, message.receipt))

        self.queue(lambda tx: self.harness.dispatcher.dequeue(tx, mailbox, consumer, limit), check)

    @precondition(lambda self: self.receipts)
    @rule(data=st.data(), good=st.sampled_from(["ack", "ack", "ack", "nack", "reject"]))
    def settle(self, data: st.DataObject, good: str) -> None:
        """Any receipts ever given, in any order: most often the latest, in the right order."""
        newest = self.receipts[-6:]
        chosen = data.draw(
            st.one_of(
                st.integers(1, len(newest)).map(lambda n: newest[-n:]),
                st.lists(st.sampled_from(self.receipts), min_size=1, max_size=4),
            )
        )
        self._settle(good, chosen[0][0], [c for c in chosen if c[0] == chosen[0][0]])

    @precondition(lambda self: any(c.loan for c in self.model.pairs.values()))
    @rule(data=st.data(), good=st.sampled_from(["ack", "nack", "reject"]))
    def settle_held(self, data: st.DataObject, good: str) -> None:
        """The next messages of a lease that is out."""
        loans = [c.loan for c in self.model.pairs.values() if c.loan]
        letters = data.draw(st.sampled_from(loans)).letters
        some = letters[: data.draw(st.integers(1, len(letters)))]
        latest = {id(letter): receipt for _, letter, receipt in self.receipts}
        chosen = [(x.mailbox, x, latest[id(x)]) for x in some]
        self._settle(good, chosen[0][0], chosen)

    def _settle(self, how: str, mailbox: str, chosen: list[tuple[str, Letter, str]]) -> None:
        receipts = [receipt for _, _, receipt in chosen]

        def operation(tx: Tx) -> Settlement:
            if how == "ack":
                return self.harness.dispatcher.ack(tx, mailbox, receipts, [])
            retry = how == "nack"
            return self.harness.dispatcher.nack(tx, mailbox, receipts, [], "", retry=retry)

        def check(result: Settlement) -> None:
            known = [c for c in chosen if self.model.find(mailbox, c[1].msg_id) is c[1]]
            refs = [(letter.msg_id, r.split(".")[1]) for _, letter, r in known]
            lost = len({r for _, _, r in chosen} - {r for _, _, r in known})
            nack = partial(self.model.nack, retry=how == "nack")
            start = len(self.model.closed)
            settled, failures = (self.model.ack if how == "ack" else nack)(mailbox, refs)
            assert result.settled == settled
            found = sorted(failure.code for failure in result.failures)
            if not lost:
                assert found == failures
            assert len(found) == len(failures) + lost
            closed = [(closed.msg_id, closed.outcome) for closed in result.closed]
            assert closed == self.model.closed[start:]
            del self.model.closed[start:]

        self.queue(operation, check)

    @rule(mailbox=mailboxes, msg_id=msg_ids, good=st.booleans())
    def settle_by_msg_id(self, mailbox: str, msg_id: str, good: bool) -> None:
        def operation(tx: Tx) -> Settlement:
            if good:
                return self.harness.dispatcher.ack(tx, mailbox, [], [msg_id])
            return self.harness.dispatcher.nack(tx, mailbox, [], [msg_id], "")

        def check(result: Settlement) -> None:
            found = [failure.code for failure in result.failures]
            letter = self.model.find(mailbox, msg_id)
            if letter is None:
                assert (result.settled, found) == (0, ["unknown_message"])
                return
            model = self.model.ack if good else self.model.nack
            start = len(self.model.closed)
            assert (result.settled, found) == model(mailbox, [(msg_id, letter.token)])
            del self.model.closed[start:]

        self.queue(operation, check)

    @precondition(lambda self: self.receipts)
    @rule(data=st.data())
    def extend(self, data: st.DataObject) -> None:
        mailbox, _, receipt = data.draw(st.sampled_from(self.receipts[-8:]))

        def check(stale: list[str]) -> None:
            kept = self.model.extend(mailbox, receipt.split(".")[1])
            assert stale == ([] if kept else [receipt])

        self.queue(lambda tx: self.harness.dispatcher.extend(tx, mailbox, [receipt]), check)

    @precondition(lambda self: self.rarely())
    @rule(mailbox=mailboxes)
    def purge(self, mailbox: str) -> None:
        def check(size: int) -> None:
            assert size == self.model.purge(mailbox)

        self.queue(lambda tx: self.harness.dispatcher.purge(tx, mailbox, 1000, "operator"), check)

    @precondition(lambda self: self.model.graves)
    @rule(data=st.data())
    def replay(self, data: st.DataObject) -> None:
        mailbox, msg_id = data.draw(st.sampled_from(sorted(self.model.graves)))
        self.replays += 1
        new_id, dispatcher = f"r{self.replays}", self.harness.dispatcher

        def resend(tx: Tx, letter: DeadLetter, meta: bytes | None) -> EnqueueAck:
            mail = NewMail(new_id, bytes(letter.payload))  # type: ignore[arg-type]
            return dispatcher.enqueue(tx, mailbox, letter.from_, [mail])[0]

        def operation(tx: Tx) -> list[EnqueueAck]:
            wanted = DeadLetterFilter(msg_ids=[msg_id])
            box = dispatcher.mailbox_ref(tx, mailbox)
            return dead_letters.replay_dead_letters(tx, box.id, wanted, 1, resend, "operator")

        def check(acks: list[EnqueueAck]) -> None:
            found = [(a.queued, a.pending, a.error.code if a.error else None) for a in acks]
            alive = (mailbox, msg_id) in self.model.graves
            assert found == ([self.model.replay(mailbox, msg_id, new_id)] if alive else [])

        self.queue(operation, check)

    @precondition(lambda self: self.model.graves)
    @rule(data=st.data())
    def discard(self, data: st.DataObject) -> None:
        mailbox, msg_id = data.draw(st.sampled_from(sorted(self.model.graves)))

        def operation(tx: Tx) -> int:
            wanted = DeadLetterFilter(msg_ids=[msg_id])
            box = self.harness.dispatcher.mailbox_ref(tx, mailbox)
            return dead_letters.discard_dead_letters(tx, box.id, wanted, 10, "operator")

        def check(size: int) -> None:
            assert size == self.model.discard(mailbox, msg_id)

        self.queue(operation, check)

    @precondition(lambda self: self.rarely())
    @rule(age=st.sampled_from([0, 10_000, 100_000]))
    def forget(self, age: int) -> None:
        def operation(tx: Tx) -> int:
            return sweep.forget_settled_mail(tx, tx.now - age // 2, tx.now - age, 1000)

        self.queue(operation, lambda _: self.model.forget(self.model.now - age))

    # -- waiters

    @rule(mailbox=mailboxes, consumer=consumers, credit=st.integers(1, 6), once=st.booleans())
    def wait(self, mailbox: str, consumer: str, credit: int, once: bool) -> None:
        got: list[LeasedMessage] = []
        modelled = ModelWaiter(mailbox, consumer, credit, once)
        waiters: list[Waiter] = []

        def operation(tx: Tx) -> list[LeasedMessage]:
            box = self.harness.dispatcher.mailbox_ref(tx, mailbox)
            waiters.append(Waiter(box, consumer, credit, got.extend, once))
            return self.harness.dispatcher.add_waiter(tx, waiters[0])

        def check(again: list[LeasedMessage]) -> None:
            letters = self.model.wait(modelled)
            assert [message.msg_id for message in again] == [x.msg_id for x in letters]
            self.waiting.append((waiters[0], modelled, got))

        self.queue(operation, check)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data(), for_good=st.booleans())
    def leave(self, data: st.DataObject, for_good: bool) -> None:
        waiter, modelled, _ = data.draw(st.sampled_from(self.waiting))
        modelled.gone = True
        dispatcher = self.harness.dispatcher

        def check(_: None) -> None:
            (self.model.give_up if for_good else self.model.leave)(modelled)

        waiter.gone = True
        leave = dispatcher.release_waiter if for_good else dispatcher.remove_waiter
        self.queue(lambda tx: leave(tx, waiter), check)

    # -- the world

    @rule(ms=st.sampled_from([0, 1, 500, 4_000, 30_000, 90_000]))
    def pass_time(self, ms: int) -> None:
        self.clock.advance(ms)
        if not self.jobs:
            self.commit()

    @precondition(lambda self: not self.jobs and self.harness.writer._next_due_at)
    @rule()
    def wait_until_something_is_due(self) -> None:
        """To the very millisecond, and the one before it."""
        due = self.harness.writer._next_due_at or 0
        if due > self.clock.now():
            self.clock.set(due - 1)
            self.commit()
            self.clock.set(due)
        self.commit()

    @precondition(lambda self: self.rarely())
    @rule()
    def restart(self) -> None:
        self.jobs.clear()
        self.waiting.clear()
        self.harness.connection.close()
        closed = self.harness.closed
        self.harness = self._open()
        self.harness.closed = closed
        self.model.restart()

    @precondition(lambda self: not self.jobs)
    @rule(mailbox=mailboxes, limit=limits)
    def peek(self, mailbox: str, limit: int) -> None:
        """Page by page, everything unsettled, in the order it is handed out."""
        expected = [(x.msg_id, x.state, x.attempt) for x in self.model.unsettled(mailbox)]
        found: list[tuple[str, str, int]] = []
        after = ""
        while page := self.harness.peek(limit, after, mailbox):
            found += [(row.msg_id, row.state, row.attempt) for row in page]
            after = page[-1].msg_id
        assert found == expected

    # -- what always holds between groups

    @invariant()
    def all_is_well(self) -> None:
        self.states_are_the_models()
        self.counters_are_counted_rows()
        self.heads_and_leases_agree_with_mail()
        self.unordered_mail_has_leases_of_its_own()
        self.credit_is_what_is_not_held()
        self.nobody_waits_beside_ready_mail()
        self.dead_letters_keep_their_payload()
        self.senders_hear_of_every_end()

    def states_are_the_models(self) -> None:
        query = """SELECT b.name, m.msg_id, m.state, m.attempt, m.not_before
                   FROM mail m JOIN mailbox b ON b.id = m.mailbox"""
        names = ["pending", "in_flight", "nacked", "acked", "dead_letter", "expired"]
        found = {(b, m): (names[state], *rest) for b, m, state, *rest in self.harness.sql(query)}
        expected = {
            (x.mailbox, x.msg_id): (x.state, x.attempt, x.not_before)
            for mailbox in MAILBOXES
            for x in self.model.letters(mailbox)
        }
        assert found == expected

    def counters_are_counted_rows(self) -> None:
        query = """SELECT b.waiting, b.in_flight, b.dead,
                     (SELECT count(*) FROM mail m WHERE m.mailbox = b.id AND m.state IN (0, 2)),
                     (SELECT count(*) FROM mail m WHERE m.mailbox = b.id AND m.state = 1),
                     (SELECT count(*) FROM dead_letter d WHERE d.mailbox = b.id) FROM mailbox b"""
        for row in self.harness.sql(query):
            assert row[:3] == row[3:]

    def heads_and_leases_agree_with_mail(self) -> None:
        query = """SELECT p.id, p.head, p.ready_at, l.next, l.last, l.behind, l.size
                   FROM pair p LEFT JOIN lease l ON l.slot = p.id"""
        for pair, head, ready_at, first, last, behind, size in self.harness.sql(query):
            span = (pair << 38, (pair << 38 | 1 << 37) - 1)
            rows = self.harness.sql(
                "SELECT id, state, not_before FROM mail WHERE id BETWEEN ? AND ? ORDER BY id", span
            )
            waiting = [row for row in rows if row[1] in (0, 2)]
            out = [row[0] for row in rows if row[1] == 1]
            if first is not None:
                assert (head, ready_at) == (None, None)
                assert out and first <= out[0] and out[-1] <= last and len(out) == size
                assert all(row[0] >= behind > last for row in waiting)
            else:
                assert not out
                assert head == (waiting[0][0] if waiting else None)
                expected = waiting[0][2] if waiting else None
                now = self.model.now
                assert ready_at == (0 if expected is not None and expected <= now else expected)

    def unordered_mail_has_leases_of_its_own(self) -> None:
        query = """SELECT m.state, m.not_before, l.slot, l.next, l.last, l.size
                   FROM mail m LEFT JOIN lease l ON l.slot = m.id WHERE m.id & (1 << 37)"""
        for state, not_before, slot, first, last, size in self.harness.sql(query):
            assert (slot is not None) == (state == 1)
            if slot is not None:
                assert (first, last, size) == (slot, slot, 1)
            if state in (0, 2):
                assert not_before == 0 or not_before > self.model.now

    def credit_is_what_is_not_held(self) -> None:
        for waiter, modelled, _ in self.waiting:
            assert waiter.credit == modelled.credit

    def nobody_waits_beside_ready_mail(self) -> None:
        for waiter, _, _ in self.waiting:
            if waiter.credit > 0 and not waiter.gone and waiter in self._members():
                query = """SELECT 1 FROM pair WHERE mailbox = ?1 AND ready_at = 0 UNION
                           SELECT 1 FROM mail WHERE mailbox = ?1 AND state IN (0, 2)
                           AND id & (1 << 37) AND not_before = 0"""
                assert not self.harness.sql(query, (waiter.mailbox.id,))

    def _members(self) -> set[Waiter]:
        return self.harness.dispatcher._waiters._waiters

    def dead_letters_keep_their_payload(self) -> None:
        for mailbox in MAILBOXES:
            query = """SELECT m.msg_id, d.reason, d.attempts, d.replayed_as, y.payload
                       FROM dead_letter d JOIN mail m ON m.id = d.id JOIN body y ON y.id = d.id
                       JOIN mailbox b ON b.id = d.mailbox WHERE b.name = ?"""
            found = {row[0]: row[1:] for row in self.harness.sql(query, (mailbox,))}
            graves = {m: g for (box, m), g in self.model.graves.items() if box == mailbox}
            assert found.keys() == graves.keys()
            for msg_id, grave in graves.items():
                reason, *rest = found[msg_id]
                assert reason.startswith(grave.reason)
                assert rest == [grave.attempts, grave.replayed_as, grave.letter.payload]

    def senders_hear_of_every_end(self) -> None:
        found = sorted((closed.msg_id, closed.outcome) for closed in self.harness.closed)
        assert found == sorted(self.model.closed)


MailboxMachine.TestCase.settings = settings(
    max_examples=choose(40, 2000),
    stateful_step_count=choose(80, 120),
    deadline=None,
    report_multiple_bugs=False,
)
TestMailboxes = pytest.mark.timeout(choose(120, 3600))(MailboxMachine.TestCase)
