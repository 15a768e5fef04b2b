"""The emitter's end of Follow: all of our outbox, with its heads, for one who keeps it for others.

A commit group may take several frames; its head is in the one that holds its last event.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from msgspec import Struct

from gatepost.delivery.coordinator import DeliveryCoordinator
from gatepost.delivery.feed import Port, frames
from gatepost.delivery.frames import (
    FRAME_BYTES,
    FRAME_EVENTS,
    AnyFrame,
    Events,
    Follow,
    Group,
    Hello,
    Life,
    Lives,
    Reading,
    Taken,
    weight,
)
from gatepost.delivery.lives import after, life_of, stretch
from gatepost.delivery.local_node import LocalNode
from gatepost.delivery.proof import check_reading, sign_lives
from gatepost.errors import LinkError
from gatepost.events import genesis
from gatepost.journal.outbox import EVERYBODY, Appended
from gatepost.journal.tx import Tx

_LIVES = "SELECT id, first_seq FROM incarnation ORDER BY first_seq"
_HEAD = "SELECT coalesce(max(last_seq), 0) FROM head"
_ROWS = f"""
SELECT seq, body, to_node FROM outbox WHERE seq > ? AND seq <= ? ORDER BY seq LIMIT {FRAME_EVENTS}
"""
_HEADS = """
SELECT first_seq, last_seq, chain, signature FROM head WHERE last_seq > ? AND last_seq <= ?
ORDER BY last_seq
"""
# Where a group is here in whole, and with what was before it. Two of them: the chain before the
# first group that is left may have gone with those before it.
_STARTS = """
SELECT first_seq FROM head h WHERE last_seq > ?
AND EXISTS (SELECT 1 FROM outbox WHERE seq = h.first_seq) ORDER BY last_seq LIMIT 2
"""
# Who keeps our outbox may pass it on to anyone.
_SENT = "UPDATE recipient SET sent_seq = min(last_seq, ?1) WHERE sent_seq < min(last_seq, ?1)"
# One that has another journal than it had is dealt with when we meet.
_ACKED = """
UPDATE recipient SET acked_seq = max(acked_seq, min(last_seq, ?1)), seen_at = ?2, incarnation = ?4
WHERE node_id = ?3 AND coalesce(incarnation, ?4) = ?4
"""
_CHAIN_AT = "SELECT chain FROM head WHERE last_seq = ?"


class Found(Struct, frozen=True):
    """One frame's worth; `complete` if there is no more after it."""

    life: Life
    upto: int
    complete: bool
    events: list[bytes]
    groups: list[Group]
    everyone: list[int]


class SourcePart:
    """Answers Follow on one link. `on_live` hears of it whenever somebody starts or stops."""

    def __init__(
        self,
        port: Port,
        node: LocalNode,
        coordinator: DeliveryCoordinator,
        window: int,
        on_live: Callable[[], None] = lambda: None,
    ) -> None:
        self._port = port
        self._node = node
        self._coordinator = coordinator
        self._window = window
        self._on_live = on_live
        self._feed: GroupFeed | None = None

    @property
    def follows(self) -> bool:
        """Whether the other side keeps our outbox."""
        return self._feed is not None

    def greeted(self, hello: Hello) -> None:
        """Nothing is due before somebody asks."""

    def receive(self, frame: AnyFrame) -> bool:
        match frame:
            case Follow():
                self._port.commit(
                    lambda tx: self._start(tx, frame), lambda found: self._begin(frame, *found)
                )
            case Taken(stream="follow"):
                if self._feed is not None:
                    self._feed.add_credit(frame.size)
            case Reading() if frame.source == self._node.id:
                self._read(frame)
            case _:
                return False
        return True

    def appended(self, group: Appended) -> None:
        if self._feed is not None:
            self._feed.appended(group)

    def closed(self) -> None:
        if self._feed is not None:
            self._feed.stop()
            self._feed = None

    def _start(self, tx: Tx, frame: Follow) -> tuple[Lives, int]:
        lives = [(row[0], row[1]) for row in tx.rows(_LIVES)]
        position = after(lives, frame.positions, self._node.id)
        for (first,) in tx.rows(_STARTS, (position,)):
            if _before(tx, self._node.id, lives, first) is not None:
                position = first - 1
                break
        return sign_lives(self._node.key, self._node.id, lives), position

    def _begin(self, frame: Follow, lives: Lives, position: int) -> None:
        if self._feed is not None:
            self._feed.stop()
        self._port.send(lives)
        window = min(frame.window, self._window)
        self._feed = None
        if window:
            self._feed = GroupFeed(self._port, self._node.id, lives.lives, position, window)
        self._on_live()
        if self._feed is not None:
            self._feed.pump()

    def _read(self, frame: Reading) -> None:
        """Somebody reads us by relay, and says so itself."""
        reader = self._coordinator.routes.directory.gateways.get(frame.reader)
        if reader is None:
            raise LinkError(f"{frame.reader} is not in this room")
        check_reading(frame, reader.key)
        self._port.commit(lambda tx: self._note(tx, frame), _nothing)

    def _note(self, tx: Tx, frame: Reading) -> None:
        lives = [(row[0], row[1]) for row in tx.rows(_LIVES)]
        upto = after(lives, [(frame.source, frame.of, frame.upto)], frame.source)
        tx.run(_ACKED, (upto, tx.now, frame.reader, frame.life))


class GroupFeed:
    """`position` is the last event sent."""

    def __init__(
        self, port: Port, source: str, lives: Sequence[Life], position: int, credit: int
    ) -> None:
        self._port = port
        self._source = source
        self._lives = lives
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
            self._port.commit(self._read, self._was_read)

    def add_credit(self, size: int) -> None:
        self._credit = min(self._window, self._credit + size)
        self.pump()

    def appended(self, group: Appended) -> None:
        """A commit group is on disk. Pass it on whole, or read it later in parts."""
        head = group.head
        if self._may_push(group):
            rows = [(row[0], row[4], row[6]) for row in group.rows]
            proof = Group(head.first, head.last, group.previous, head.chain, head.signature)
            life = life_of(self._lives, head.last)
            self._was_read(_found(life, head.last, True, rows, [proof]))
        elif self.position < head.last:
            self._caught_up = False
            self.pump()

    def _may_push(self, group: Appended) -> bool:
        if not (self._caught_up and self._credit > 0 and self.position == group.head.first - 1):
            return False
        size = sum(len(row[4]) for row in group.rows)
        return len(group.rows) <= FRAME_EVENTS and size <= FRAME_BYTES

    def _read(self, tx: Tx) -> Found:
        life, end = stretch(self._lives, self.position)
        ((head,),) = tx.rows(_HEAD)
        rows = tx.rows(_ROWS, (self.position, end))
        limit = min(head, end) if len(rows) < FRAME_EVENTS else rows[-1][0]
        upto, events = next(frames([row[:2] for row in rows], limit), (limit, []))
        groups = self._groups(tx, self.position, upto)
        tx.run(_SENT, (upto,))
        return _found(life, upto, upto >= head, rows[: len(events)], groups)

    def _groups(self, tx: Tx, position: int, upto: int) -> list[Group]:
        rows = tx.rows(_HEADS, (position, upto))
        if not rows:
            return []
        before = _before(tx, self._source, self._lives, rows[0][0])
        chains = [before or b"", *(row[2] for row in rows)]
        return [
            Group(first, last, previous, chain, signature)
            for (first, last, _, signature), (previous, chain) in zip(
                rows, pairwise(chains), strict=True
            )
        ]

    def _was_read(self, found: Found) -> None:
        self._reading = False
        self.position = max(self.position, found.upto)
        self._caught_up = found.complete
        if found.events and not self._stopped:
            self._send(found)
        self.pump()

    def _send(self, found: Found) -> None:
        frame = Events(
            self._source,
            *found.life,
            found.upto,
            self._port.now(),
            found.events,
            found.groups,
            "follow",
            found.everyone,
        )
        self._credit -= weight(frame)
        self._port.send(frame)


def _found(
    life: Life, upto: int, complete: bool, rows: Sequence[tuple[Any, ...]], groups: list[Group]
) -> Found:
    everyone = [row[0] for row in rows if row[2] == EVERYBODY]
    return Found(life, upto, complete, [row[1] for row in rows], groups, everyone)


def _before(tx: Tx, source: str, lives: Sequence[Life], first: int) -> bytes | None:
    """The chain before the group that starts with `first`; None if nobody knows any more."""
    life = life_of(lives, first)
    if life[1] == first:
        return genesis(source, life[0])
    row = tx.one(_CHAIN_AT, (first - 1,))
    return None if row is None else bytes(row[0])


def _nothing(value: object) -> None:
    """There is nothing to do with it."""
