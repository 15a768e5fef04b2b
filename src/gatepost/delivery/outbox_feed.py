"""The emitter's end of a subscription: one reader, one outbox, as fast as the reader takes it.

A feed that has caught up is told of every commit group and passes on what is for its reader from
memory. One that has not reads the journal, in batches, as its credit allows. What it is about to
send is written down first, as sent: should the reader come back with another journal than it had,
that is how far it may have heard.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from gatepost.delivery.frames import FRAME_BYTES, FRAME_EVENTS, EventsFrame, Incarnation, LinkFrame
from gatepost.delivery.incarnations import incarnation_at, next_stretch
from gatepost.errors import GatepostError
from gatepost.journal.outbox import EVERYBODY, Appended
from gatepost.journal.tx import Tx

_SELECT_EVENTS_FOR = f"""
SELECT seq, body FROM outbox WHERE to_node IN (?, '{EVERYBODY}') AND seq > ? AND seq <= ?
ORDER BY seq LIMIT {FRAME_EVENTS}
"""
_SELECT_HEAD = "SELECT coalesce(max(last_seq), 0) FROM head"
_SAVE_SENT = """
INSERT INTO recipient (node_id, last_seq, sent_seq) VALUES (?1, 0, ?2)
ON CONFLICT (node_id) DO UPDATE SET sent_seq = max(sent_seq, ?2)
"""


class LinkPort(Protocol):
    """How a link reaches the world: its wire, its journal, its clock."""

    def send(self, frame: LinkFrame) -> None: ...

    def commit(self, operation: Callable[[Tx], Any], done: Callable[[Any], None]) -> None:
        """Run it in a transaction and call `done` with the outcome; an error ends the link."""

    def now(self) -> int: ...

    def end(self, error: GatepostError) -> None: ...


class OutboxFeed:
    """`position` is how far the reader was sent everything there is for it."""

    def __init__(
        self,
        port: LinkPort,
        source: str,
        reader: str,
        lives: Sequence[Incarnation],
        position: int,
        credit: int,
    ) -> None:
        self._port = port
        self._source = source
        self._reader = reader
        self._incarnations = list(lives)
        self.position = position
        self._window = self._credit = credit
        self._reading = False
        self.caught_up = False

    def pump(self) -> None:
        """Go on as far as credit allows."""
        if not self._reading and not self.caught_up and self._credit > 0:
            self._reading = True
            self._port.commit(self._read_batch, self._send_batch)

    def add_credit(self, size: int) -> None:
        # What was sent and not taken is never negative, whatever a reader claims.
        self._credit = min(self._window, self._credit + size)
        self.pump()

    def publish_group(self, group: Appended) -> None:
        """A commit group is on disk. Pass it on, unless others have to go first."""
        if self.caught_up and self._credit > 0 and self.position == group.head.first - 1:
            mine = group.rows_for(self._reader)
            self.position = group.head.last
            life = incarnation_at(self._incarnations, group.head.last)
            for upto, events in split_frames(mine, group.head.last):
                self._send_events(life, upto, events)
        elif self.position < group.head.last:
            self.caught_up = False
            self.pump()

    def _read_batch(self, tx: Tx) -> tuple[Incarnation, int, bool, list[bytes]]:
        """(life, up to where, whether that is all, events): the next frame's worth."""
        life, end = next_stretch(self._incarnations, self.position)
        ((head,),) = tx.rows(_SELECT_HEAD)
        rows = tx.rows(_SELECT_EVENTS_FOR, (self._reader, self.position, end))
        limit = min(head, end) if len(rows) < FRAME_EVENTS else rows[-1][0]
        upto, events = next(split_frames(rows, limit), (limit, []))
        if events:
            tx.run(_SAVE_SENT, (self._reader, upto))
        return life, upto, upto == head, events

    def _send_batch(self, found: tuple[Incarnation, int, bool, list[bytes]]) -> None:
        life, upto, complete, events = found
        self._reading = False
        self.position = max(self.position, upto)
        self.caught_up = complete
        if events:
            self._send_events(life, upto, events)
        self.pump()

    def _send_events(self, life: Incarnation, upto: int, events: list[bytes]) -> None:
        self._credit -= sum(map(len, events))
        now = self._port.now()
        self._port.send(EventsFrame(self._source, life[0], life[1], upto, now, events))


def split_frames(rows: Sequence[tuple[int, bytes]], upto: int) -> Iterator[tuple[int, list[bytes]]]:
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
