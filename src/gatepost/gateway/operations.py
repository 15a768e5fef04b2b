"""What each operation on the wire does, whichever door it came through."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from itertools import groupby
from typing import Any, TypeVar

from msgspec import UNSET, UnsetType

from gatepost.delivery.messages import check
from gatepost.errors import GatepostError, InvalidRequest, PayloadTooLarge
from gatepost.gateway.core import Core
from gatepost.journal import Tx
from gatepost.mailbox import Mail, Settlement, Waiter, browse, deadletters
from gatepost.mailbox.deadletters import Filter
from gatepost.mailbox.enqueue import check_payload
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

T = TypeVar("T")
Plan = Callable[[Tx], Reply]


class Operations:
    """`plan` turns an operation into one transaction; `perform` runs any of them to its answer."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self._inline = core.settings.limits.max_payload_inline
        self._batch = core.settings.journal.sweep_batch
        self._longest_poll = core.settings.limits.long_poll_max_secs
        self._plans: dict[type[Op], Callable[[Any], Plan]] = {
            Enqueue: self._enqueue,
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

    # -- one transaction each

    def _enqueue(self, op: Enqueue) -> Plan:
        runs = [
            (to, sender, [self._mail(m) for m in run])
            for (to, sender), run in groupby(op.messages, key=lambda m: (m.to, m.from_))
        ]
        return partial(self._enqueue_runs, op.id, runs)

    def _enqueue_runs(self, re: int, runs: list[tuple[str, str, list[Mail]]], tx: Tx) -> Reply:
        acks: list[EnqueueAck] = []
        for to, sender, mails in runs:
            acks += self.core.dispatcher.enqueue(tx, to, sender, mails)
        return Enqueued(re=re, results=acks)

    def _mail(self, new: NewMessage) -> Mail:
        payload = bytes(new.payload)
        if len(payload) > self._inline:
            raise PayloadTooLarge(
                f"a payload may have {self._inline} bytes here, this has {len(payload)};"
                " use `send`, which stores large payloads as blobs"
            )
        check_payload(payload)
        return Mail(new.id(), payload, new.created(), new.ttl())

    def _ack(self, op: Ack) -> Plan:
        _some(op.receipts, op.msg_ids)
        for reply in op.replies.values():
            check_payload(bytes(reply))
        ack = self.core.messages.ack
        return lambda tx: _settled(op.id, ack(tx, op.mailbox, op.receipts, op.msg_ids, op.replies))

    def _nack(self, op: Nack) -> Plan:
        _some(op.receipts, op.msg_ids)
        nack = self.core.messages.nack
        return lambda tx: _settled(op.id, nack(tx, op.mailbox, op.receipts, op.msg_ids, op.reason))

    def _extend(self, op: Extend) -> Plan:
        def extend(tx: Tx) -> Reply:
            stale = self.core.dispatcher.extend(tx, op.mailbox, op.receipts)
            failures = [Failure("stale_receipt", "the lease ran out", text) for text in stale]
            return Settled(re=op.id, settled=len(op.receipts) - len(stale), failures=failures)

        return extend

    def _register(self, op: Register) -> Plan:
        def register(tx: Tx) -> Reply:
            self.core.agents.register(tx, op.agent)
            return Done(re=op.id)

        return register

    # -- those that read, wait, or take several transactions

    async def _dequeue(self, op: Dequeue) -> Reply:
        if op.wait_secs:
            return Messages(re=op.id, messages=await self._long_poll(op))
        dequeue = self.core.dispatcher.dequeue
        messages = await self.core.commit(lambda tx: dequeue(tx, op.mailbox, op.consumer, op.limit))
        return Messages(re=op.id, messages=messages)

    async def _long_poll(self, op: Dequeue) -> list[Message]:
        """Wait for mail. Whoever stops waiting gives back what was leased for it meanwhile."""
        dispatcher, taken = self.core.dispatcher, asyncio.get_running_loop().create_future()

        def push(messages: list[Message]) -> None:
            if not taken.done():
                taken.set_result(messages)

        def wait(tx: Tx) -> tuple[Waiter, list[Message]]:
            consumer = op.consumer or f"poll:{self.core.clock.random(8).hex()}"
            box = dispatcher.box(tx, op.mailbox)
            waiter = Waiter(box, consumer, op.limit, push, once=True)
            return waiter, dispatcher.wait(tx, waiter)

        waiter, again = await self.core.commit(wait)
        if again:
            push(again)
        try:
            await asyncio.wait([taken], timeout=min(op.wait_secs, self._longest_poll))
            await self.core.commit(lambda tx: dispatcher.leave(tx, waiter))
        except BaseException:
            self.core.submit(lambda tx: dispatcher.give_up(tx, waiter))
            raise
        return taken.result() if taken.done() else []

    async def _send(self, op: Send) -> Reply:
        news = [await self._inlined(new) for new in op.messages]
        results = await self.core.commit(lambda tx: [self._send_one(tx, new) for new in news])
        return SendResults(re=op.id, results=results)

    async def _inlined(self, new: NewSend) -> NewSend:
        """The same message, with a payload too large to travel inline stored as a blob."""
        check(new)
        if isinstance(new.payload, UnsetType):
            return new
        payload = bytes(new.payload)
        check_payload(payload)
        if len(payload) <= self._inline:
            return new
        new.payload, new.payload_ref = UNSET, await self.upload([payload])
        return new

    async def upload(self, pieces: Iterable[bytes]) -> str:
        """Store a payload as a blob; returns its digest."""
        blob, key = await asyncio.to_thread(self.core.blobs.write, pieces)
        insert = "INSERT OR IGNORE INTO blob VALUES (?, ?, ?, ?)"
        await self.core.commit(lambda tx: tx.run(insert, (blob.digest, key, blob.size, tx.now)))
        return blob.digest

    def _send_one(self, tx: Tx, new: NewSend) -> Sent:
        mark = tx.mark()
        try:
            sent = self.core.messages.send(tx, new)
        except GatepostError as error:
            tx.undo(mark)
            id = "" if isinstance(new.event_id, UnsetType) else new.event_id
            return Sent(id, error=Failure.of(error, id))
        tx.keep()
        return sent

    async def _await(self, op: Await) -> Reply:
        settled = asyncio.get_running_loop().create_future()

        def woken(sent: Sent, error: GatepostError | None) -> None:
            if not settled.done():
                settled.set_result(sent)

        messages, id = self.core.messages, op.event_id
        sent = await self.core.commit(lambda tx: messages.wait(tx, id, woken))
        if sent.processed_at is None and op.wait_secs:
            try:
                await asyncio.wait([settled], timeout=min(op.wait_secs, self._longest_poll))
            finally:
                self.core.submit(lambda tx: messages.stop_waiting(tx, sent.event_id, woken))
        return Awaited(re=op.id, result=settled.result() if settled.done() else sent)

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
            row = tx.one("SELECT id FROM mailbox WHERE name = ?", (mailbox,))
            return None if row is None else query(tx, row[0])

        return await self.core.read(look)

    async def _purge(self, op: Purge) -> Reply:
        return Count(re=op.id, count=await self.purge(op.mailbox, "operator"))

    async def purge(self, mailbox: str, actor: str) -> int:
        """Turn all waiting mail into dead letters, a batch a transaction."""

        def batch(tx: Tx) -> int:
            box = self.core.dispatcher.box(tx, mailbox)
            count, closed = deadletters.purge(tx, box.id, self._batch, actor)
            self.core.messages.close(tx, closed)
            return count

        return await self._until_none(batch)

    async def _purge_dead_letter(self, op: PurgeDeadLetter) -> Reply:
        return Count(re=op.id, count=await self.discard(op.mailbox, Filter(), "operator"))

    async def discard(self, mailbox: str, wanted: Filter, actor: str) -> int:
        def batch(tx: Tx) -> int:
            box = self.core.dispatcher.box(tx, mailbox)
            return deadletters.discard(tx, box.id, wanted, self._batch, actor)

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
            replay = partial(self.core.messages.replay, mailbox=mailbox, wanted=wanted)
            more = await self.core.commit(partial(replay, limit=size, actor=actor))
            acks += more
            if not more or any(ack.error for ack in more):
                break
            await asyncio.sleep(0 if rate is None else size / rate)
        return acks


def _some(*lists: list[str]) -> None:
    if not any(lists):
        raise InvalidRequest("name at least one message, by `receipts` or `msg_ids`")


def _settled(re: int, settlement: Settlement) -> Reply:
    return Settled(re=re, settled=settlement.settled, failures=settlement.failures)
