"""The interfaces between a link, its parts and their gateway."""

from collections.abc import Callable
from typing import Any, Protocol

from gatepost.delivery.frames import AnyFrame, HelloFrame, LinkFrame
from gatepost.errors import GatepostError
from gatepost.journal.outbox import OutboxGroup
from gatepost.journal.transaction import Tx

# Runs an operation in a transaction, then calls back with its value or its error.
JournalCommit = Callable[
    [Callable[[Tx], Any], Callable[[Any, GatepostError | None], None]],
    None,
]


class LinkPort(Protocol):
    """The connection, the journal and the clock of one link."""

    def send(self, frame: LinkFrame) -> None: ...

    def commit(
        self, operation: Callable[[Tx], Any], done: Callable[[Any], None], weight: int = 1
    ) -> None:
        """Run `operation` in a transaction and call `done` with its value; an error ends the link.

        Nothing is called back once the link has ended. `weight` is the cost of the operation in
        units of an ordinary one: a heavier operation shares its commit group with fewer others.
        """

    @property
    def is_congested(self) -> bool:
        """True while the send queue is over its limit; defer answers until it drains.

        Then `resume_requests` of the parts is called.
        """

    def now(self) -> int: ...

    def uptime(self) -> int:
        """Milliseconds of a clock that cannot be set; only differences are meaningful."""

    def end(self, error: GatepostError) -> None: ...


class LinkPart(Protocol):
    """One protocol that runs over a link beside the two outboxes: relaying, blobs, tracing."""

    def handle_hello(self, hello: HelloFrame) -> None:
        """The peer has introduced itself; from now on frames may be sent."""

    def receive_frame(self, frame: AnyFrame) -> bool:
        """Handle a frame of this part; False if it belongs to another.

        Raises LinkError if the peer may not send it.
        """

    def publish_group(self, group: OutboxGroup) -> None:
        """Called when a commit group was added to our outbox."""

    def close(self) -> None:
        """The link has ended."""


def ignore_result(value: object) -> None:
    """For operations whose result is not needed."""
