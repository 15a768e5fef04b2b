"""A link between two gateways, without its socket: each reads the other's outbox.

Both sides do the same. All that is asked of the world goes through a Port, so that the same code
runs over WebSockets in a gateway and over a faulty network in a simulation.
"""

from collections.abc import Callable
from typing import Any, Protocol

from gatepost.delivery.frames import (
    AnyFrame,
    EventsFrame,
    HelloFrame,
    Incarnation,
    Position,
    SkipFrame,
    SubscribeFrame,
    TakenFrame,
    frame_weight,
)
from gatepost.delivery.incarnations import incarnation_at
from gatepost.delivery.incarnations import position_after as position_after
from gatepost.delivery.messages import Messages
from gatepost.delivery.node import Node
from gatepost.delivery.outbox_feed import LinkPort, OutboxFeed
from gatepost.delivery.receiver import Batch, positions
from gatepost.errors import LinkError
from gatepost.journal.outbox import Appended
from gatepost.journal.tx import Tx

_SELECT_INCARNATIONS = "SELECT id, first_seq FROM incarnation ORDER BY first_seq"
_SELECT_HEAD = """
SELECT max((SELECT coalesce(max(last_seq), 0) FROM head), max(first_seq) - 1) FROM incarnation
"""
_SELECT_READER = "SELECT incarnation, sent_seq, cut_seq FROM recipient WHERE node_id = ?"
_SAVE_READER = """
INSERT INTO recipient (node_id, last_seq, incarnation, seen_at) VALUES (?1, 0, ?2, ?3)
ON CONFLICT (node_id) DO UPDATE SET incarnation = ?2, seen_at = ?3
"""
_SAVE_CUT = "UPDATE recipient SET cut_seq = max(cut_seq, ?) WHERE node_id = ?"
_SAVE_ACKED = "UPDATE recipient SET acked_seq = max(acked_seq, ?), seen_at = ? WHERE node_id = ?"
# How long what a reader has taken may stay in memory only. It delays pruning, nothing else.
_SAVE_ACKED_MS = 1_000


class LinkPart(Protocol):
    """What runs over a link besides the two outboxes: relaying, fetching."""

    def handle_hello(self, hello: HelloFrame) -> None:
        """The other side is there."""

    def receive_frame(self, frame: AnyFrame) -> bool:
        """Whether the frame was for this part. Raises LinkError if it may not be said."""

    def publish_group(self, group: Appended) -> None:
        """Our outbox grew."""

    def close(self) -> None:
        """The link is no more."""


class OutboxLink:
    """`peer` is who the other side has proved to be. `open` it, then feed it what comes."""

    def __init__(
        self, port: LinkPort, node: Node, messages: Messages, peer: str, window: int
    ) -> None:
        self._port = port
        self._node = node
        self._messages = messages
        self.peer = peer
        self._window = window
        self.feed: OutboxFeed | None = None
        self._incarnations: list[Incarnation] = []
        self.greeted = False
        self.reading = False
        self.may_read: Callable[[], bool] = lambda: True
        self._is_subscribed = False
        self.acked_seq = 0
        self._acked_saved_at = 0
        self.on_live: Callable[[], None] = lambda: None
        self.parts: list[LinkPart] = []

    def open(self) -> None:
        self._port.commit(self._make_hello, self._port.send)

    def receive_frame(self, frame: AnyFrame) -> None:
        """What the other side said. Raises LinkError if it may not say that."""
        match frame:
            case HelloFrame():
                self._handle_hello(frame)
            case SubscribeFrame():
                self._handle_subscribe(frame)
            case EventsFrame(stream="own"):
                self._take_events(frame)
            case TakenFrame(stream="own"):
                self._handle_taken(frame)
            case SkipFrame():
                self._take_skip(frame)
            case _:
                if not any(part.receive_frame(frame) for part in self.parts):
                    raise LinkError(f"{self.peer} said something this link has no use for")

    def publish_group(self, group: Appended) -> None:
        """Our outbox grew."""
        if self.feed is not None:
            self.feed.publish_group(group)
        for part in self.parts:
            part.publish_group(group)

    def close(self) -> None:
        """The connection is gone; nothing is said over this link any more."""
        if self.acked_seq:
            self._save_acked()
        for part in self.parts:
            part.close()

    # -- reading theirs

    def _make_hello(self, tx: Tx) -> HelloFrame:
        self._incarnations = [(row[0], row[1]) for row in tx.rows(_SELECT_INCARNATIONS)]
        ((head,),) = tx.rows(_SELECT_HEAD)
        return HelloFrame(self._node.id, self._incarnations, head, tx.now)

    def _handle_hello(self, frame: HelloFrame) -> None:
        if frame.node != self.peer or self.greeted:
            raise LinkError(f"{self.peer} introduces itself as {frame.node}")
        self.greeted = True
        if self.may_read():
            self.read_outbox()
        for part in self.parts:
            part.handle_hello(frame)

    def read_outbox(self) -> None:
        """Start to read their outbox over this link."""
        self.reading = True
        self._port.commit(lambda tx: positions(tx, [self.peer]), self._send_subscribe)

    def _send_subscribe(self, positions: list[Position]) -> None:
        self._port.send(SubscribeFrame(self._node.incarnation, positions, self._window))

    def _take_events(self, frame: EventsFrame) -> None:
        if frame.source != self.peer:
            raise LinkError(f"{self.peer} sent the outbox of {frame.source} as its own")
        batch = Batch(
            frame.source, frame.incarnation, frame.first_seq, frame.upto, frame.now, frame.events
        )
        # Not how far we are: another link or a relay may be ahead of this one.
        taken = TakenFrame(frame.source, frame.incarnation, frame.upto, frame_weight(frame))
        self._port.commit(
            lambda tx: self._messages.receiver.take(tx, batch), lambda _: self._port.send(taken)
        )

    def _take_skip(self, frame: SkipFrame) -> None:
        if frame.source != self.peer:
            raise LinkError(f"{self.peer} speaks of the outbox of {frame.source}")
        self._port.commit(lambda tx: self._messages.receiver.skip(tx, frame), _ignore_result)

    # -- feeding them ours

    def _handle_subscribe(self, frame: SubscribeFrame) -> None:
        if self._is_subscribed or not self.greeted:
            raise LinkError(f"{self.peer} subscribes twice, or before it says who it is")
        self._is_subscribed = True
        self._port.commit(
            lambda tx: self._find_start(tx, frame), lambda found: self._start_feed(frame, found)
        )

    def _find_start(self, tx: Tx, frame: SubscribeFrame) -> tuple[int, SkipFrame | None]:
        """Where to start; and what to tell a reader that cannot have everything."""
        after = position_after(self._incarnations, frame.positions, self._node.id)
        ((head,),) = tx.rows(_SELECT_HEAD)
        if after > head:
            raise LinkError(
                f"{self.peer} has read up to {after} of an outbox that ends at {head}:"
                " was this journal put back by hand, instead of restored?"
            )
        known, sent, cut = tx.one(_SELECT_READER, (self.peer,)) or (None, 0, 0)
        tx.run(_SAVE_READER, (self.peer, frame.incarnation, tx.now))
        tx.run(_SAVE_ACKED, (after, tx.now, self.peer))
        skip = None
        if known is not None and known != frame.incarnation and sent > after:
            why = f"{self.peer} has another journal than it had"
            self._messages.sender.give_up_at(tx, self.peer, sent, why)
            # Should it not hear of that, it is told again.
            tx.run(_SAVE_CUT, (sent, self.peer))
            skip, after = "restored", max(sent, cut)
        elif cut > after:
            skip, after = "cut off", cut
        if skip is None:
            return after, None
        life = incarnation_at(self._incarnations, after + 1)
        return after, SkipFrame(self._node.id, life[0], life[1], after, skip)

    def _start_feed(self, frame: SubscribeFrame, found: tuple[int, SkipFrame | None]) -> None:
        after, skip = found
        if skip is not None:
            self._port.send(skip)
        window = min(frame.window, self._window)
        self.feed = OutboxFeed(
            self._port, self._node.id, self.peer, self._incarnations, after, window
        )
        self.on_live()
        self.feed.pump()

    def _handle_taken(self, frame: TakenFrame) -> None:
        if self.feed is None or frame.upto > self.feed.position:
            raise LinkError(f"{self.peer} has taken what it was not sent")
        self.acked_seq = max(self.acked_seq, frame.upto)
        self.feed.add_credit(frame.size)
        if self._port.now() >= self._acked_saved_at + _SAVE_ACKED_MS:
            self._save_acked()

    def _save_acked(self) -> None:
        self._acked_saved_at, acked = self._port.now(), self.acked_seq
        self._port.commit(
            lambda tx: tx.run(_SAVE_ACKED, (acked, tx.now, self.peer)), _ignore_result
        )


def _ignore_result(value: Any) -> None:
    """There is nothing to do with it."""
