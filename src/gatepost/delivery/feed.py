"""The emitter's end of a subscription: one reader, one outbox, as fast as the reader takes it.

A feed that has caught up is told of every commit group and passes on what is for its reader from
memory. One that has not reads the journal, in batches, as its credit allows. What it is about to
send is written down first, as sent: should the reader come back with another journal than it had,
that is how far it may have heard.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from gatepost.delivery.frames import FRAME_BYTES, FRAME_EVENTS, Events, Frame, Life
from gatepost.delivery.lives import life_of, stretch
from gatepost.errors import GatepostError
from gatepost.journal.outbox import EVERYBODY, OutboxGroup
from gatepost.journal.transaction import Tx

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


class Feed:
    """`position` is how far the reader was sent everything there is for it."""

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
        # What was sent and not taken is never negative, whatever a reader claims.
        self._credit = min(self._window, self._credit + size)
        self.pump()

    def appended(self, group: OutboxGroup) -> None:
        """A commit group is on disk. Pass it on, unless others have to go first."""
        if self.caught_up and self._credit > 0 and self.position == group.head.first - 1:
            mine = group.rows_for(self._reader)
            self.position = group.head.last
            life = life_of(self._lives, group.head.last)
            for upto, events in frames(mine, group.head.last):
                self._send(life, upto, events)
        elif self.position < group.head.last:
            self.caught_up = False
            self.pump()

    def _read(self, tx: Tx) -> tuple[Life, int, bool, list[bytes]]:
        """(life, up to where, whether that is all, events): the next frame's worth."""
        life, end = stretch(self._lives, self.position)
        ((head,),) = tx.fetch_all(_HEAD)
        rows = tx.fetch_all(_FOR, (self._reader, self.position, end))
        limit = min(head, end) if len(rows) < FRAME_EVENTS else rows[-1][0]
        upto, events = next(frames(rows, limit), (limit, []))
        if events:
            tx.execute(_SENT, (self._reader, upto))
        return life, upto, upto == head, events

    def _was_read(self, found: tuple[Life, int, bool, list[bytes]]) -> None:
        life, upto, complete, events = found
        self._reading = False
        self.position = max(self.position, upto)
        self.caught_up = complete
        if events:
            self._send(life, upto, events)
        self.pump()

    def _send(self, life: Life, upto: int, events: list[bytes]) -> None:
        self._credit -= sum(map(len, events))
        now = self._port.now()
        self._port.send(Events(self._source, life[0], life[1], upto, now, events))


def frames(rows: Sequence[tuple[int, bytes]], upto: int) -> Iterator[tuple[int, list[bytes]]]:
    """(up to where, events) of each frame these events take; the last one reaches `upto`."""
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
