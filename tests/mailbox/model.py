"""What a mailbox should do, in the plainest Python: lists, no SQL, no indexes, no shortcuts."""

from dataclasses import dataclass, field
from itertools import takewhile
from math import ceil

from gatepost.mailbox import MailboxPolicy, NewMail

WAITING = ("pending", "nacked")


@dataclass
class Letter:
    mailbox: str
    sender: str
    msg_id: str
    payload: bytes
    place: tuple[int, int]  # created_at made monotonic in the pair, arrival
    number: int  # in the pair
    expires_at: int
    tracked: bool
    state: str = "pending"
    attempt: int = 0
    not_before: int = 0
    ordered: bool = True
    max_retries: int | None = None
    token: str = ""  # of its latest lease
    settled_at: int = 0
    deliveries: int = 0

    @property
    def lane(self) -> tuple[str, str, str]:
        """Mail of one lane is in order: a pair's ordered mail, or one unordered letter."""
        return self.mailbox, self.sender, "" if self.ordered else self.msg_id


@dataclass
class Loan:
    """A lease: what is still unsettled of it, in order."""

    token: str
    consumer: str
    expires_at: int
    letters: list[Letter]
    holder: "ModelWaiter | None" = None


@dataclass
class ModelWaiter:
    """A waiting consumer."""

    mailbox: str
    consumer: str
    credit: int
    once: bool
    gone: bool = False
    got: list[str] = field(default_factory=list)


@dataclass
class Pair:
    """What the mailbox remembers of a sender as long as it has any mail of it."""

    id: int
    last_rank: int = 0


@dataclass
class Couple:
    """A lane: the ordered mail of a pair, or one unordered letter."""

    letters: list[Letter] = field(default_factory=list)
    numbers: int = 0
    loan: Loan | None = None

    def waiting(self) -> list[Letter]:
        return [letter for letter in self.letters if letter.state in WAITING]


@dataclass
class Grave:
    letter: Letter
    reason: str
    failed_at: int
    attempts: int
    replayed_as: str | None = None


@dataclass
class Model:
    policy: MailboxPolicy
    now: int
    pairs: dict[tuple[str, str, str], Couple] = field(default_factory=dict)
    senders: dict[tuple[str, str], Pair] = field(default_factory=dict)
    pair_ids: int = 0
    unordered: set[str] = field(default_factory=set)  # mailboxes
    arrivals: dict[str, int] = field(default_factory=dict)
    graves: dict[tuple[str, str], Grave] = field(default_factory=dict)
    discarded: dict[tuple[str, str], int] = field(default_factory=dict)
    queue: list[ModelWaiter] = field(default_factory=list)
    waiters: list[ModelWaiter] = field(default_factory=list)
    closed: list[tuple[str, str]] = field(default_factory=list)

    # -- looking

    def letters(self, mailbox: str) -> list[Letter]:
        return [
            letter
            for (to, _, _), couple in self.pairs.items()
            for letter in couple.letters
            if to == mailbox
        ]

    def find(self, mailbox: str, msg_id: str) -> Letter | None:
        found = [letter for letter in self.letters(mailbox) if letter.msg_id == msg_id]
        return found[0] if found else None

    def count(self, mailbox: str, *states: str) -> int:
        return sum(letter.state in states for letter in self.letters(mailbox))

    def unsettled(self, mailbox: str) -> list[Letter]:
        live = [x for x in self.letters(mailbox) if x.state in (*WAITING, "in_flight")]
        return sorted(live, key=lambda letter: letter.place)

    def ready(self, mailbox: str) -> list[Couple]:
        """Pairs one may take from, the oldest head first."""
        found = [
            couple
            for (to, _, _), couple in self.pairs.items()
            if to == mailbox and couple.loan is None and couple.waiting()
            if couple.waiting()[0].not_before <= self.now
        ]
        return sorted(found, key=lambda couple: couple.waiting()[0].place)

    def ready_unordered(self, mailbox: str) -> list[Couple]:
        return [couple for couple in self.ready(mailbox) if not couple.waiting()[0].ordered]

    def loans(self, mailbox: str, consumer: str) -> list[Loan]:
        """In the order their pairs came into being, unordered letters last."""
        found = [
            couple.loan
            for (to, _, _), couple in self.pairs.items()
            if to == mailbox and couple.loan and couple.loan.consumer == consumer
        ]
        return sorted(found, key=self._slot)

    def _slot(self, loan: Loan) -> tuple[bool, int, int]:
        first = loan.letters[0]
        pair = self.senders[first.mailbox, first.sender]
        return not first.ordered, pair.id, 0 if first.ordered else first.place[1]

    # -- operations

    def enqueue(
        self,
        mailbox: str,
        sender: str,
        mails: list[NewMail],
    ) -> list[tuple[bool, int, str | None]]:
        return [self._enqueue(mailbox, sender, mail) for mail in mails]

    def _enqueue(self, to: str, sender: str, mail: NewMail) -> tuple[bool, int, str | None]:
        msg_id, payload = mail.msg_id, mail.payload
        waiting = self.count(to, *WAITING)
        known = self.find(to, msg_id)
        if known is not None:
            same = (known.sender, known.payload) == (sender, payload)
            return False, waiting, None if same else "idempotency_conflict"
        if waiting >= self.policy.max_pending:
            return False, waiting, "mailbox_full"
        ordered = to not in self.unordered if mail.ordered is None else mail.ordered
        place = self._place(to, sender, mail, ordered)
        due = mail.not_before if mail.not_before > self.now else 0
        begin, ttl = (
            (max(self.now, due), self.policy.ttl) if mail.ttl is None else (self.now, mail.ttl)
        )
        letter = Letter(
            to, sender, msg_id, payload, place, 0, begin + ttl, mail.meta is not None,
            not_before=due, ordered=ordered, max_retries=mail.max_retries,
        )  # fmt: skip
        couple = self.pairs.setdefault(letter.lane, Couple())
        couple.numbers = letter.number = couple.numbers + 1
        couple.letters.append(letter)
        return True, waiting + 1, None

    def _place(self, to: str, sender: str, mail: NewMail, ordered: bool) -> tuple[int, int]:
        if (to, sender) not in self.senders:
            self.pair_ids += 1
            self.senders[to, sender] = Pair(self.pair_ids)
        pair = self.senders[to, sender]
        created = self.now if mail.created_at is None else mail.created_at
        # Nobody gets more than an hour ahead by a date in the past.
        earliest = self.now - 3_600_000
        rank = max(created, earliest, mail.not_before if mail.not_before > self.now else 0)
        rank -= mail.priority * 1000
        if ordered:
            rank = pair.last_rank = max(pair.last_rank, rank)
        self.arrivals[to] = self.arrivals.get(to, 0) + 1
        return rank, self.arrivals[to]

    def dequeue(self, mailbox: str, consumer: str, limit: int) -> list[Letter]:
        self.sweep()
        loans = self.loans(mailbox, consumer) if consumer else []
        if loans:
            return self.again(loans, limit)
        return self.take(mailbox, consumer, limit)

    def again(self, loans: list[Loan], limit: int) -> list[Letter]:
        found: list[Letter] = []
        for loan in loans:
            if len(found) < limit:
                self._extend(loan)
                found += loan.letters[: limit - len(found)]
        return found

    def take(
        self,
        mailbox: str,
        consumer: str,
        limit: int,
        holder: ModelWaiter | None = None,
        share: int | None = None,
    ) -> list[Letter]:
        """Of the unordered letters at most the consumer's share, if others wait too."""
        candidates: list[Letter] = []
        unordered = self.ready_unordered(mailbox)
        withheld = {
            id(couple) for couple in unordered[len(unordered) if share is None else share :]
        }
        ready = [couple for couple in self.ready(mailbox) if id(couple) not in withheld]
        for couple in ready[:limit]:
            head, *rest = couple.waiting()
            due = takewhile(lambda x: x.not_before <= self.now, rest)
            candidates += [head, *(x for x in due if x.number < head.number + limit)]
        taken = sorted(candidates, key=lambda letter: letter.place)[:limit]
        for letter in taken:
            couple = self.pairs[letter.lane]
            if couple.loan is None:
                until = self.now + self.policy.inflight_timeout
                couple.loan = Loan("", consumer, until, [], holder)
            couple.loan.letters.append(letter)
            letter.not_before = 0 if letter.state == "nacked" else letter.not_before
            letter.state, letter.deliveries = "in_flight", letter.deliveries + 1
        return taken

    def learn(self, letter: Letter, token: str) -> None:
        """The real core chose this token for the lease of `letter`."""
        loan = self.pairs[letter.lane].loan
        assert loan is not None
        assert loan.token in ("", token)
        loan.token = letter.token = token

    def ack(self, mailbox: str, refs: list[tuple[str, str]]) -> tuple[int, list[str]]:
        """refs are (msg_id, token). Returns how many turns ended, and the codes of failures."""
        settled, failures = 0, []
        for run in self._by_loan(mailbox, refs):
            letters, token = run
            couple = self.pairs[letters[0].lane]
            loan = couple.loan
            if loan is None or loan.token != token:
                failures += [f for x in letters if (f := self._repeat(x, token, ("acked",)))]
                continue
            first = loan.letters[0].number
            past = [x for x in letters if x.number < first]
            now = [x for x in letters if x.number >= first]
            while now and loan.letters and now[0] is loan.letters[0]:
                self._end(now.pop(0), "acked", "ok")
                self._credit(loan, 1)
                loan.letters.pop(0)
                settled += 1
            if not loan.letters:
                couple.loan = None
            failures += ["out_of_order"] * len(now)
            failures += [f for x in past if (f := self._repeat(x, token, ("acked",)))]
        return settled, sorted(failures)

    def nack(
        self, mailbox: str, refs: list[tuple[str, str]], retry: bool = True
    ) -> tuple[int, list[str]]:
        settled, failures = 0, []
        fine = ("pending", "in_flight", "nacked", "dead_letter", "expired")
        for letters, token in self._by_loan(mailbox, refs):
            couple = self.pairs[letters[0].lane]
            loan = couple.loan
            if loan is None or loan.token != token:
                failures += [f for x in letters if (f := self._repeat(x, token, fine))]
                continue
            first = loan.letters[0].number
            now = [x for x in letters if x.number >= first]
            past = [x for x in letters if x.number < first]
            if now and now[0] is loan.letters[0]:
                self._fail(couple, retry)
                settled += 1
            else:
                failures += ["out_of_order"] * len(now)
            failures += [f for x in past if (f := self._repeat(x, token, fine))]
        return settled, sorted(failures)

    def _by_loan(self, mailbox: str, refs: list[tuple[str, str]]) -> list[tuple[list[Letter], str]]:
        groups: dict[tuple[tuple[str, str, str], str], list[Letter]] = {}
        for msg_id, token in dict.fromkeys(refs):
            letter = self.find(mailbox, msg_id)
            assert letter is not None
            groups.setdefault((letter.lane, token), []).append(letter)
        return [(letters, token) for (_, token), letters in groups.items()]

    def _repeat(self, letter: Letter, token: str, fine: tuple[str, ...]) -> str | None:
        if letter.state == "pending" and not letter.token:
            return "wrong_state"
        return None if letter.state in fine and letter.token == token else "stale_receipt"

    def extend(self, mailbox: str, token: str) -> bool:
        for (to, _, _), couple in self.pairs.items():
            if to == mailbox and couple.loan and couple.loan.token == token:
                self._extend(couple.loan)
                return True
        return False

    def _extend(self, loan: Loan) -> None:
        loan.expires_at = self.now + self.policy.inflight_timeout

    def purge(self, mailbox: str) -> int:
        waiting = [x for x in self.letters(mailbox) if x.state in WAITING]
        for letter in waiting:
            self._bury(letter, "purged by operator", letter.attempt)
        return len(waiting)

    def replay(self, mailbox: str, msg_id: str, new_id: str) -> tuple[bool, int, str | None]:
        grave = self.graves[mailbox, msg_id]
        old = grave.letter
        ack = self._enqueue(mailbox, old.sender, NewMail(new_id, old.payload))
        if ack[2] is None:
            grave.replayed_as = new_id
        return ack

    def discard(self, mailbox: str, msg_id: str) -> int:
        if self.graves.pop((mailbox, msg_id), None) is None:
            return 0
        self.discarded[mailbox, msg_id] = self.now
        return 1

    def forget(self, before: int) -> None:
        for key, couple in list(self.pairs.items()):
            couple.letters = [x for x in couple.letters if not self._forgettable(x, before)]
            if not couple.letters:
                del self.pairs[key]
        alive = {(to, sender) for to, sender, _ in self.pairs}
        self.senders = {key: pair for key, pair in self.senders.items() if key in alive}
        self.discarded = {key: at for key, at in self.discarded.items() if at > before}

    def _forgettable(self, letter: Letter, before: int) -> bool:
        if letter.state in ("acked", "expired"):
            return letter.settled_at <= before
        return self.discarded.get((letter.mailbox, letter.msg_id), before + 1) <= before

    # -- waiters

    def wait(self, waiter: ModelWaiter) -> list[Letter]:
        loans = self.loans(waiter.mailbox, waiter.consumer) if waiter.consumer else []
        limit = waiter.credit if waiter.once else 1_000_000
        for loan in loans:
            self._credit(loan, len(loan.letters))
            loan.holder = waiter
            waiter.credit -= len(loan.letters)
        if waiter.consumer and not waiter.once:
            self._replace(waiter)
        if not (waiter.once and loans):
            self.waiters.append(waiter)
            if waiter.credit > 0:
                self.queue.append(waiter)
        return self.again(loans, limit)

    def _replace(self, waiter: ModelWaiter) -> None:
        """Who subscribes again under the same name takes the place of its former self."""
        name = (waiter.mailbox, waiter.consumer)
        former = {id(g) for g in self.waiters if (g.mailbox, g.consumer) == name and not g.once}
        self.waiters = [other for other in self.waiters if id(other) not in former]
        self.queue = [other for other in self.queue if id(other) not in former]

    def leave(self, waiter: ModelWaiter) -> None:
        waiter.gone = True
        self.waiters = [other for other in self.waiters if other is not waiter]
        self.queue = [other for other in self.queue if other is not waiter]

    def give_up(self, waiter: ModelWaiter) -> None:
        self.leave(waiter)
        for couple in self.pairs.values():
            if couple.loan and couple.loan.holder is waiter:
                self._release(couple)

    def serve(self) -> list[tuple[ModelWaiter, list[Letter]]]:
        """The end of a group: whoever waits is served, in turn, while anything is ready.

        In each round, those who wait for one mailbox get equal shares of its unordered letters.
        """
        self.sweep()
        self.queue = [waiter for waiter in self.queue if not waiter.gone]
        served = []
        # Mailbox → (share, turns that are left of the round)
        rounds: dict[str, tuple[int | None, int]] = {}
        while turn := [waiter for waiter in self.queue if self.ready(waiter.mailbox)]:
            waiter = turn[0]
            share, left = rounds.get(waiter.mailbox, (None, 0))
            if not left:
                share, left = self._share_out(waiter.mailbox)
            rounds[waiter.mailbox] = share, left - 1
            letters = self.take(waiter.mailbox, waiter.consumer, waiter.credit, waiter, share)
            served.append((waiter, letters))
            waiter.got += [letter.msg_id for letter in letters]
            waiter.credit -= len(letters)
            self.queue = [other for other in self.queue if other is not waiter]
            if waiter.once:
                self.waiters = [other for other in self.waiters if other is not waiter]
            elif waiter.credit > 0:
                self.queue.append(waiter)
        return served

    def _share_out(self, mailbox: str) -> tuple[int | None, int]:
        waiting = [waiter for waiter in self.queue if waiter.mailbox == mailbox]
        if len(waiting) < 2:
            return None, 1
        credit = sum(waiter.credit for waiter in waiting)
        letters = min(credit, len(self.ready_unordered(mailbox)))
        return max(1, ceil(letters / len(waiting))), len(waiting)

    def restart(self) -> None:
        self.queue, self.waiters = [], []
        for couple in self.pairs.values():
            if couple.loan:
                couple.loan.holder = None

    def _credit(self, loan: Loan, size: int) -> None:
        waiter = loan.holder
        if waiter is None:
            return
        waiter.credit += size
        idle = not any(waiter is other for other in self.queue)
        if idle and waiter.credit > 0 and any(waiter is other for other in self.waiters):
            self.queue.append(waiter)

    # -- time

    def sweep(self) -> None:
        timed_out = [c for c in self.pairs.values() if c.loan and c.loan.expires_at <= self.now]
        for couple in sorted(timed_out, key=lambda c: (c.loan.expires_at, self._slot(c.loan))):  # type: ignore[union-attr,arg-type]
            self._fail(couple)
        for couple in self.pairs.values():
            for letter in couple.waiting():
                if letter.expires_at <= self.now:
                    self._end(letter, "expired", "expired")
                elif not letter.ordered and letter.not_before <= self.now:
                    letter.not_before = 0

    def _fail(self, couple: Couple, retry: bool = True) -> None:
        loan = couple.loan
        assert loan is not None
        letter = loan.letters[0]
        delay = self.policy.base_backoff * [1, 2, 4, 8, 16][min(letter.attempt, 4)]
        self._credit(loan, 1)
        loan.letters.pop(0)
        self._release(couple)
        letter.state, letter.not_before = "nacked", self.now + delay
        limit = self.policy.max_retries if letter.max_retries is None else letter.max_retries
        if letter.attempt >= limit or not retry:
            reason = "max_retries exhausted" if retry else "rejected"
            self._bury(letter, reason, letter.attempt + 1)
            return
        letter.attempt += 1
        if letter.expires_at <= self.now:
            self._end(letter, "expired", "expired")

    def _release(self, couple: Couple) -> None:
        assert couple.loan is not None
        for letter in couple.loan.letters:
            letter.state = "pending"
        self._credit(couple.loan, len(couple.loan.letters))
        couple.loan = None

    def _bury(self, letter: Letter, reason: str, attempts: int) -> None:
        key = (letter.mailbox, letter.msg_id)
        self.graves[key] = Grave(letter, reason, self.now, attempts)
        self._end(letter, "dead_letter", "dead_letter")

    def _end(self, letter: Letter, state: str, outcome: str) -> None:
        letter.state, letter.settled_at = state, self.now
        if letter.tracked:
            self.closed.append((letter.msg_id, outcome))
