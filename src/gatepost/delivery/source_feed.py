"""The emitter's end of Follow: all of our outbox, with its heads, for one who keeps it for others.

A commit group may take several frames; its head is in the one that holds its last event.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from msgspec import Struct

from gatepost.delivery.frames import (
    FRAME_BYTES,
    FRAME_EVENTS,
    AnyFrame,
    CommitGroup,
    EventsFrame,
    FollowFrame,
    HelloFrame,
    Incarnation,
    IncarnationsFrame,
    ReadingFrame,
    TakenFrame,
    frame_weight,
)
from gatepost.delivery.incarnations import incarnation_at, next_stretch, position_after
from gatepost.delivery.messages import Messages
from gatepost.delivery.node import Node
from gatepost.delivery.outbox_feed import LinkPort, split_frames
from gatepost.delivery.proof import check_reading, sign_incarnations
from gatepost.errors import LinkError
from gatepost.events import genesis
from gatepost.journal.outbox import EVERYBODY, Appended
from gatepost.journal.tx import Tx

_SELECT_INCARNATIONS = "SELECT id, first_seq FROM incarnation ORDER BY first_seq"
_SELECT_HEAD = "SELECT coalesce(max(last_seq), 0) FROM head"
_SELECT_EVENTS = f"""
SELECT seq, body, to_node FROM outbox WHERE seq > ? AND seq <= ? ORDER BY seq LIMIT {FRAME_EVENTS}
"""
_SELECT_HEADS = """
SELECT first_seq, last_seq, chain, signature FROM head WHERE last_seq > ? AND last_seq <= ?
ORDER BY last_seq
"""
# Where a group is here in whole, and with what was before it. Two of them: the chain before the
# first group that is left may have gone with those before it.
_SELECT_GROUP_STARTS = """
SELECT first_seq FROM head h WHERE last_seq > ?
AND EXISTS (SELECT 1 FROM outbox WHERE seq = h.first_seq) ORDER BY last_seq LIMIT 2
"""
# Who keeps our outbox may pass it on to anyone.
_SAVE_SENT = "UPDATE recipient SET sent_seq = min(last_seq, ?1) WHERE sent_seq < min(last_seq, ?1)"
# One that has another journal than it had is dealt with when we meet.
_SAVE_ACKED = """
UPDATE recipient SET acked_seq = max(acked_seq, min(last_seq, ?1)), seen_at = ?2, incarnation = ?4
WHERE node_id = ?3 AND coalesce(incarnation, ?4) = ?4
"""
_SELECT_CHAIN = "SELECT chain FROM head WHERE last_seq = ?"


class SourceBatch(Struct, frozen=True):
    """One frame's worth; `complete` if there is no more after it."""

    incarnation: Incarnation
    upto: int
    complete: bool
    events: list[bytes]
    groups: list[CommitGroup]
    everyone: list[int]


class SourceFeedPart:
    """Answers Follow on one link. `on_live` hears of it whenever somebody starts or stops."""

    def __init__(
        self,
        port: LinkPort,
        node: Node,
        messages: Messages,
        window: int,
        on_live: Callable[[], None] = lambda: None,
    ) -> None:
        self._port = port
        self._node = node
        self._messages = messages
        self._window = window
        self._on_live = on_live
        self._feed: SourceFeed | None = None

    @property
    def is_followed(self) -> bool:
        """Whether the other side keeps our outbox."""
        return self._feed is not None

    def handle_hello(self, hello: HelloFrame) -> None:
        """Nothing is due before somebody asks."""

    def receive_frame(self, frame: AnyFrame) -> bool:
        match frame:
            case FollowFrame():
                self._port.commit(
                    lambda tx: self._find_start(tx, frame),
                    lambda found: self._start_feed(frame, *found),
                )
            case TakenFrame(stream="follow"):
                if self._feed is not None:
                    self._feed.add_credit(frame.size)
            case ReadingFrame() if frame.source == self._node.id:
                self._check_reading(frame)
            case _:
                return False
        return True

    def publish_group(self, group: Appended) -> None:
        if self._feed is not None:
            self._feed.publish_group(group)

    def close(self) -> None:
        if self._feed is not None:
            self._feed.stop()
            self._feed = None

    def _find_start(self, tx: Tx, frame: FollowFrame) -> tuple[IncarnationsFrame, int]:
        lives = [(row[0], row[1]) for row in tx.rows(_SELECT_INCARNATIONS)]
        position = position_after(lives, frame.positions, self._node.id)
        for (first,) in tx.rows(_SELECT_GROUP_STARTS, (position,)):
            if _chain_before(tx, self._node.id, lives, first) is not None:
                position = first - 1
                break
        return sign_incarnations(self._node.key, self._node.id, lives), position

    def _start_feed(self, frame: FollowFrame, lives: IncarnationsFrame, position: int) -> None:
        if self._feed is not None:
            self._feed.stop()
        self._port.send(lives)
        window = min(frame.window, self._window)
        self._feed = None
        if window:
            self._feed = SourceFeed(self._port, self._node.id, lives.incarnations, position, window)
        self._on_live()
        if self._feed is not None:
            self._feed.pump()

    def _check_reading(self, frame: ReadingFrame) -> None:
        """Somebody reads us by relay, and says so itself."""
        reader = self._messages.sender.directory.gateways.get(frame.reader)
        if reader is None:
            raise LinkError(f"{frame.reader} is not in this room")
        check_reading(frame, reader.key)
        self._port.commit(lambda tx: self._save_reading(tx, frame), _ignore_result)

    def _save_reading(self, tx: Tx, frame: ReadingFrame) -> None:
        lives = [(row[0], row[1]) for row in tx.rows(_SELECT_INCARNATIONS)]
        upto = position_after(
            lives, [(frame.source, frame.source_incarnation, frame.upto)], frame.source
        )
        tx.run(_SAVE_ACKED, (upto, tx.now, frame.reader, frame.incarnation))


class SourceFeed:
    """`position` is the last event sent."""

    def __init__(
        self, port: LinkPort, source: str, lives: Sequence[Incarnation], position: int, credit: int
    ) -> None:
        self._port = port
        self._source = source
        self._incarnations = lives
        self.position = position
        self._window = self._credit = credit
        self._reading = False
        self._caught_up = False
        self._stopped = False

    def stop(self) -> None:
        """Say nothing more, whatever is being read."""
        self._stopped = True

    def pump(self) -> None:
        """Go on as far as credit allows."""
        idle = not self._reading and not self._caught_up and not self._stopped
        if idle and self._credit > 0:
            self._reading = True
            self._port.commit(self._read_batch, self._send_batch)

    def add_credit(self, size: int) -> None:
        self._credit = min(self._window, self._credit + size)
        self.pump()

    def publish_group(self, group: Appended) -> None:
        """A commit group is on disk. Pass it on whole, or read it later in parts."""
        head = group.head
        if self._can_push(group):
            rows = [(row[0], row[4], row[6]) for row in group.rows]
            proof = CommitGroup(head.first, head.last, group.previous, head.chain, head.signature)
            life = incarnation_at(self._incarnations, head.last)
            self._send_batch(_make_batch(life, head.last, True, rows, [proof]))
        elif self.position < head.last:
            self._caught_up = False
            self.pump()

    def _can_push(self, group: Appended) -> bool:
        if not (self._caught_up and self._credit > 0 and self.position == group.head.first - 1):
            return False
        size = sum(len(row[4]) for row in group.rows)
        return len(group.rows) <= FRAME_EVENTS and size <= FRAME_BYTES

    def _read_batch(self, tx: Tx) -> SourceBatch:
        life, end = next_stretch(self._incarnations, self.position)
        ((head,),) = tx.rows(_SELECT_HEAD)
        rows = tx.rows(_SELECT_EVENTS, (self.position, end))
        limit = min(head, end) if len(rows) < FRAME_EVENTS else rows[-1][0]
        upto, events = next(split_frames([row[:2] for row in rows], limit), (limit, []))
        groups = self._read_groups(tx, self.position, upto)
        tx.run(_SAVE_SENT, (upto,))
        return _make_batch(life, upto, upto >= head, rows[: len(events)], groups)

    def _read_groups(self, tx: Tx, position: int, upto: int) -> list[CommitGroup]:
        rows = tx.rows(_SELECT_HEADS, (position, upto))
        if not rows:
            return []
        before = _chain_before(tx, self._source, self._incarnations, rows[0][0])
        chains = [before or b"", *(row[2] for row in rows)]
        return [
            CommitGroup(first, last, previous, chain, signature)
            for (first, last, _, signature), (previous, chain) in zip(
                rows, pairwise(chains), strict=True
            )
        ]

    def _send_batch(self, found: SourceBatch) -> None:
        self._reading = False
        self.position = max(self.position, found.upto)
        self._caught_up = found.complete
        if found.events and not self._stopped:
            self._send_events(found)
        self.pump()

    def _send_events(self, found: SourceBatch) -> None:
        frame = EventsFrame(
            self._source,
            *found.incarnation,
            found.upto,
            self._port.now(),
            found.events,
            found.groups,
            "follow",
            found.everyone,
        )
        self._credit -= frame_weight(frame)
        self._port.send(frame)


def _make_batch(
    life: Incarnation,
    upto: int,
    complete: bool,
    rows: Sequence[tuple[Any, ...]],
    groups: list[CommitGroup],
) -> SourceBatch:
    everyone = [row[0] for row in rows if row[2] == EVERYBODY]
    return SourceBatch(life, upto, complete, [row[1] for row in rows], groups, everyone)


def _chain_before(tx: Tx, source: str, lives: Sequence[Incarnation], first: int) -> bytes | None:
    """The chain before the group that starts with `first`; None if nobody knows any more."""
    life = incarnation_at(lives, first)
    if life[1] == first:
        return genesis(source, life[0])
    row = tx.one(_SELECT_CHAIN, (first - 1,))
    return None if row is None else bytes(row[0])


def _ignore_result(value: object) -> None:
    """There is nothing to do with it."""
