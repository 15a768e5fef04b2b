"""One mailbox subscription, kept across connections."""

from collections.abc import Callable

from gatepost.client._batches import Pending
from gatepost.wire import LeasedMessage, Subscribe, Unsubscribe


class Listening:
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
        self.joining: Pending | None = None
        self.leaving: Pending | None = None

    def subscribe(self) -> Subscribe:
        return Subscribe(mailbox=self.mailbox, credit=self.credit, consumer=self.consumer)

    def unsubscribe(self) -> Unsubscribe:
        return Unsubscribe(mailbox=self.mailbox)

    def pending(self) -> list[Pending]:
        return [each for each in (self.joining, self.leaving) if each is not None]
