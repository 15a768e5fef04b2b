"""One dequeue of a client that may wait for mail, and may hang up at any moment."""

import asyncio

from gatepost.gateway.api.wait_registry import WaitRegistry, is_resolved
from gatepost.gateway.core import Core
from gatepost.journal import Tx
from gatepost.mailbox import Waiter
from gatepost.mailbox.enqueue import find_mailbox
from gatepost.wire import Dequeue, LeasedMessage


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
        self._core.admission.require_capacity(tx, self._op.mailbox)
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
