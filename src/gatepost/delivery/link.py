"""A link between two gateways, without its socket: each reads the other's outbox.

Both sides do the same. All that is asked of the world goes through a Port, so that the same code
runs over WebSockets in a gateway and over a faulty network in a simulation.
"""

from collections.abc import Callable
from typing import Any, Protocol

from gatepost.delivery.coordinator import DeliveryCoordinator
from gatepost.delivery.feed import Feed, Port
from gatepost.delivery.frames import (
    AnyFrame,
    Events,
    Hello,
    Life,
    Position,
    Skip,
    Subscribe,
    Taken,
    weight,
)
from gatepost.delivery.lives import after as position_after
from gatepost.delivery.lives import life_of
from gatepost.delivery.local_node import LocalNode
from gatepost.delivery.receiver.cursors import read_positions
from gatepost.delivery.receiver.receiver import EventBatch
from gatepost.errors import LinkError
from gatepost.journal.outbox import Appended
from gatepost.journal.tx import Tx

_LIVES = "SELECT id, first_seq FROM incarnation ORDER BY first_seq"
_HEAD = """
SELECT max((SELECT coalesce(max(last_seq), 0) FROM head), max(first_seq) - 1) FROM incarnation
"""
_READER = "SELECT incarnation, sent_seq, cut_seq FROM recipient WHERE node_id = ?"
_IS_READER = """
INSERT INTO recipient (node_id, last_seq, incarnation, seen_at) VALUES (?1, 0, ?2, ?3)
ON CONFLICT (node_id) DO UPDATE SET incarnation = ?2, seen_at = ?3
"""
_MISSED = "UPDATE recipient SET cut_seq = max(cut_seq, ?) WHERE node_id = ?"
_ACKED = "UPDATE recipient SET acked_seq = max(acked_seq, ?), seen_at = ? WHERE node_id = ?"
# How long what a reader has taken may stay in memory only. It delays pruning, nothing else.
_NOTE_MS = 1_000


class Part(Protocol):
    """What runs over a link besides the two outboxes: relaying, fetching."""

    def greeted(self, hello: Hello) -> None:
        """The other side is there."""

    def receive(self, frame: AnyFrame) -> bool:
        """Whether the frame was for this part. Raises LinkError if it may not be said."""

    def appended(self, group: Appended) -> None:
        """Our outbox grew."""

    def closed(self) -> None:
        """The link is no more."""


class Link:
    """`peer` is who the other side has proved to be. `open` it, then feed it what comes."""

    def __init__(
        self, port: Port, node: LocalNode, coordinator: DeliveryCoordinator, peer: str, window: int
    ) -> None:
        self._port = port
        self._node = node
        self._coordinator = coordinator
        self.peer = peer
        self._window = window
        self.feed: Feed | None = None
        self._lives: list[Life] = []
        self.greeted = False
        self.reading = False
        self.may_read: Callable[[], bool] = lambda: True
        self._subscribed_to = False
        self.acked = 0
        self._noted_at = 0
        self.on_live: Callable[[], None] = lambda: None
        self.parts: list[Part] = []

    def open(self) -> None:
        self._port.commit(self._introduce, self._port.send)

    def receive(self, frame: AnyFrame) -> None:
        """What the other side said. Raises LinkError if it may not say that."""
        match frame:
            case Hello():
                self._hello(frame)
            case Subscribe():
                self._subscribed(frame)
            case Events(stream="own"):
                self._events(frame)
            case Taken(stream="own"):
                self._taken(frame)
            case Skip():
                self._skip(frame)
            case _:
                if not any(part.receive(frame) for part in self.parts):
                    raise LinkError(f"{self.peer} said something this link has no use for")

    def appended(self, group: Appended) -> None:
        """Our outbox grew."""
        if self.feed is not None:
            self.feed.appended(group)
        for part in self.parts:
            part.appended(group)

    def closed(self) -> None:
        """The connection is gone; nothing is said over this link any more."""
        if self.acked:
            self._note()
        for part in self.parts:
            part.closed()

    # -- reading theirs

    def _introduce(self, tx: Tx) -> Hello:
        self._lives = [(row[0], row[1]) for row in tx.rows(_LIVES)]
        ((head,),) = tx.rows(_HEAD)
        return Hello(self._node.id, self._lives, head, tx.now)

    def _hello(self, frame: Hello) -> None:
        if frame.node != self.peer or self.greeted:
            raise LinkError(f"{self.peer} introduces itself as {frame.node}")
        self.greeted = True
        if self.may_read():
            self.read()
        for part in self.parts:
            part.greeted(frame)

    def read(self) -> None:
        """Start to read their outbox over this link."""
        self.reading = True
        self._port.commit(lambda tx: read_positions(tx, [self.peer]), self._subscribe)

    def _subscribe(self, positions: list[Position]) -> None:
        self._port.send(Subscribe(self._node.incarnation, positions, self._window))

    def _events(self, frame: Events) -> None:
        if frame.source != self.peer:
            raise LinkError(f"{self.peer} sent the outbox of {frame.source} as its own")
        batch = EventBatch(
            frame.source, frame.life, frame.first_seq, frame.upto, frame.now, frame.events
        )
        # Not how far we are: another link or a relay may be ahead of this one.
        taken = Taken(frame.source, frame.life, frame.upto, weight(frame))
        self._port.commit(
            lambda tx: self._coordinator.take_batch(tx, batch), lambda _: self._port.send(taken)
        )

    def _skip(self, frame: Skip) -> None:
        if frame.source != self.peer:
            raise LinkError(f"{self.peer} speaks of the outbox of {frame.source}")
        self._port.commit(lambda tx: self._coordinator.skip_events(tx, frame), _nothing)

    # -- feeding them ours

    def _subscribed(self, frame: Subscribe) -> None:
        if self._subscribed_to or not self.greeted:
            raise LinkError(f"{self.peer} subscribes twice, or before it says who it is")
        self._subscribed_to = True
        self._port.commit(lambda tx: self._start(tx, frame), lambda found: self._feed(frame, found))

    def _start(self, tx: Tx, frame: Subscribe) -> tuple[int, Skip | None]:
        """Where to start; and what to tell a reader that cannot have everything."""
        after = position_after(self._lives, frame.positions, self._node.id)
        ((head,),) = tx.rows(_HEAD)
        if after > head:
            raise LinkError(
                f"{self.peer} has read up to {after} of an outbox that ends at {head}:"
                " was this journal put back by hand, instead of restored?"
            )
        known, sent, cut = tx.one(_READER, (self.peer,)) or (None, 0, 0)
        tx.run(_IS_READER, (self.peer, frame.life, tx.now))
        tx.run(_ACKED, (after, tx.now, self.peer))
        skip = None
        if known is not None and known != frame.life and sent > after:
            why = f"{self.peer} has another journal than it had"
            self._coordinator.give_up_sent(tx, self.peer, sent, why)
            # Should it not hear of that, it is told again.
            tx.run(_MISSED, (sent, self.peer))
            skip, after = "restored", max(sent, cut)
        elif cut > after:
            skip, after = "cut off", cut
        if skip is None:
            return after, None
        life = life_of(self._lives, after + 1)
        return after, Skip(self._node.id, life[0], life[1], after, skip)

    def _feed(self, frame: Subscribe, found: tuple[int, Skip | None]) -> None:
        after, skip = found
        if skip is not None:
            self._port.send(skip)
        window = min(frame.window, self._window)
        self.feed = Feed(self._port, self._node.id, self.peer, self._lives, after, window)
        self.on_live()
        self.feed.pump()

    def _taken(self, frame: Taken) -> None:
        if self.feed is None or frame.upto > self.feed.position:
            raise LinkError(f"{self.peer} has taken what it was not sent")
        self.acked = max(self.acked, frame.upto)
        self.feed.add_credit(frame.size)
        if self._port.now() >= self._noted_at + _NOTE_MS:
            self._note()

    def _note(self) -> None:
        self._noted_at, acked = self._port.now(), self.acked
        self._port.commit(lambda tx: tx.run(_ACKED, (acked, tx.now, self.peer)), _nothing)


def _nothing(value: Any) -> None:
    """There is nothing to do with it."""
