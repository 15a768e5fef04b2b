"""A link between two gateways, without its socket: each side reads the other's outbox.

Both sides run the same code. The link reaches its connection, journal and clock through a
LinkPort, so that it runs over WebSockets in a gateway and over a faulty network in a simulation.
"""

from collections.abc import Callable, Sequence

from gatepost.delivery.accept import EventBatch
from gatepost.delivery.coordinator import DeliveryCoordinator
from gatepost.delivery.frames import (
    AnyFrame,
    EventsFrame,
    HelloFrame,
    Incarnation,
    SkipFrame,
    SubscribeFrame,
    TakenFrame,
    frame_weight,
    frame_work,
)
from gatepost.delivery.inbox.cursors import read_positions
from gatepost.delivery.inbox.resuming import is_in_doubt
from gatepost.delivery.incarnations import incarnation_at, position_after
from gatepost.delivery.local_node import LocalNode
from gatepost.errors import LinkError
from gatepost.journal import outbox_reads, recipients
from gatepost.journal.incarnations import load_incarnations
from gatepost.journal.outbox import OutboxGroup
from gatepost.journal.transaction import Tx
from gatepost.links.link_delay import LinkDelay
from gatepost.links.link_port import LinkPart, LinkPort, ignore_result
from gatepost.links.outbox_feed import ArchivedOutbox, OutboxFeed

# How long a reader's progress may stay in memory only. Losing it only delays pruning.
_SAVE_ACKED_MS = 1_000


class OutboxLink:
    """Call `open`, then pass it every frame. `peer` is the node id that the other side has proved.

    `can_read` says whether this link should read the peer's outbox; only one link to a peer does.
    `on_feed` is called when the peer starts to read ours. `archive` has the events that have left
    the journal.
    """

    def __init__(
        self,
        port: LinkPort,
        node: LocalNode,
        coordinator: DeliveryCoordinator,
        peer: str,
        window: int,
        parts: Sequence[LinkPart] = (),
        can_read: Callable[[], bool] = lambda: True,
        on_feed: Callable[[], None] = lambda: None,
        archive: ArchivedOutbox | None = None,
    ) -> None:
        self._port = port
        self._node = node
        self._coordinator = coordinator
        self.peer = peer
        self._window = window
        self.parts = list(parts)
        self._can_read = can_read
        self._on_feed = on_feed
        self._archive = archive
        self.feed: OutboxFeed | None = None
        self._incarnations: list[Incarnation] = []
        self.greeted = False
        self.reading = False
        self._is_subscribed = False
        self.acked_seq = 0
        self._acked_saved_at = self._acked_saved = 0
        self._delay = LinkDelay()

    def open(self) -> None:
        self._port.commit(self._make_hello, self._port.send)

    def receive_frame(self, frame: AnyFrame) -> None:
        """Handle one frame of the peer. Raises LinkError if the peer may not send it."""
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

    def publish_group(self, group: OutboxGroup) -> None:
        """Called when a commit group was added to our outbox."""
        if self.feed is not None:
            self.feed.publish_group(group)
        for part in self.parts:
            part.publish_group(group)

    def close(self) -> None:
        """The connection is closed; send no further frame."""
        if self.acked_seq:
            self._save_acked()
        if self.feed is not None:
            self.feed.stop()
        for part in self.parts:
            part.close()

    # -- reading theirs

    def _make_hello(self, tx: Tx) -> HelloFrame:
        self._incarnations = load_incarnations(tx)
        head = outbox_reads.last_known_seq(tx)
        return HelloFrame(self._node.id, self._incarnations, head, tx.now)

    def _handle_hello(self, frame: HelloFrame) -> None:
        if frame.node != self.peer or self.greeted:
            raise LinkError(f"{self.peer} introduces itself as {frame.node}")
        self.greeted = True
        self._delay.emitter_time(frame.now, self._port.uptime())
        if self._can_read():
            self.read_outbox()
        for part in self.parts:
            part.handle_hello(frame)

    def read_outbox(self) -> None:
        """Start to read the peer's outbox over this link."""
        self.reading = True
        self._port.commit(self._make_subscribe, self._port.send)

    def _make_subscribe(self, tx: Tx) -> SubscribeFrame:
        positions, restored = read_positions(tx, [self.peer]), is_in_doubt(tx, self.peer)
        return SubscribeFrame(self._node.incarnation, positions, self._window, restored)

    def _take_events(self, frame: EventsFrame) -> None:
        if frame.source != self.peer:
            raise LinkError(f"{self.peer} sent the outbox of {frame.source} as its own")
        batch = EventBatch(
            frame.source,
            frame.incarnation,
            frame.first_seq,
            frame.upto,
            self._delay.emitter_time(frame.now, self._port.uptime()),
            frame.events,
            frame.confirmed,
        )
        # Credit is given for this frame, not for our cursor: another link may be ahead of this one.
        taken = TakenFrame(frame.source, frame.incarnation, frame.upto, frame_weight(frame))
        self._port.commit(
            lambda tx: self._coordinator.take_batch(tx, batch),
            lambda _: self._port.send(taken),
            frame_work(frame),
        )

    def _take_skip(self, frame: SkipFrame) -> None:
        if frame.source != self.peer:
            raise LinkError(f"{self.peer} speaks of the outbox of {frame.source}")
        self._port.commit(lambda tx: self._coordinator.skip_events(tx, frame), ignore_result)

    # -- feeding them ours

    def _handle_subscribe(self, frame: SubscribeFrame) -> None:
        if self._is_subscribed or not self.greeted:
            raise LinkError(f"{self.peer} subscribes twice, or before it says who it is")
        self._is_subscribed = True
        self._port.commit(
            lambda tx: self._find_start(tx, frame),
            lambda found: self._start_feed(frame, *found),
        )

    def _find_start(self, tx: Tx, frame: SubscribeFrame) -> tuple[int, int, SkipFrame | None]:
        """The start of the feed, the end of the pruned part, and a skip for a new journal.

        A lost journal of the reader may have processed the events through `skip_seq`, so its new
        one does not get them.
        """
        after = position_after(self._incarnations, frame.positions, self._node.id)
        head = outbox_reads.last_known_seq(tx)
        if after > head:
            raise LinkError(
                f"{self.peer} has read up to {after} of an outbox that ends at {head}:"
                " was this journal put back by hand, instead of restored?"
            )
        self._coordinator.greet_reader(
            tx, self.peer, frame.incarnation, after, restored=frame.restored
        )
        recipients.note_taken(tx, self.peer, after)
        cut, through = recipients.cut_of(tx, self.peer)
        if through <= after:
            return after, cut, None
        incarnation, first_seq = incarnation_at(self._incarnations, through + 1)
        return through, cut, SkipFrame(self._node.id, incarnation, first_seq, through, "restored")

    def _start_feed(
        self, frame: SubscribeFrame, after: int, cut: int, skip: SkipFrame | None
    ) -> None:
        if skip is not None:
            self._port.send(skip)
        window = min(frame.window, self._window)
        self.feed = OutboxFeed(
            self._port,
            self._node.id,
            self.peer,
            self._incarnations,
            after,
            window,
            cut,
            self._archive,
        )
        self._on_feed()
        self.feed.pump()

    def _handle_taken(self, frame: TakenFrame) -> None:
        if self.feed is None or frame.upto > self.feed.position:
            raise LinkError(f"{self.peer} has taken what it was not sent")
        self.acked_seq = max(self.acked_seq, frame.upto)
        self.feed.add_credit(frame.size)
        self.save_progress()

    def save_progress(self) -> None:
        """Save the peer's position in our outbox, once a second at most."""
        # The clock may have gone back: then the time since the last save is negative.
        is_due = not 0 <= self._port.now() - self._acked_saved_at < _SAVE_ACKED_MS
        if is_due and self.acked_seq > self._acked_saved:
            self._save_acked()

    def _save_acked(self) -> None:
        self._acked_saved_at, self._acked_saved = self._port.now(), self.acked_seq
        acked = self.acked_seq
        self._port.commit(lambda tx: recipients.note_taken(tx, self.peer, acked), ignore_result)
