"""Subscriptions of one channel: mail of these mailboxes is pushed to its client."""

from collections.abc import Callable
from functools import partial

from msgspec import Struct

from gatepost.core.gateway_core import Core
from gatepost.errors import GatepostError, InvalidRequest
from gatepost.journal import Tx
from gatepost.mailbox import Waiter
from gatepost.wire.operations import AnyAnswer, Done, LeasedMessage, Subscribe, Unsubscribe

PushMail = Callable[[str, list[LeasedMessage]], None]
FinishOperation = Callable[[int, AnyAnswer, GatepostError | None], None]


class Subscription(Struct, eq=False):
    """A subscription. The subscribing transaction sets `waiter`, before any later transaction."""

    waiter: Waiter | None = None


class MailSubscriptions:
    """Calls `push` with mail, and `finish` with the reply to each operation."""

    def __init__(self, core: Core, push: PushMail, finish: FinishOperation) -> None:
        self._core = core
        self._push = push
        self._finish = finish
        self._by_mailbox: dict[str, Subscription] = {}

    def subscribe(self, op: Subscribe) -> None:
        if op.mailbox in self._by_mailbox:
            raise InvalidRequest(f"this connection already listens to {op.mailbox}")
        consumer = op.consumer or f"session:{self._core.clock.random(8).hex()}"
        push = partial(self._push, op.mailbox)
        subscription = Subscription()

        def join_waiters(tx: Tx) -> list[LeasedMessage]:
            self._core.admission.require_capacity(tx, op.mailbox)
            box = self._core.dispatcher.mailbox_ref(tx, op.mailbox)
            waiter = Waiter(box, consumer, op.credit, push)
            again = self._core.dispatcher.add_waiter(tx, waiter)
            subscription.waiter = waiter
            return again

        self._core.writer.submit(join_waiters, partial(self._finish_subscribe, op))
        self._by_mailbox[op.mailbox] = subscription

    def unsubscribe(self, op: Unsubscribe) -> None:
        subscription = self._by_mailbox.get(op.mailbox)
        if subscription is None:
            raise InvalidRequest(f"this connection does not listen to {op.mailbox}")

        def give_up(tx: Tx) -> AnyAnswer:
            if subscription.waiter is not None:
                self._core.dispatcher.release_waiter(tx, subscription.waiter)
            return Done(re=op.id)

        self._core.writer.submit(give_up, partial(self._finish, op.id))
        del self._by_mailbox[op.mailbox]

    def close(self) -> None:
        """End all subscriptions. Leases stay until they time out."""
        for subscription in self._by_mailbox.values():
            if subscription.waiter is not None:
                subscription.waiter.gone = True
            self._core.submit(partial(self._leave_waiters, subscription))
        self._by_mailbox.clear()

    def _finish_subscribe(
        self, op: Subscribe, again: list[LeasedMessage], error: GatepostError | None
    ) -> None:
        if error is not None:
            self._by_mailbox.pop(op.mailbox, None)
        self._finish(op.id, Done(re=op.id), error)
        if again:
            self._push(op.mailbox, again)

    def _leave_waiters(self, subscription: Subscription, tx: Tx) -> None:
        if subscription.waiter is not None:
            self._core.dispatcher.remove_waiter(tx, subscription.waiter)
