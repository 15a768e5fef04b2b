"""Implementation of every wire operation, the same for all transports."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any, TypeVar

from msgspec import UNSET, UnsetType

from gatepost.access import TokenBucket
from gatepost.delivery.messages import check, fingerprint, is_reached
from gatepost.errors import GatepostError, InternalError, InvalidRequest, PayloadTooLarge
from gatepost.gateway.core import Core
from gatepost.journal import Tx
from gatepost.mailbox import NewMail, Settlement, Waiter, browse, dead_letters
from gatepost.mailbox.dead_letters import DeadLetterFilter
from gatepost.mailbox.enqueue import check_payload, find_mailbox
from gatepost.wire import (
    Ack,
    AnyAnswer,
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
    LeasedMessage,
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
    Send,
    SendResults,
    Sent,
    Settled,
    Summaries,
)

log = logging.getLogger(__name__)

T = TypeVar("T")
TransactionPlan = Callable[[Tx], AnyAnswer]
# (receiver, sender) → messages of that pair, each with its index in the operation.
PairRuns = dict[tuple[str, str], list[tuple[int, NewMail]]]
WaitForFuture = Callable[["asyncio.Future[list[LeasedMessage]]", float], Awaitable[bool]]


class Operations:
    """Runs wire operations. `plan_transaction` makes one transaction of an operation, if it can."""

    def __init__(self, core: Core) -> None:
        self.core = core
        limits = core.settings.limits
        self.bucket = TokenBucket(limits.rate_per_sec, limits.burst, core.clock)
        self._max_inline_bytes = limits.max_payload_inline
        self._batch_size = core.settings.journal.sweep_batch
        self._max_poll_secs = limits.long_poll_max_secs
        self._waits: set[asyncio.Future[Any]] = set()
        self._is_stopping = False
        self._planners: dict[type[Op], Callable[[Any], TransactionPlan | None]] = {
            Enqueue: self._plan_enqueue,
            Send: self._plan_send,
            Ack: self._plan_ack,
            Nack: self._plan_nack,
            Extend: self._plan_extend,
            Register: self._plan_register,
        }
        self._performers: dict[type[Op], Callable[[Any], Awaitable[AnyAnswer]]] = {
            Dequeue: self._perform_dequeue,
            Send: self._perform_send,
            Await: self._perform_await,
            Peek: self._perform_peek,
            Purge: self._perform_purge,
            PeekDeadLetter: self._perform_peek_dead_letter,
            PurgeDeadLetter: self._perform_purge_dead_letter,
        }

    def plan_transaction(self, op: Op) -> TransactionPlan | None:
        """Return the transaction that does all of `op`, or None if it needs more than one."""
        make = self._planners.get(type(op))
        return None if make is None else make(op)

    async def perform(self, op: Op) -> Any:
        """Run `op` and return its reply; raise its error."""
        if (plan := self.plan_transaction(op)) is not None:
            return await self.core.commit(plan)
        return await self._performers[type(op)](op)

    async def answer(self, op: Op) -> AnyAnswer:
        """Run `op` and return its reply; an error becomes a Failed reply."""
        try:
            reply: AnyAnswer = await self.perform(op)
            return reply
        except GatepostError as error:
            return Failed(re=op.id, error=Failure.from_error(error))
        except Exception:
            log.exception("an operation failed unexpectedly")
            return Failed(
                re=op.id, error=Failure.from_error(InternalError("an internal error; see the log"))
            )

    def admit(self, op: Op) -> None:
        """Raise RateLimited if the clients exceed the rate limit."""
        self.bucket.take_tokens(operation_weight(op))

    # -- operations of one transaction

    def _plan_enqueue(self, op: Enqueue) -> TransactionPlan:
        """Group messages by pair, and answer them in the order they came."""
        runs: PairRuns = {}
        for index, new in enumerate(op.messages):
            mail = self._build_mail(new)
            runs.setdefault((new.to, new.from_), []).append((index, mail))
        return partial(self._enqueue_by_pair, op.id, runs)

    def _enqueue_by_pair(self, re: int, runs: PairRuns, tx: Tx) -> AnyAnswer:
        answers: dict[int, EnqueueAck] = {}
        for (to, sender), run in runs.items():
            acks = self.core.dispatcher.enqueue(tx, to, sender, [mail for _, mail in run])
            answers.update(zip((index for index, _ in run), acks, strict=True))
        return Enqueued(re=re, results=[answers[index] for index in sorted(answers)])

    def _build_mail(self, new: NewMessage) -> NewMail:
        payload = bytes(new.payload)
        self._check_inline_payload(payload)
        return NewMail(new.message_id(), payload, new.created_at_ms(), new.ttl_ms())

    def _check_inline_payload(self, payload: bytes) -> None:
        if len(payload) > self._max_inline_bytes:
            raise PayloadTooLarge(
                f"a payload may have {self._max_inline_bytes} bytes here, this has {len(payload)};"
                " `send` stores a larger one as a blob, and anything may name an uploaded blob"
            )
        check_payload(payload)

    def _plan_ack(self, op: Ack) -> TransactionPlan:
        _require_messages(op.receipts, op.msg_ids)
        for reply in op.replies.values():
            self._check_inline_payload(bytes(reply))
        ack = self.core.messages.ack
        return lambda tx: _settled_reply(
            op.id, ack(tx, op.mailbox, op.receipts, op.msg_ids, op.replies)
        )

    def _plan_nack(self, op: Nack) -> TransactionPlan:
        _require_messages(op.receipts, op.msg_ids)
        nack = self.core.messages.nack
        return lambda tx: _settled_reply(
            op.id, nack(tx, op.mailbox, op.receipts, op.msg_ids, op.reason)
        )

    def _plan_extend(self, op: Extend) -> TransactionPlan:
        def extend_leases(tx: Tx) -> AnyAnswer:
            stale = self.core.dispatcher.extend(tx, op.mailbox, op.receipts)
            failures = [Failure("stale_receipt", "the lease ran out", text) for text in stale]
            return Settled(re=op.id, settled=len(op.receipts) - len(stale), failures=failures)

        return extend_leases

    def _plan_register(self, op: Register) -> TransactionPlan:
        def register_agent(tx: Tx) -> AnyAnswer:
            # Registering again without `standby` keeps the present standby state.
            self.core.agents.register(tx, op.agent, standby=op.standby or None)
            if not self.core.agents.stands_by(tx, op.agent):
                self.core.messages.transfers.ask(tx, op.agent)
            return Done(re=op.id)

        return register_agent

    # -- operations that read, wait, or take several transactions

    async def _perform_dequeue(self, op: Dequeue) -> AnyAnswer:
        """Lease mail. If the client hangs up before the reply, the leases are given back."""
        consumer = op.consumer or f"poll:{self.core.clock.random(8).hex()}"
        poll = _DequeuePoll(self.core, op, consumer)
        try:
            messages = await (
                poll.wait_for_mail(self._wait_for_future) if op.wait_secs else poll.take_now()
            )
        except BaseException:
            poll.give_back()
            raise
        return Messages(re=op.id, messages=messages)

    async def _perform_send(self, op: Send) -> AnyAnswer:
        """Store payloads too large to travel inline as blobs, then send."""
        # Before payloads move into blobs: encryption gives a blob another digest each time.
        fingerprints = [fingerprint(new) for new in op.messages]
        for new in op.messages:
            if self._is_large(new):
                payload, new.payload = bytes(new.payload), UNSET  # type: ignore[arg-type]
                new.payload_ref = await self.store_blob([payload])
        return await self.core.commit(self._build_send_plan(op, fingerprints))

    def _plan_send(self, op: Send) -> TransactionPlan | None:
        for new in op.messages:
            check(new)
            if not isinstance(new.payload, UnsetType):
                check_payload(bytes(new.payload))
        if any(self._is_large(new) for new in op.messages):
            return None
        return self._build_send_plan(op, [fingerprint(new) for new in op.messages])

    def _is_large(self, new: NewSend) -> bool:
        if isinstance(new.payload, UnsetType):
            return False
        return memoryview(new.payload).nbytes > self._max_inline_bytes

    def _build_send_plan(self, op: Send, fingerprints: list[bytes]) -> TransactionPlan:
        if self.core.telemetry is not None:
            self.core.telemetry.begin_sends(op.messages)
        sends = list(zip(op.messages, fingerprints, strict=True))
        return lambda tx: SendResults(re=op.id, results=self._send_together(tx, sends))

    def _send_together(self, tx: Tx, sends: list[tuple[NewSend, bytes]]) -> list[Sent]:
        """Send all in one savepoint; if one fails, undo them and send each on its own."""
        mark = tx.begin_operation()
        try:
            sent = [self.core.messages.send(tx, *each) for each in sends]
        except GatepostError:
            tx.undo_operation(mark)
            return [self._send_one(tx, *each) for each in sends]
        tx.keep_operation()
        return sent

    async def store_blob(self, pieces: Iterable[bytes]) -> str:
        """Store a payload as a blob; return its digest."""
        blob, key = await self.core.store(pieces)
        insert = "INSERT OR IGNORE INTO blob (digest, key, size, created_at) VALUES (?, ?, ?, ?)"
        await self.core.commit(lambda tx: tx.execute(insert, (blob.digest, key, blob.size, tx.now)))
        return blob.digest

    def _send_one(self, tx: Tx, new: NewSend, fingerprint: bytes) -> Sent:
        mark = tx.begin_operation()
        try:
            sent = self.core.messages.send(tx, new, fingerprint)
        except GatepostError as error:
            tx.undo_operation(mark)
            if self.core.telemetry is not None:
                self.core.telemetry.fail_send(new, error.code)
            id = "" if isinstance(new.event_id, UnsetType) else new.event_id
            return Sent(id, error=Failure.from_error(error, id))
        tx.keep_operation()
        return sent

    async def _perform_await(self, op: Await) -> AnyAnswer:
        messages, id = self.core.messages, op.event_id
        if op.wait_secs:
            sent = await self._wait_until_reached(id, op.wait_secs, op.until)
        else:
            sent = await self.core.read(lambda tx: messages.status(tx, id))
        return Awaited(re=op.id, result=sent)

    async def wait_for_receipts(self, sent: Sent, until: str, secs: float) -> Sent:
        """Return the state of a message and its copies once it is reached, or time is up."""
        if sent.error is not None:
            return sent
        if not sent.copies:
            found = await self._wait_until_reached(sent.event_id, secs, until)
            found.to_agent = sent.to_agent
            return found
        each = (self.wait_for_receipts(copy, until, secs) for copy in sent.copies)
        sent.copies = list(await asyncio.gather(*each))
        return sent

    async def _wait_until_reached(self, id: str, secs: float, until: str) -> Sent:
        messages = self.core.messages
        reached: asyncio.Future[Sent] = asyncio.get_running_loop().create_future()

        def resolve_wait(sent: Sent, error: GatepostError | None) -> None:
            if not reached.done():
                reached.set_result(sent)

        try:
            sent = await self.core.commit(lambda tx: messages.wait(tx, id, resolve_wait, until))
            if is_reached(sent, until):
                reached.cancel()
            elif await self._wait_for_future(reached, secs):
                return reached.result()
        finally:
            if not reached.done():
                self.core.submit(lambda tx: messages.stop_waiting(tx, id, resolve_wait))
        return sent

    async def _wait_for_future(self, future: "asyncio.Future[T]", secs: float) -> bool:
        """Return whether `future` was resolved in time; stopping the gateway ends the wait."""
        if self._is_stopping:
            return False
        self._waits.add(future)
        try:
            await asyncio.wait([future], timeout=min(secs, self._max_poll_secs))
        finally:
            self._waits.discard(future)
        return _is_resolved(future)

    def end_waits(self) -> None:
        """End all waits because the gateway stops; each client gets the reply for a timeout."""
        self._is_stopping = True
        for future in self._waits:
            future.cancel()

    async def _perform_peek(self, op: Peek) -> AnyAnswer:
        found = await self._query_mailbox(
            op.mailbox, lambda tx, id: browse.peek_mailbox(tx, id, op.limit, op.after)
        )
        return Summaries(re=op.id, messages=found or [])

    async def _perform_peek_dead_letter(self, op: PeekDeadLetter) -> AnyAnswer:
        return DeadLetters(
            re=op.id,
            messages=await self.find_dead_letters(
                op.mailbox, DeadLetterFilter(), op.limit, op.after
            ),
        )

    async def find_dead_letters(
        self, mailbox: str, wanted: DeadLetterFilter, limit: int, after: str = ""
    ) -> list[DeadLetter]:
        find = partial(dead_letters.find_dead_letters, wanted=wanted, limit=limit, after=after)
        return await self._query_mailbox(mailbox, find) or []

    async def _query_mailbox(
        self, mailbox: str, query: Callable[[Tx, int], list[T]]
    ) -> list[T] | None:
        def query_if_known(tx: Tx) -> list[T] | None:
            id = find_mailbox(tx, mailbox)
            return query(tx, id) if id else None

        return await self.core.read(query_if_known)

    async def _perform_purge(self, op: Purge) -> AnyAnswer:
        return Count(re=op.id, count=await self.purge_mailbox(op.mailbox, "operator"))

    async def purge_mailbox(self, mailbox: str, actor: str) -> int:
        """Turn all waiting mail into dead letters, one batch per transaction."""

        def purge_batch(tx: Tx) -> int:
            if not find_mailbox(tx, mailbox):
                return 0
            return self.core.dispatcher.purge(tx, mailbox, self._batch_size, actor)

        return await self._commit_until_none(purge_batch)

    async def _perform_purge_dead_letter(self, op: PurgeDeadLetter) -> AnyAnswer:
        return Count(
            re=op.id,
            count=await self.discard_dead_letters(op.mailbox, DeadLetterFilter(), "operator"),
        )

    async def discard_dead_letters(self, mailbox: str, wanted: DeadLetterFilter, actor: str) -> int:
        def discard_batch(tx: Tx) -> int:
            id = find_mailbox(tx, mailbox)
            return (
                dead_letters.discard_dead_letters(tx, id, wanted, self._batch_size, actor)
                if id
                else 0
            )

        return await self._commit_until_none(discard_batch)

    async def _commit_until_none(self, batch: Callable[[Tx], int]) -> int:
        total = 0
        while count := await self.core.commit(batch):
            total += count
        return total

    async def replay_dead_letters(
        self, mailbox: str, wanted: DeadLetterFilter, limit: int, rate: float | None, actor: str
    ) -> list[EnqueueAck]:
        """Replay up to `limit` matching dead letters, at most `rate` per second if given."""
        acks: list[EnqueueAck] = []
        wanted.replayed = False if wanted.replayed is None else wanted.replayed
        while len(acks) < limit:
            size = min(
                limit - len(acks), self._batch_size if rate is None else max(1, int(rate / 10))
            )
            replay = partial(self.core.messages.replay, mailbox=mailbox, wanted=wanted)
            more = await self.core.commit(partial(replay, limit=size, actor=actor))
            acks += more
            if len(more) < size or any(ack.error for ack in more):
                break
            await asyncio.sleep(0 if rate is None else size / rate)
        return acks


class _DequeuePoll:
    """One dequeue, which may wait, and may be cancelled at any moment."""

    def __init__(self, core: Core, op: Dequeue, consumer: str) -> None:
        self._core = core
        self._op = op
        self._consumer = consumer
        self._pushed: asyncio.Future[list[LeasedMessage]] = (
            asyncio.get_running_loop().create_future()
        )
        self._waiter: Waiter | None = None

    async def take_now(self) -> list[LeasedMessage]:
        return await self._core.commit(self._dequeue_now)

    async def wait_for_mail(self, until: WaitForFuture) -> list[LeasedMessage]:
        if again := await self._core.commit(self._join_waiters):
            return again
        if not await until(self._pushed, self._op.wait_secs):
            await self._core.commit(self._leave_waiters)
        return self._pushed.result() if _is_resolved(self._pushed) else []

    def give_back(self) -> None:
        """Give back mail that was or still will be leased.

        A named consumer that does not wait keeps its lease: it can come back for it.
        """
        if not self._op.wait_secs and not self._op.consumer:
            self._core.submit(self._rejoin_as_holder)
        self._core.submit(self._give_up)

    def _dequeue_now(self, tx: Tx) -> list[LeasedMessage]:
        op = self._op
        if not find_mailbox(tx, op.mailbox):
            return []
        return self._core.dispatcher.dequeue(tx, op.mailbox, self._consumer, op.limit)

    def _join_waiters(self, tx: Tx) -> list[LeasedMessage]:
        box = self._core.dispatcher.mailbox_ref(tx, self._op.mailbox)
        waiter = Waiter(box, self._consumer, self._op.limit, self._receive_mail, once=True)
        again = self._core.dispatcher.add_waiter(tx, waiter)
        self._waiter = waiter
        return again

    def _rejoin_as_holder(self, tx: Tx) -> None:
        """Become the holder of the leased mail: only a holder can give it back."""
        if find_mailbox(tx, self._op.mailbox):
            self._join_waiters(tx)

    def _leave_waiters(self, tx: Tx) -> None:
        if self._waiter is not None:
            self._core.dispatcher.remove_waiter(tx, self._waiter)

    def _give_up(self, tx: Tx) -> None:
        if self._waiter is not None:
            self._core.dispatcher.release_waiter(tx, self._waiter)

    def _receive_mail(self, messages: list[LeasedMessage]) -> None:
        if self._pushed.cancelled():
            self.give_back()
        elif not self._pushed.done():
            self._pushed.set_result(messages)


def _is_resolved(future: "asyncio.Future[Any]") -> bool:
    return future.done() and not future.cancelled()


def operation_weight(op: Op) -> int:
    """Return the number of rate-limit tokens an operation costs."""
    if isinstance(op, Send):
        return sum(_copy_count(new) for new in op.messages)
    return len(op.messages) if isinstance(op, Enqueue) else 1


def _copy_count(new: NewSend) -> int:
    return len(new.to_agents) if isinstance(new.to_agents, list) else 1


def _require_messages(*lists: list[str]) -> None:
    if not any(lists):
        raise InvalidRequest("name at least one message, by `receipts` or `msg_ids`")


def _settled_reply(re: int, settlement: Settlement) -> AnyAnswer:
    return Settled(re=re, settled=settlement.settled, failures=settlement.failures)
