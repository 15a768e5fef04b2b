"""One mailbox subscription, kept across connections."""

from collections.abc import Callable

from gatepost.client._operations import PendingOperation
from gatepost.wire import LeasedMessage, Subscribe, Unsubscribe


class ClientSubscription:
    """`subscribing` and `unsubscribing` are unanswered operations of the current connection."""

    def __init__(
        self,
        mailbox: str,
        credit: int,
        consumer: str,
        deliver: Callable[[list[LeasedMessage]], None],
        resumed: Callable[[], None] | None,
    ) -> None:
        self.mailbox = mailbox
        self.credit = credit
        self.consumer = consumer
        self.deliver = deliver
        self.resumed = resumed
        self.subscribing: PendingOperation | None = None
        self.unsubscribing: PendingOperation | None = None

    def subscribe_op(self) -> Subscribe:
        return Subscribe(mailbox=self.mailbox, credit=self.credit, consumer=self.consumer)

    def unsubscribe_op(self) -> Unsubscribe:
        return Unsubscribe(mailbox=self.mailbox)

    def pending_operations(self) -> list[PendingOperation]:
        return [each for each in (self.subscribing, self.unsubscribing) if each is not None]
