"""The emitter's end of a subscription: one outbox for one reader, as fast as the reader takes it.

A feed that has caught up is told of every commit group and sends the reader's events from memory.
A feed that is behind reads the journal in batches, as its credit allows. Before events go out, the
journal notes them as sent: if the reader comes back with another journal, that is how far the lost
one may have read.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

from msgspec import Struct

from gatepost.delivery.frames import (
    FRAME_BYTES,
    FRAME_EVENTS,
    CommitGroup,
    EventsFrame,
    Incarnation,
    frame_weight,
)
from gatepost.delivery.incarnations import incarnation_at, next_stretch
from gatepost.delivery.links.credit_window import CreditWindow
from gatepost.delivery.links.link_port import LinkPort
from gatepost.journal.outbox import EVERYBODY, OutboxGroup
from gatepost.journal.transaction import Tx

_SELECT_EVENTS_FOR = f"""
SELECT seq, body FROM outbox WHERE to_node IN (?, '{EVERYBODY}') AND seq > ? AND seq <= ?
ORDER BY seq LIMIT {FRAME_EVENTS}
"""
_SELECT_HEAD = "SELECT coalesce(max(last_seq), 0) FROM head"
_SAVE_SENT = """
INSERT INTO recipient (node_id, last_seq, sent_seq) VALUES (?1, 0, ?2)
ON CONFLICT (node_id) DO UPDATE SET sent_seq = max(sent_seq, ?2)
"""


class FeedBatch(Struct, frozen=True):
    """One frame's worth of events; `complete` if the outbox has no more after `upto`."""

    incarnation: Incarnation
    upto: int
    complete: bool
    events: list[bytes]
    groups: list[CommitGroup] = []
    everyone: list[int] = []


class CatchUpFeed(ABC):
    """Sends one outbox from memory while it can, and from the journal while it must.

    `position` is how far the reader was sent everything there is for it.
    """

    stream: str

    def __init__(
        self,
        port: LinkPort,
        source: str,
        incarnations: Sequence[Incarnation],
        position: int,
        window: int,
    ) -> None:
        self._port = port
        self._source = source
        self._incarnations = list(incarnations)
        self.position = position
        self._window = CreditWindow(window)
        self.caught_up = False
        self._stopped = False

    def stop(self) -> None:
        """Send nothing more, even if a batch is being read."""
        self._stopped = True

    def pump(self) -> None:
        """Read the next batch, unless nothing is missing or no credit is left."""
        if not self.caught_up and not self._stopped and self._window.begin_read():
            self._port.commit(self._read_batch, self._send_read_batch)

    def add_credit(self, size: int) -> None:
        self._window.refund(size)
        self.pump()

    def publish_group(self, group: OutboxGroup) -> None:
        """A commit group is on disk: send it now, or read it later if others have to go first."""
        if batches := self._batches_to_push(group):
            for batch in batches:
                self._send_batch(batch)
        elif self.position < group.head.last:
            self.caught_up = False
            self.pump()

    def _batches_to_push(self, group: OutboxGroup) -> list[FeedBatch]:
        follows = self.caught_up and self.position == group.head.first - 1
        if not follows or not self._window.has_credit:
            return []
        return self._batches_of(group, incarnation_at(self._incarnations, group.head.last))

    @abstractmethod
    def _batches_of(self, group: OutboxGroup, incarnation: Incarnation) -> list[FeedBatch]:
        """The frames that carry a commit group; none if it has to be read from the journal."""

    @abstractmethod
    def _read_batch(self, tx: Tx) -> FeedBatch:
        """The next frame's worth after `position`, noted as sent."""

    def _send_read_batch(self, batch: FeedBatch) -> None:
        self._window.end_read()
        self.caught_up = batch.complete
        self._send_batch(batch)
        self.pump()

    def _send_batch(self, batch: FeedBatch) -> None:
        self.position = max(self.position, batch.upto)
        if not batch.events or self._stopped:
            return
        frame = EventsFrame(
            self._source,
            *batch.incarnation,
            batch.upto,
            self._port.now(),
            batch.events,
            batch.groups,
            self.stream,
            batch.everyone,
        )
        self._window.spend(frame_weight(frame))
        self._port.send(frame)


class OutboxFeed(CatchUpFeed):
    """Our outbox for a subscriber: the events for `reader` and those for everybody."""

    stream = "own"

    def __init__(
        self,
        port: LinkPort,
        source: str,
        reader: str,
        incarnations: Sequence[Incarnation],
        position: int,
        window: int,
    ) -> None:
        super().__init__(port, source, incarnations, position, window)
        self._reader = reader

    def _batches_of(self, group: OutboxGroup, incarnation: Incarnation) -> list[FeedBatch]:
        last = group.head.last
        frames = list(split_frames(group.rows_for(self._reader), last)) or [(last, [])]
        return [FeedBatch(incarnation, upto, True, events) for upto, events in frames]

    def _read_batch(self, tx: Tx) -> FeedBatch:
        incarnation, end = next_stretch(self._incarnations, self.position)
        ((head,),) = tx.fetch_all(_SELECT_HEAD)
        rows = tx.fetch_all(_SELECT_EVENTS_FOR, (self._reader, self.position, end))
        limit = min(head, end) if len(rows) < FRAME_EVENTS else rows[-1][0]
        upto, events = next(split_frames(rows, limit), (limit, []))
        if events:
            tx.execute(_SAVE_SENT, (self._reader, upto))
        return FeedBatch(incarnation, upto, upto == head, events)


def split_frames(rows: Sequence[tuple[int, bytes]], upto: int) -> Iterator[tuple[int, list[bytes]]]:
    """(up to which seq, events) of each frame these events take; the last one reaches `upto`."""
    events: list[bytes] = []
    size = last = 0
    for seq, body in rows:
        if events and (size + len(body) > FRAME_BYTES or len(events) == FRAME_EVENTS):
            yield last, events
            events, size = [], 0
        events.append(body)
        size += len(body)
        last = seq
    if events:
        yield upto, events
