"""The emitter's side of a subscription: sends one outbox to one reader, at the reader's pace.

A feed that has caught up is told of every commit group and sends the reader's events from memory. A
feed that is behind reads the journal in batches, as its credit allows. A reader that was cut off,
or the relay it reads through, may need events that have left the journal: those are read from the
archive, and skipped only if they are not there. Before events go out, the journal notes them as
sent: if the reader comes back with a new journal, the lost one may have read them.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from msgspec import Struct

from gatepost.delivery.frames import (
    FRAME_BYTES,
    FRAME_EVENTS,
    CommitGroup,
    EventsFrame,
    Incarnation,
    SkipFrame,
    frame_weight,
)
from gatepost.delivery.incarnations import incarnation_at, next_stretch
from gatepost.errors import GatepostError
from gatepost.events import EventKind, Signal, decode_event, decode_payload
from gatepost.journal import outbox_reads, recipients
from gatepost.journal.outbox import OutboxGroup
from gatepost.journal.transaction import Tx
from gatepost.links.credit_window import CreditWindow
from gatepost.links.link_port import LinkPort

_FRAMES_OF_WINDOW = 16
# Further ones are not named; they count once the feed reaches them.
MAX_CONFIRMED = 16 * FRAME_EVENTS


class FeedBatch(Struct, frozen=True):
    """One frame's worth of events; `complete` if the outbox has no more after `upto`."""

    incarnation: Incarnation
    upto: int
    complete: bool
    events: list[bytes]
    groups: list[CommitGroup] = []
    everyone: list[int] = []


class PrunedStretch(Struct, frozen=True):
    """A part of our outbox that has left the journal: the events of `reader` in (after, upto].

    Without a reader they are all events, in whole commit groups.
    """

    reader: str | None
    incarnation: str
    after: int
    upto: int


class ArchivedPage(Struct, frozen=True):
    """The (seq, event) of a stretch up to `upto`; `missing` if the archive does not have them."""

    upto: int
    rows: list[tuple[int, bytes]]
    missing: bool = False
    groups: list[CommitGroup] = []


PageRead = Callable[[ArchivedPage | None, GatepostError | None], None]


class ArchivedOutbox(Protocol):
    """The part of our outbox that is archived."""

    def read_page(self, wanted: PrunedStretch, done: PageRead) -> None:
        """Read the beginning of a stretch beside the gateway, and call back where links run."""


class CatchUpFeed(ABC):
    """Sends one outbox from memory if possible, else from the journal or archive.

    The reader was sent all of its events through `position`.
    """

    stream: str

    def __init__(
        self,
        port: LinkPort,
        source: str,
        incarnations: Sequence[Incarnation],
        position: int,
        window: int,
        archive: ArchivedOutbox | None = None,
    ) -> None:
        self._port = port
        self._source = source
        self._incarnations = list(incarnations)
        self.position = position
        self._window = CreditWindow(window)
        self._archive = archive
        # Batches read from the archive and not sent yet.
        self._archived: deque[FeedBatch] = deque()
        self.caught_up = False
        self._stopped = False

    def stop(self) -> None:
        """Send nothing more, even if a batch is being read."""
        self._stopped = True

    def pump(self) -> None:
        """Read the next batch, if one is missing and credit is left."""
        if not self.caught_up and not self._stopped and self._window.begin_read():
            self._port.commit(self._read_next, self._send_read_batch)

    def add_credit(self, size: int) -> None:
        self._window.refund(size)
        self.pump()

    def publish_group(self, group: OutboxGroup) -> None:
        """A commit group is on disk: send it now, or later if earlier events are not sent yet."""
        if batches := self._batches_to_push(group):
            for batch in batches:
                self._send_batch(batch)
        elif self.position < group.head.last:
            self.caught_up = False
            self.pump()

    def _take_confirmed(self) -> list[bytes]:
        """The confirmed offers to name in the next frame."""
        return []

    def _batches_to_push(self, group: OutboxGroup) -> list[FeedBatch]:
        follows = self.caught_up and self.position == group.head.first - 1
        if not follows or not self._window.has_credit:
            return []
        return self._batches_of(group, incarnation_at(self._incarnations, group.head.last))

    @abstractmethod
    def _batches_of(self, group: OutboxGroup, incarnation: Incarnation) -> list[FeedBatch]:
        """The frames for a commit group; none if it must be read from the journal."""

    @abstractmethod
    def _find_pruned(self, tx: Tx, incarnation: str, end: int) -> PrunedStretch | None:
        """The events from `position` up to `end` that have left the journal."""

    @abstractmethod
    def _read_batch(self, tx: Tx, incarnation: Incarnation, end: int) -> FeedBatch:
        """The next frame's worth of events between `position` and `end`, from the journal."""

    @abstractmethod
    def _note_sent(self, tx: Tx, batch: FeedBatch) -> None: ...

    @abstractmethod
    def _pass_over(self, upto: int) -> None:
        """Events up to `upto` are in neither journal nor archive."""

    def _read_next(self, tx: Tx) -> FeedBatch | PrunedStretch:
        """The next frame's worth after `position`, noted as sent; or a stretch to read first."""
        incarnation, end = next_stretch(self._incarnations, self.position)
        if self._archived:
            batch = self._archived[0]
        elif (pruned := self._find_pruned(tx, incarnation[0], end)) is not None:
            return pruned
        else:
            batch = self._read_batch(tx, incarnation, end)
        self._note_sent(tx, batch)
        return batch

    def _send_read_batch(self, batch: FeedBatch | PrunedStretch) -> None:
        if isinstance(batch, PrunedStretch):
            self._read_archive(batch)
            return
        if self._archived and self._archived[0] is batch:
            self._archived.popleft()
        self._window.end_read()
        self.caught_up = batch.complete
        self._send_batch(batch)
        self.pump()

    def _read_archive(self, stretch: PrunedStretch) -> None:
        if self._archive is None:
            self._use_page(ArchivedPage(stretch.upto, [], missing=True), None)
        else:
            self._archive.read_page(stretch, self._use_page)

    def _use_page(self, page: ArchivedPage | None, error: GatepostError | None) -> None:
        """Send the events from the archive, or continue without them."""
        self._window.end_read()
        if self._stopped:
            return
        if page is None:
            # The reader dials again, and the archive may be readable then.
            self._port.end(error or GatepostError("the archive gave no answer"))
            return
        if page.missing:
            self._pass_over(page.upto)
        self._archived.extend(self._split_page(page))
        if not self._archived:
            self.position = max(self.position, page.upto)
        self.pump()

    def _split_page(self, page: ArchivedPage) -> Iterator[FeedBatch]:
        incarnation, after = incarnation_at(self._incarnations, page.upto), 0
        for upto, events in split_frames(page.rows, page.upto):
            groups = [group for group in page.groups if after < group.last <= upto]
            yield FeedBatch(incarnation, upto, False, events, groups)
            after = upto

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
            self._take_confirmed(),
        )
        self._window.spend(frame_weight(frame))
        self._port.send(frame)


class OutboxFeed(CatchUpFeed):
    """Our outbox for a subscriber: the events for `reader` and those for all subscribers.

    Events up to `cut` may have left the journal while the reader was away.
    """

    stream = "own"

    def __init__(
        self,
        port: LinkPort,
        source: str,
        reader: str,
        incarnations: Sequence[Incarnation],
        position: int,
        window: int,
        cut: int = 0,
        archive: ArchivedOutbox | None = None,
    ) -> None:
        super().__init__(port, source, incarnations, position, window, archive)
        self._reader = reader
        self._cut = cut
        # Offers that were confirmed while the reader is still behind; their number is limited.
        self._confirmed: deque[bytes] = deque()

    def publish_group(self, group: OutboxGroup) -> None:
        super().publish_group(group)
        if self.position < group.head.last:
            free = MAX_CONFIRMED - len(self._confirmed)
            self._confirmed += confirmed_offers(group, self._reader)[:free]

    def _take_confirmed(self) -> list[bytes]:
        if self.caught_up:
            self._confirmed.clear()
        count = min(len(self._confirmed), FRAME_EVENTS)
        return [self._confirmed.popleft() for _ in range(count)]

    def _batches_of(self, group: OutboxGroup, incarnation: Incarnation) -> list[FeedBatch]:
        last, rows = group.head.last, group.rows_for(self._reader)
        if sum(len(body) for _, body in rows) > self._window.size:
            return []
        frames = list(split_frames(rows, last)) or [(last, [])]
        return [FeedBatch(incarnation, upto, True, events) for upto, events in frames]

    def _read_batch(self, tx: Tx, incarnation: Incarnation, end: int) -> FeedBatch:
        head = outbox_reads.last_seq(tx)
        rows = outbox_reads.events_for(tx, self._reader, self.position, end, FRAME_EVENTS)
        limit = min(head, end) if len(rows) < FRAME_EVENTS else rows[-1][0]
        # A window holds several frames, so that the reader can acknowledge before it has read them
        # all.
        size = min(FRAME_BYTES, self._window.size // _FRAMES_OF_WINDOW)
        upto, events = next(split_frames(rows, limit, size), (limit, []))
        return FeedBatch(incarnation, upto, upto == head, events)

    def _note_sent(self, tx: Tx, batch: FeedBatch) -> None:
        if batch.events:
            recipients.note_sent(tx, self._reader, batch.upto)

    def _find_pruned(self, tx: Tx, incarnation: str, end: int) -> PrunedStretch | None:
        """The events after `position` that have left the journal; beyond `cut` all are there."""
        if self.position >= self._cut:
            return None
        oldest = outbox_reads.oldest_seq(tx)
        upto = min(end, self._cut, self._cut if oldest is None else oldest - 1)
        if upto <= self.position:
            return None
        return PrunedStretch(self._reader, incarnation, self.position, upto)

    def _pass_over(self, upto: int) -> None:
        name, first_seq = incarnation_at(self._incarnations, upto + 1)
        self._port.send(SkipFrame(self._source, name, first_seq, upto, "cut off"))


def confirmed_offers(group: OutboxGroup, reader: str) -> list[bytes]:
    """The events whose offers to a reader this commit group confirms."""
    rows = (group.rows[position] for position in group.positions_by_node.get(reader, ()))
    return [
        ref
        for _, _, ref, kind, body, _, _ in rows
        if kind == EventKind.SIGNAL
        and ref is not None
        and decode_payload(decode_event(body), Signal).signal == "confirm"
    ]


def split_frames(
    rows: Sequence[tuple[int, bytes]], upto: int, frame_bytes: int = FRAME_BYTES
) -> Iterator[tuple[int, list[bytes]]]:
    """(last seq, events) of each frame for these events; the last frame reaches `upto`."""
    events: list[bytes] = []
    size = last = 0
    for seq, body in rows:
        if events and (size + len(body) > frame_bytes or len(events) == FRAME_EVENTS):
            yield last, events
            events, size = [], 0
        events.append(body)
        size += len(body)
        last = seq
    if events:
        yield upto, events
