"""The emitter's end of a subscription: one reader, one outbox, as fast as the reader takes it.

A feed that has caught up is told of every commit group and passes on what is for its reader from
memory. One that has not reads the journal, in batches, as its credit allows. What it is about to
send is written down first, as sent: should the reader come back with another journal than it had,
that is how far it may have heard.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from msgspec import Struct

from gatepost.delivery.frames import (
    FRAME_BYTES,
    FRAME_EVENTS,
    Events,
    Frame,
    Group,
    Life,
    weight,
)
from gatepost.delivery.lives import life_of, stretch
from gatepost.errors import GatepostError
from gatepost.journal.outbox import EVERYBODY, Appended
from gatepost.journal.tx import Tx

_FOR = f"""
SELECT seq, body FROM outbox WHERE to_node IN (?, '{EVERYBODY}') AND seq > ? AND seq <= ?
ORDER BY seq LIMIT {FRAME_EVENTS}
"""
_HEAD = "SELECT coalesce(max(last_seq), 0) FROM head"
_SENT = """
INSERT INTO recipient (node_id, last_seq, sent_seq) VALUES (?1, 0, ?2)
ON CONFLICT (node_id) DO UPDATE SET sent_seq = max(sent_seq, ?2)
"""


class Port(Protocol):
    """How a link reaches the world: its wire, its journal, its clock."""

    def send(self, frame: Frame) -> None: ...

    def commit(self, operation: Callable[[Tx], Any], done: Callable[[Any], None]) -> None:
        """Run it in a transaction and call `done` with the outcome; an error ends the link."""

    def now(self) -> int: ...

    def end(self, error: GatepostError) -> None: ...


class Found(Struct, frozen=True):
    """What goes into one frame; `complete` if the outbox has nothing after it."""

    life: Life
    upto: int
    complete: bool
    events: list[bytes]
    groups: list[Group] = []
    everyone: list[int] = []


class Feed:
    """`position` is how far the reader was sent everything there is for it."""

    stream = "own"

    def __init__(
        self,
        port: Port,
        source: str,
        reader: str,
        lives: Sequence[Life],
        position: int,
        credit: int,
    ) -> None:
        self._port = port
        self._source = source
        self._reader = reader
        self._lives = list(lives)
        self.position = position
        self._window = self._credit = credit
        self._reading = False
        self.caught_up = False

    def pump(self) -> None:
        """Go on as far as credit allows."""
        if not self._reading and not self.caught_up and self._credit > 0:
            self._reading = True
            self._port.commit(self._read, self._was_read)

    def add_credit(self, size: int) -> None:
        self._credit = min(self._window, self._credit + size)
        self.pump()

    def appended(self, group: Appended) -> None:
        """A commit group is on disk. Pass it on, unless others have to go first."""
        head = group.head
        if self.caught_up and self._credit > 0 and self.position == head.first - 1:
            found = self._picked(group)
            if fits(found.events):
                self.position = head.last
                if found.events:
                    self._send(found)
                return
        if self.position < head.last:
            self.caught_up = False
            self.pump()

    def _picked(self, group: Appended) -> Found:
        """What of a group is for the reader."""
        mine = [row[4] for row in group.rows if row[6] in (self._reader, EVERYBODY)]
        return Found(life_of(self._lives, group.head.last), group.head.last, True, mine)

    def _read(self, tx: Tx) -> Found:
        """The next frame's worth."""
        life, end = stretch(self._lives, self.position)
        ((head,),) = tx.rows(_HEAD)
        rows = tx.rows(_FOR, (self._reader, self.position, end))
        kept = first_bytes(rows)
        whole = len(kept) == len(rows) and len(rows) < FRAME_EVENTS
        upto = min(head, end) if whole else kept[-1][0]
        if kept:
            tx.run(_SENT, (self._reader, upto))
        return Found(life, upto, whole and upto == head, [row[1] for row in kept])

    def _was_read(self, found: Found) -> None:
        self._reading = False
        self.position = max(self.position, found.upto)
        self.caught_up = found.complete
        if found.events:
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
            self.stream,
            found.everyone,
        )
        self._credit -= weight(frame)
        self._port.send(frame)


def first_bytes(rows: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """As many of these (seq, body, ...) as fit into a frame, and at least one."""
    size = 0
    for index, row in enumerate(rows):
        size += len(row[1])
        if index and size > FRAME_BYTES:
            return list(rows[:index])
    return list(rows)


def fits(bodies: Sequence[bytes]) -> bool:
    """Whether these go into one frame."""
    return len(bodies) <= FRAME_EVENTS and (
        len(bodies) <= 1 or sum(map(len, bodies)) <= FRAME_BYTES
    )
