"""The emitter's side of Follow: sends our whole outbox with its signed heads to a relay.

A commit group may take several frames; its head travels in the frame that holds its last event.

proof.py has the rules of relays and proofs.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from gatepost.delivery.coordinator import DeliveryCoordinator
from gatepost.delivery.frames import (
    FRAME_BYTES,
    FRAME_EVENTS,
    AnyFrame,
    CommitGroup,
    FollowFrame,
    HelloFrame,
    Incarnation,
    IncarnationsFrame,
    ReadingFrame,
    TakenFrame,
)
from gatepost.delivery.incarnations import incarnation_at, position_after
from gatepost.delivery.local_node import LocalNode
from gatepost.errors import GatepostError, LinkError
from gatepost.events import genesis_chain
from gatepost.journal import outbox_reads, recipients
from gatepost.journal.incarnations import load_incarnations
from gatepost.journal.outbox import EVERYBODY, OutboxGroup
from gatepost.journal.transaction import Tx
from gatepost.links.link_port import LinkPort, ignore_result
from gatepost.links.outbox_feed import (
    ArchivedOutbox,
    CatchUpFeed,
    FeedBatch,
    PrunedStretch,
    split_frames,
)
from gatepost.links.proof import check_reading, sign_incarnations

# A relay waits for the answer before it asks again, except to stop.
_MAX_UNANSWERED = 8
# How long the room may take to show that the peer is a relay.
_ROLE_MS = 60_000


class SourceFeedPart:
    """Answers Follow on one link. `on_feed` is called when the peer starts or stops to follow.

    Only a relay may follow; `may_follow` says whether the room shows the peer as one. A later
    Follow replaces the former one, whose feed ends at once. The next feed starts when the peer
    has taken the frames that are queued for it.
    """

    def __init__(
        self,
        port: LinkPort,
        node: LocalNode,
        coordinator: DeliveryCoordinator,
        window: int,
        on_feed: Callable[[], None] = lambda: None,
        may_follow: Callable[[], bool] = lambda: True,
        archive: ArchivedOutbox | None = None,
    ) -> None:
        self._port = port
        self._node = node
        self._coordinator = coordinator
        self._window = window
        self._on_feed = on_feed
        self._may_follow = may_follow
        self._archive = archive
        self._feed: SourceFeed | None = None
        # The last Follow, until its feed starts.
        self._request: FollowFrame | None = None
        self._requested_at = 0
        self._is_starting = False
        self._unanswered = 0

    @property
    def is_followed(self) -> bool:
        """Whether the peer keeps our outbox for others."""
        return self._feed is not None

    def handle_hello(self, hello: HelloFrame) -> None:
        """The feed starts when the peer asks for it."""

    def receive_frame(self, frame: AnyFrame) -> bool:
        match frame:
            case FollowFrame():
                self._replace_request(frame)
            case TakenFrame(stream="follow"):
                if self._feed is not None:
                    self._feed.add_credit(frame.size)
            case ReadingFrame() if frame.source == self._node.id:
                self._check_reading(frame)
            case _:
                return False
        return True

    def publish_group(self, group: OutboxGroup) -> None:
        if self._feed is not None:
            self._feed.publish_group(group)

    def close(self) -> None:
        self._request = None
        self._stop_feed()

    def _stop_feed(self) -> None:
        if self._feed is not None:
            self._feed.stop()
            self._feed = None
            self._on_feed()

    # -- requests

    def _replace_request(self, frame: FollowFrame) -> None:
        self._unanswered += 1
        if self._unanswered > _MAX_UNANSWERED:
            raise LinkError("the peer follows again and again, and waits for no answer")
        if self._request is None:
            self._requested_at = self._port.now()
        self._request = frame
        self._stop_feed()
        self.resume_requests()

    def resume_requests(self) -> None:
        """Start the feed that was asked for, once the peer may have it and can take it."""
        frame = self._request
        if frame is None or self._is_starting or self._port.is_congested or not self._may_follow():
            return
        self._request, self._is_starting = None, True
        self._port.commit(
            lambda tx: self._find_start(tx, frame),
            lambda found: self._start_feed(frame, *found),
        )

    def is_refused(self) -> bool:
        """Whether the peer follows us, and the room did not confirm in time that it is a relay."""
        waited = self._port.now() - self._requested_at
        return self._request is not None and waited > _ROLE_MS and not self._may_follow()

    def _find_start(self, tx: Tx, frame: FollowFrame) -> tuple[IncarnationsFrame, int, int]:
        """Our incarnations, the position to continue from, and the start of the whole journal."""
        incarnations = load_incarnations(tx)
        position = position_after(incarnations, frame.positions, self._node.id)
        whole_from = outbox_reads.last_seq(tx)
        # Two groups, because pruning may have removed the chain before the first one.
        for first in outbox_reads.starts_of_whole_groups(tx, position, 2):
            if chain_before(tx, self._node.id, incarnations, first) is not None:
                whole_from = first - 1
                break
        signed = sign_incarnations(self._node.key, self._node.id, incarnations)
        return signed, min(position, whole_from), whole_from

    def _start_feed(
        self, frame: FollowFrame, incarnations: IncarnationsFrame, position: int, whole_from: int
    ) -> None:
        self._is_starting = False
        is_last = self._request is None
        for _ in range(self._unanswered - (not is_last)):
            self._port.send(incarnations)
        self._unanswered = 0 if is_last else 1
        window = min(frame.window, self._window)
        if window and is_last:
            self._feed = SourceFeed(
                self._port,
                self._node.id,
                incarnations.incarnations,
                position,
                window,
                self._archive,
                whole_from,
            )
        self._on_feed()
        if self._feed is not None:
            self._feed.pump()
        self.resume_requests()

    def _check_reading(self, frame: ReadingFrame) -> None:
        """A member reads our outbox through a relay, and signs how far it is."""
        reader = self._coordinator.routes.directory.gateways.get(frame.reader)
        if reader is None:
            # It may have just joined. It reports again with its next events.
            return
        check_reading(frame, reader.key)
        self._port.commit(lambda tx: self._save_reading(tx, frame), ignore_result)

    def _save_reading(self, tx: Tx, frame: ReadingFrame) -> None:
        position = (frame.source, frame.source_incarnation, frame.upto)
        upto = position_after(load_incarnations(tx), [position], frame.source)
        recipients.note_reading(tx, frame.reader, frame.incarnation, upto)


class SourceFeed(CatchUpFeed):
    """Our whole outbox for one relay; `position` is the last event sent.

    Events up to `whole_from` have left the journal, or their commit group has in part.
    """

    stream = "follow"

    def __init__(
        self,
        port: LinkPort,
        source: str,
        incarnations: Sequence[Incarnation],
        position: int,
        window: int,
        archive: ArchivedOutbox | None = None,
        whole_from: int = 0,
    ) -> None:
        super().__init__(port, source, incarnations, position, window, archive)
        self._whole_from = whole_from
        self._has_sent = False

    def _batches_of(self, group: OutboxGroup, incarnation: Incarnation) -> list[FeedBatch]:
        """One frame for a whole group; a larger group is read from the journal in pieces."""
        size = sum(len(row[4]) for row in group.rows)
        if len(group.rows) > FRAME_EVENTS or size > FRAME_BYTES:
            return []
        head = group.head
        rows = [(row[0], row[4], row[6]) for row in group.rows]
        proof = CommitGroup(head.first, head.last, group.previous_chain, head.chain, head.signature)
        return [_make_batch(incarnation, head.last, True, rows, [proof])]

    def _find_pruned(self, tx: Tx, incarnation: str, end: int) -> PrunedStretch | None:
        upto = min(end, self._whole_from)
        if upto <= self.position:
            return None
        return PrunedStretch(None, incarnation, self.position, upto)

    def _pass_over(self, upto: int) -> None:
        """End the feed: a relay accepts a gap only where it starts to follow."""
        if self._has_sent:
            self._port.end(GatepostError("the archive of this outbox has a gap; follow it again"))

    def _send_batch(self, batch: FeedBatch) -> None:
        self._has_sent = self._has_sent or bool(batch.events)
        super()._send_batch(batch)

    def _note_sent(self, tx: Tx, batch: FeedBatch) -> None:
        recipients.note_sent_to_all(tx, batch.upto)

    def _read_batch(self, tx: Tx, incarnation: Incarnation, end: int) -> FeedBatch:
        head = outbox_reads.last_seq(tx)
        rows = outbox_reads.all_events(tx, self.position, end, FRAME_EVENTS)
        limit = min(head, end) if len(rows) < FRAME_EVENTS else rows[-1][0]
        upto, events = next(split_frames([row[:2] for row in rows], limit), (limit, []))
        groups = self._read_groups(tx, self.position, upto)
        return _make_batch(incarnation, upto, upto >= head, rows[: len(events)], groups)

    def _read_groups(self, tx: Tx, position: int, upto: int) -> list[CommitGroup]:
        rows = outbox_reads.heads_between(tx, position, upto)
        if not rows:
            return []
        before = chain_before(tx, self._source, self._incarnations, rows[0][0])
        chains = [before or b"", *(row[2] for row in rows)]
        return [
            CommitGroup(first, last, previous, chain, signature)
            for (first, last, _, signature), (previous, chain) in zip(
                rows, pairwise(chains), strict=True
            )
        ]


def _make_batch(
    incarnation: Incarnation,
    upto: int,
    complete: bool,
    rows: Sequence[tuple[Any, ...]],
    groups: list[CommitGroup],
) -> FeedBatch:
    everyone = [row[0] for row in rows if row[2] == EVERYBODY]
    return FeedBatch(incarnation, upto, complete, [row[1] for row in rows], groups, everyone)


def chain_before(
    tx: Tx, source: str, incarnations: Sequence[Incarnation], first: int
) -> bytes | None:
    """The chain before the group that starts with `first`; None if the journal has lost it."""
    incarnation, start = incarnation_at(incarnations, first)
    if start == first:
        return genesis_chain(source, incarnation)
    return outbox_reads.chain_at(tx, first - 1)
