"""What each operation on the wire does, whichever door it came through."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any, TypeVar

from msgspec import UNSET, UnsetType

from gatepost.delivery.send_request import check_send, fingerprint_send
from gatepost.delivery.sent_messages import is_reached
from gatepost.errors import GatepostError, Internal, InvalidRequest, PayloadTooLarge
from gatepost.gateway.core import Core
from gatepost.gateway.limits import Bucket
from gatepost.journal import Tx
from gatepost.mailbox import Mail, Settlement, Waiter, browse, deadletters
from gatepost.mailbox.deadletters import Filter
from gatepost.mailbox.enqueue import check_payload, find_mailbox
from gatepost.wire import (
    Ack,
    Await,
    Awaited,
    Count,
    DeadLetter,
    DeadLetters,
    Dequeue,
    Done,
    Enqueue,
    EnqueueAck,
    Enqueued,
    Extend,
    Failed,
    Failure,
    Message,
    Messages,
    Nack,
    NewMessage,
    NewSend,
    Op,
    Peek,
    PeekDeadLetter,
    Purge,
    PurgeDeadLetter,
    Register,
    Reply,
    Send,
    SendResults,
    Sent,
    Settled,
    Summaries,
)

log = logging.getLogger(__name__)

T = TypeVar("T")
Plan = Callable[[Tx], Reply]
# Messages of one sender for one mailbox, each with its place in the operation.
Runs = dict[tuple[str, str], list[tuple[int, Mail]]]
Until = Callable[["asyncio.Future[list[Message]]", float], Awaitable[bool]]


class Operations:
    """`plan` turns an operation into one transaction; `perform` runs any of them to its answer."""

    def __init__(self, core: Core) -> None:
        self.core = core
        limits = core.settings.limits
        self.bucket = Bucket(limits.rate_per_sec, limits.burst)
        self._inline = limits.max_payload_inline
        self._batch = core.settings.journal.sweep_batch
        self._longest_poll = limits.long_poll_max_secs
        self._waits: set[asyncio.Future[Any]] = set()
        self._ending = False
        self._plans: dict[type[Op], Callable[[Any], Plan | None]] = {
            Enqueue: self._enqueue,
            Send: self._plan_send,
            Ack: self._ack,
            Nack: self._nack,
            Extend: self._extend,
            Register: self._register,
        }
        self._slow: dict[type[Op], Callable[[Any], Awaitable[Reply]]] = {
            Dequeue: self._dequeue,
            Send: self._send,
            Await: self._await,
            Peek: self._peek,
            Purge: self._purge,
            PeekDeadLetter: self._peek_dead_letter,
            PurgeDeadLetter: self._purge_dead_letter,
        }

    def plan(self, op: Op) -> Plan | None:
        """The one transaction that is all of `op`, if one is all it takes."""
        make = self._plans.get(type(op))
        return None if make is None else make(op)

    async def perform(self, op: Op) -> Any:
        """The answer `op` has on the wire."""
        if (plan := self.plan(op)) is not None:
            return await self.core.commit(plan)
        return await self._slow[type(op)](op)

    async def answer(self, op: Op) -> Reply:
        """The answer `op` has on the wire, whatever happens."""
        try:
            reply: Reply = await self.perform(op)
            return reply
        except GatepostError as error:
            return Failed(re=op.id, error=Failure.of(error))
        except Exception:
            log.exception("an operation failed unexpectedly")
            return Failed(re=op.id, error=Failure.of(Internal("an internal error; see the log")))

    def admit(self, op: Op) -> None:
        """Raise RateLimited if the clients ask for too much at once."""
        self.bucket.take(weight(op))

    # -- one transaction each

    def _enqueue(self, op: Enqueue) -> Plan:
        """Messages go in by pair, however they are mixed; each is answered in its place."""
        runs: Runs = {}
        for place, new in enumerate(op.messages):
            mail = self._mail(new)
            runs.setdefault((new.to, new.from_), []).append((place, mail))
        return partial(self._enqueue_runs, op.id, runs)

    def _enqueue_runs(self, re: int, runs: Runs, tx: Tx) -> Reply:
        answers: dict[int, EnqueueAck] = {}
        for (to, sender), run in runs.items():
            acks = self.core.dispatcher.enqueue(tx, to, sender, [mail for _, mail in run])
            answers.update(zip((place for place, _ in run), acks, strict=True))
        return Enqueued(re=re, results=[answers[place] for place in sorted(answers)])

    def _mail(self, new: NewMessage) -> Mail:
        payload = bytes(new.payload)
        self._check_inline(payload)
        return Mail(new.id(), payload, new.created(), new.ttl())

    def _check_inline(self, payload: bytes) -> None:
        if len(payload) > self._inline:
            raise PayloadTooLarge(
                f"a payload may have {self._inline} bytes here, this has {len(payload)};"
                " `send` stores a larger one as a blob, and anything may name an uploaded blob"
            )
        check_payload(payload)

    def _ack(self, op: Ack) -> Plan:
        _some(op.receipts, op.msg_ids)
        for reply in op.replies.values():
            self._check_inline(bytes(reply))
        ack = self.core.coordinator.ack
        return lambda tx: _settled(op.id, ack(tx, op.mailbox, op.receipts, op.msg_ids, op.replies))

    def _nack(self, op: Nack) -> Plan:
        _some(op.receipts, op.msg_ids)
        nack = self.core.coordinator.nack
        return lambda tx: _settled(op.id, nack(tx, op.mailbox, op.receipts, op.msg_ids, op.reason))

    def _extend(self, op: Extend) -> Plan:
        def extend(tx: Tx) -> Reply:
            stale = self.core.dispatcher.extend(tx, op.mailbox, op.receipts)
            failures = [Failure("stale_receipt", "the lease ran out", text) for text in stale]
            return Settled(re=op.id, settled=len(op.receipts) - len(stale), failures=failures)

        return extend

    def _register(self, op: Register) -> Plan:
        def register(tx: Tx) -> Reply:
            # Who merely comes again stays what it was.
            self.core.agents.register(tx, op.agent, standby=op.standby or None)
            if not self.core.agents.is_standby(tx, op.agent):
                self.core.delivery.transfers.ask_owner(tx, op.agent)
            return Done(re=op.id)

        return register

    # -- those that read, wait, or take several transactions

    async def _dequeue(self, op: Dequeue) -> Reply:
        """Whoever hangs up before the answer gives back what was leased for it meanwhile."""
        consumer = op.consumer or f"poll:{self.core.clock.random(8).hex()}"
        poll = _Poll(self.core, op, consumer)
        try:
            messages = await (poll.wait(self._wait) if op.wait_secs else poll.take())
        except BaseException:
            poll.give_back()
            raise
        return Messages(re=op.id, messages=messages)

    async def _send(self, op: Send) -> Reply:
        """Payloads too large to travel inline are stored as blobs first."""
        # Taken before a payload moves into a blob, whose digest is another each time.
        marks = [fingerprint_send(new) for new in op.messages]
        for new in op.messages:
            if self._is_large(new):
                payload, new.payload = bytes(new.payload), UNSET  # type: ignore[arg-type]
                new.payload_ref = await self.upload([payload])
        return await self.core.commit(self._send_all(op, marks))

    def _plan_send(self, op: Send) -> Plan | None:
        for new in op.messages:
            check_send(new)
            if not isinstance(new.payload, UnsetType):
                check_payload(bytes(new.payload))
        if any(self._is_large(new) for new in op.messages):
            return None
        return self._send_all(op, [fingerprint_send(new) for new in op.messages])

    def _is_large(self, new: NewSend) -> bool:
        if isinstance(new.payload, UnsetType):
            return False
        return memoryview(new.payload).nbytes > self._inline

    def _send_all(self, op: Send, marks: list[bytes]) -> Plan:
        if self.core.telemetry is not None:
            self.core.telemetry.sending(op.messages)
        sends = list(zip(op.messages, marks, strict=True))
        return lambda tx: SendResults(re=op.id, results=self._send_in(tx, sends))

    def _send_in(self, tx: Tx, sends: list[tuple[NewSend, bytes]]) -> list[Sent]:
        """All at once, as they mostly can be; if one cannot, each for itself."""
        mark = tx.mark()
        try:
            sent = [self.core.coordinator.send(tx, *each) for each in sends]
        except GatepostError:
            tx.undo(mark)
            return [self._send_one(tx, *each) for each in sends]
        tx.keep()
        return sent

    async def upload(self, pieces: Iterable[bytes]) -> str:
        """Store a payload as a blob; returns its digest."""
        blob, key = await self.core.store_blob(pieces)
        insert = "INSERT OR IGNORE INTO blob VALUES (?, ?, ?, ?)"
        await self.core.commit(lambda tx: tx.run(insert, (blob.digest, key, blob.size, tx.now)))
        return blob.digest

    def _send_one(self, tx: Tx, new: NewSend, fingerprint: bytes) -> Sent:
        mark = tx.mark()
        try:
            sent = self.core.coordinator.send(tx, new, fingerprint)
        except GatepostError as error:
            tx.undo(mark)
            if self.core.telemetry is not None:
                self.core.telemetry.not_sent(new, error.code)
            id = "" if isinstance(new.event_id, UnsetType) else new.event_id
            return Sent(id, error=Failure.of(error, id))
        tx.keep()
        return sent

    async def _await(self, op: Await) -> Reply:
        id = op.event_id
        if op.wait_secs:
            sent = await self._reached(id, op.wait_secs, op.until)
        else:
            sent = await self.core.read(lambda tx: self.core.delivery.sent.status(tx, id))
        return Awaited(re=op.id, result=sent)

    async def wait_for(self, sent: Sent, until: str, secs: float) -> Sent:
        """What is known of a message, or of all its copies, once it is that far or time is up."""
        if sent.error is not None:
            return sent
        if not sent.copies:
            found = await self._reached(sent.event_id, secs, until)
            found.to_agent = sent.to_agent
            return found
        each = (self.wait_for(copy, until, secs) for copy in sent.copies)
        sent.copies = list(await asyncio.gather(*each))
        return sent

    async def _reached(self, id: str, secs: float, until: str) -> Sent:
        messages = self.core.delivery.sent
        settled: asyncio.Future[Sent] = asyncio.get_running_loop().create_future()

        def woken(sent: Sent, error: GatepostError | None) -> None:
            if not settled.done():
                settled.set_result(sent)

        try:
            sent = await self.core.commit(lambda tx: messages.wait(tx, id, woken, until))
            if is_reached(sent, until):
                settled.cancel()
            elif await self._wait(settled, secs):
                return settled.result()
        finally:
            if not settled.done():
                self.core.submit(lambda tx: messages.stop_waiting(id, woken))
        return sent

    async def _wait(self, future: "asyncio.Future[T]", secs: float) -> bool:
        """Whether `future` came true in time; the end of the gateway is the end of its time."""
        if self._ending:
            return False
        self._waits.add(future)
        try:
            await asyncio.wait([future], timeout=min(secs, self._longest_poll))
        finally:
            self._waits.discard(future)
        return _came(future)

    def end_waits(self) -> None:
        """The gateway stops: whoever waits for something is told that it did not happen."""
        self._ending = True
        for future in self._waits:
            future.cancel()

    async def _peek(self, op: Peek) -> Reply:
        found = await self._look(op.mailbox, lambda tx, id: browse.peek(tx, id, op.limit, op.after))
        return Summaries(re=op.id, messages=found or [])

    async def _peek_dead_letter(self, op: PeekDeadLetter) -> Reply:
        return DeadLetters(
            re=op.id, messages=await self.dead_letters(op.mailbox, Filter(), op.limit, op.after)
        )

    async def dead_letters(
        self, mailbox: str, wanted: Filter, limit: int, after: str = ""
    ) -> list[DeadLetter]:
        find = partial(deadletters.find, wanted=wanted, limit=limit, after=after)
        return await self._look(mailbox, find) or []

    async def _look(self, mailbox: str, query: Callable[[Tx, int], list[T]]) -> list[T] | None:
        def look(tx: Tx) -> list[T] | None:
            id = find_mailbox(tx, mailbox)
            return query(tx, id) if id else None

        return await self.core.read(look)

    async def _purge(self, op: Purge) -> Reply:
        return Count(re=op.id, count=await self.purge(op.mailbox, "operator"))

    async def purge(self, mailbox: str, actor: str) -> int:
        """Turn all waiting mail into dead letters, a batch a transaction."""

        def batch(tx: Tx) -> int:
            if not find_mailbox(tx, mailbox):
                return 0
            return self.core.dispatcher.purge(tx, mailbox, self._batch, actor)

        return await self._until_none(batch)

    async def _purge_dead_letter(self, op: PurgeDeadLetter) -> Reply:
        return Count(re=op.id, count=await self.discard(op.mailbox, Filter(), "operator"))

    async def discard(self, mailbox: str, wanted: Filter, actor: str) -> int:
        def batch(tx: Tx) -> int:
            id = find_mailbox(tx, mailbox)
            return deadletters.discard(tx, id, wanted, self._batch, actor) if id else 0

        return await self._until_none(batch)

    async def _until_none(self, batch: Callable[[Tx], int]) -> int:
        total = 0
        while count := await self.core.commit(batch):
            total += count
        return total

    async def replay(
        self, mailbox: str, wanted: Filter, limit: int, rate: float | None, actor: str
    ) -> list[EnqueueAck]:
        """Replay up to `limit` matching dead letters, at most `rate` a second if given."""
        acks: list[EnqueueAck] = []
        wanted.replayed = False if wanted.replayed is None else wanted.replayed
        while len(acks) < limit:
            size = min(limit - len(acks), self._batch if rate is None else max(1, int(rate / 10)))
            replay = partial(self.core.coordinator.replay, mailbox=mailbox, wanted=wanted)
            more = await self.core.commit(partial(replay, limit=size, actor=actor))
            acks += more
            if len(more) < size or any(ack.error for ack in more):
                break
            await asyncio.sleep(0 if rate is None else size / rate)
        return acks


class _Poll:
    """One dequeue, which may wait, and may be broken off at any moment."""

    def __init__(self, core: Core, op: Dequeue, consumer: str) -> None:
        self._core = core
        self._op = op
        self._consumer = consumer
        self._pushed: asyncio.Future[list[Message]] = asyncio.get_running_loop().create_future()
        self._waiter: Waiter | None = None

    async def take(self) -> list[Message]:
        return await self._core.commit(self._take)

    async def wait(self, until: Until) -> list[Message]:
        if again := await self._core.commit(self._join):
            return again
        if not await until(self._pushed, self._op.wait_secs):
            await self._core.commit(self._leave)
        return self._pushed.result() if _came(self._pushed) else []

    def give_back(self) -> None:
        """Undo what was or still will be leased, unless its consumer has a name to come back by."""
        if not self._op.wait_secs and not self._op.consumer:
            self._core.submit(self._rejoin)
        self._core.submit(self._give_up)

    def _take(self, tx: Tx) -> list[Message]:
        op = self._op
        if not find_mailbox(tx, op.mailbox):
            return []
        return self._core.dispatcher.dequeue(tx, op.mailbox, self._consumer, op.limit)

    def _join(self, tx: Tx) -> list[Message]:
        box = self._core.dispatcher.box(tx, self._op.mailbox)
        waiter = Waiter(box, self._consumer, self._op.limit, self._push, once=True)
        again = self._core.dispatcher.wait(tx, waiter)
        self._waiter = waiter
        return again

    def _rejoin(self, tx: Tx) -> None:
        """Become the holder of what was taken, for only a holder can give back."""
        if find_mailbox(tx, self._op.mailbox):
            self._join(tx)

    def _leave(self, tx: Tx) -> None:
        if self._waiter is not None:
            self._core.dispatcher.leave(tx, self._waiter)

    def _give_up(self, tx: Tx) -> None:
        if self._waiter is not None:
            self._core.dispatcher.give_up(tx, self._waiter)

    def _push(self, messages: list[Message]) -> None:
        if self._pushed.cancelled():
            self.give_back()
        elif not self._pushed.done():
            self._pushed.set_result(messages)


def _came(future: "asyncio.Future[Any]") -> bool:
    return future.done() and not future.cancelled()


def weight(op: Op) -> int:
    """How much work an operation is."""
    if isinstance(op, Send):
        return sum(_copies(new) for new in op.messages)
    return len(op.messages) if isinstance(op, Enqueue) else 1


def _copies(new: NewSend) -> int:
    return len(new.to_agents) if isinstance(new.to_agents, list) else 1


def _some(*lists: list[str]) -> None:
    if not any(lists):
        raise InvalidRequest("name at least one message, by `receipts` or `msg_ids`")


def _settled(re: int, settlement: Settlement) -> Reply:
    return Settled(re=re, settled=settlement.settled, failures=settlement.failures)
