"""Operations on mailboxes: enqueue, dequeue, ack, nack, extend, peek and purge."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from operator import itemgetter
from typing import TypeVar

from msgspec import UNSET, Raw

from gatepost.core.batch_commit import commit_until_none
from gatepost.core.gateway_core import Core, TransactionPlan
from gatepost.core.wait_registry import WaitRegistry, is_resolved
from gatepost.errors import InvalidRequest, PayloadTooLarge
from gatepost.events import check_digest
from gatepost.events.json_payload import check_json_text
from gatepost.events.reserved_names import require_sender_name
from gatepost.journal import Tx
from gatepost.mailbox import NewMail, Settlement, Waiter, browse
from gatepost.mailbox.enqueue import find_mailbox
from gatepost.mailbox.policy import check_delay
from gatepost.wire.operations import (
    Ack,
    AnyAnswer,
    Count,
    Dequeue,
    Enqueue,
    EnqueueAck,
    Enqueued,
    Extend,
    Failure,
    LeasedMessage,
    Messages,
    Nack,
    NewMessage,
    Peek,
    Purge,
    Settled,
    Summaries,
)

T = TypeVar("T")

Confirm = Callable[[], Awaitable[object]]
# (receiver, sender) → messages of that pair, each with its index in the operation.
PairRuns = dict[tuple[str, str], list[tuple[int, NewMail]]]


class MailboxOperations:
    """`plan_*` returns the one transaction of an operation; `perform_*` takes several, or waits."""

    def __init__(self, core: Core, waits: WaitRegistry) -> None:
        self._core = core
        self._waits = waits
        self._max_inline_bytes = core.settings.limits.max_payload_inline
        self._batch_size = core.settings.journal.sweep_batch

    def plan_enqueue(self, op: Enqueue) -> TransactionPlan:
        """Group messages by pair, and answer them in the order they came."""
        runs: PairRuns = {}
        for index, new in enumerate(op.messages):
            mail = self._build_mail(new)
            runs.setdefault((new.to, require_sender_name(new.from_)), []).append((index, mail))
        return partial(self._enqueue_by_pair, op.id, runs)

    def _enqueue_by_pair(self, re: int, runs: PairRuns, tx: Tx) -> AnyAnswer:
        answers: dict[int, EnqueueAck] = {}
        for (to, sender), run in self._replace_aliases(tx, runs).items():
            self._core.admission.require_capacity(tx, to)
            acks = self._core.dispatcher.enqueue(tx, to, sender, [mail for _, mail in run])
            answers.update(zip((index for index, _ in run), acks, strict=True))
        return Enqueued(re=re, results=[answers[index] for index in sorted(answers)])

    def _replace_aliases(self, tx: Tx, runs: PairRuns) -> PairRuns:
        """Resolve aliases; messages for an agent and for its aliases keep their order."""
        aliases = self._core.aliases
        if not aliases.has_any(tx):
            return runs
        found: PairRuns = {}
        for (to, sender), run in runs.items():
            found.setdefault((aliases.resolve_name(tx, to), sender), []).extend(run)
        return {pair: sorted(run, key=itemgetter(0)) for pair, run in found.items()}

    def _build_mail(self, new: NewMessage) -> NewMail:
        payload = bytes(new.payload)
        self._check_inline_payload(payload)
        mail = NewMail(new.msg_id, payload)
        if new.created_at is not UNSET:
            mail.created_at = new.created_at * 1000
        if new.ttl_secs is not UNSET:
            mail.ttl = int(new.ttl_secs * 1000)
        if new.order is not UNSET:
            mail.ordered = new.order == "fifo"
        if new.max_retries is not UNSET:
            mail.max_retries = new.max_retries
        if new.not_before is not UNSET:
            mail.not_before = int(new.not_before * 1000)
            check_delay(self._core.clock.now(), mail.not_before, mail.ttl)
        return mail

    def _check_inline_payload(self, payload: bytes) -> None:
        if len(payload) > self._max_inline_bytes:
            raise PayloadTooLarge(
                f"a payload may have {self._max_inline_bytes} bytes here, this has {len(payload)};"
                " `send` stores a larger one as a blob, and anything may name an uploaded blob"
            )
        check_json_text(payload)

    def plan_ack(self, op: Ack) -> TransactionPlan | None:
        """The transaction of an ack, or None if a reply has to be stored as a blob first."""
        _require_messages(op.receipts, op.msg_ids)
        _check_replies(op)
        if any(self._is_large(reply) for reply in op.replies.values()):
            return None
        return self._build_ack_plan(op)

    async def perform_ack(self, op: Ack) -> AnyAnswer:
        """Store replies too large to travel inline as blobs, then end the turns."""
        large = {handle for handle, reply in op.replies.items() if self._is_large(reply)}
        for handle in large:
            blob = await self._core.keep_payload([bytes(op.replies[handle])])
            op.reply_refs[handle] = blob.digest
        op.replies = {handle: op.replies[handle] for handle in op.replies.keys() - large}
        return await self._core.commit(self._build_ack_plan(op))

    def _is_large(self, reply: Raw) -> bool:
        return memoryview(reply).nbytes > self._max_inline_bytes

    def _build_ack_plan(self, op: Ack) -> TransactionPlan:
        def end_turns(tx: Tx) -> AnyAnswer:
            settlement = self._core.coordinator.ack(
                tx, op.mailbox, op.receipts, op.msg_ids, op.replies, op.reply_refs
            )
            return _settled_reply(op.id, settlement)

        return end_turns

    def plan_nack(self, op: Nack) -> TransactionPlan:
        _require_messages(op.receipts, op.msg_ids)
        nack = self._core.coordinator.nack
        return lambda tx: _settled_reply(
            op.id, nack(tx, op.mailbox, op.receipts, op.msg_ids, op.reason, retry=op.retry)
        )

    def plan_extend(self, op: Extend) -> TransactionPlan:
        def extend_leases(tx: Tx) -> AnyAnswer:
            stale = self._core.dispatcher.extend(tx, op.mailbox, op.receipts)
            failures = [Failure("stale_receipt", "the lease ran out", text) for text in stale]
            return Settled(re=op.id, settled=len(op.receipts) - len(stale), failures=failures)

        return extend_leases

    async def perform_dequeue(self, op: Dequeue, confirm: Confirm | None = None) -> AnyAnswer:
        """Lease mail; release it if the client hangs up before the reply.

        It is also released if `confirm` raises an error: the caller lost its right meanwhile.
        """
        consumer = op.consumer or f"poll:{self._core.clock.random(8).hex()}"
        poll = DequeuePoll(self._core, op, consumer)
        try:
            messages = await (poll.wait_for_mail(self._waits) if op.wait_secs else poll.take_now())
            if confirm is not None:
                await confirm()
        except BaseException:
            poll.give_back()
            raise
        return Messages(re=op.id, messages=messages)

    async def perform_peek(self, op: Peek) -> AnyAnswer:
        found = await query_mailbox(
            self._core, op.mailbox, lambda tx, id: browse.peek_mailbox(tx, id, op.limit, op.after)
        )
        return Summaries(re=op.id, messages=found)

    async def perform_purge(self, op: Purge) -> AnyAnswer:
        return Count(re=op.id, count=await self.purge(op.mailbox, "operator"))

    async def purge(self, mailbox: str, actor: str) -> int:
        """Turn all waiting mail into dead letters, one batch per transaction."""

        def purge_batch(tx: Tx) -> int:
            if not find_mailbox(tx, mailbox):
                return 0
            return self._core.dispatcher.purge(tx, mailbox, self._batch_size, actor)

        return await commit_until_none(self._core, purge_batch)


async def query_mailbox(core: Core, mailbox: str, query: Callable[[Tx, int], list[T]]) -> list[T]:
    """Run `query` with the id of the mailbox; an unknown mailbox is empty."""

    def query_if_known(tx: Tx) -> list[T]:
        id = find_mailbox(tx, mailbox)
        return query(tx, id) if id else []

    return await core.read(query_if_known)


def _check_replies(op: Ack) -> None:
    """Checks beyond decoding; InvalidRequest unless each turn has at most one valid reply."""
    for reply in op.replies.values():
        check_json_text(bytes(reply))
    for handle, digest in op.reply_refs.items():
        check_digest(digest)
        if handle in op.replies:
            raise InvalidRequest("a turn has a reply in `replies` or in `reply_refs`, not both")


def _require_messages(*lists: list[str]) -> None:
    if not any(lists):
        raise InvalidRequest("name at least one message, by `receipts` or `msg_ids`")


def _settled_reply(re: int, settlement: Settlement) -> AnyAnswer:
    return Settled(re=re, settled=settlement.settled, failures=settlement.failures)


class DequeuePoll:
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

    async def wait_for_mail(self, waits: WaitRegistry) -> list[LeasedMessage]:
        if again := await self._core.commit(self._join_waiters):
            return again
        if not await waits.wait_for(self._pushed, self._op.wait_secs):
            await self._core.commit(self._leave_waiters)
        return self._pushed.result() if is_resolved(self._pushed) else []

    def give_back(self) -> None:
        """Release mail that was leased, or that is about to be leased.

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
        self._core.admission.require_capacity(tx, self._op.mailbox)
        box = self._core.dispatcher.mailbox_ref(tx, self._op.mailbox)
        waiter = Waiter(box, self._consumer, self._op.limit, self._receive_mail, once=True)
        again = self._core.dispatcher.add_waiter(tx, waiter)
        self._waiter = waiter
        return again

    def _rejoin_as_holder(self, tx: Tx) -> None:
        """Become the holder of the leased mail again, because only a holder can release it."""
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
