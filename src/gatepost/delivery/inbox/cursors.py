"""Cursors: how far this gateway has read other outboxes, and how it notices what was left out."""

from typing import NamedTuple

import msgspec
from msgspec import Struct

from gatepost.delivery.frames import Position
from gatepost.errors import LinkError
from gatepost.events import Envelope
from gatepost.journal.transaction import Tx

# The next event may follow any other.
ANYTHING = -1
# Each restore of a journal makes one.
_MAX_INCARNATIONS = 1000

_SELECT_CURSOR = """
SELECT first_seq, seq, last_to, last_all FROM cursor WHERE source = ? AND incarnation = ?
"""
_SAVE_CURSOR = """
INSERT OR REPLACE INTO cursor (source, incarnation, first_seq, seq, last_to, last_all, at)
VALUES (?, ?, ?, ?, ?, ?, ?)
"""
_SELECT_KNOWN_BEFORE = """
SELECT max(CASE WHEN last_to < 0 THEN seq ELSE last_to END) FROM cursor
WHERE source = ? AND first_seq < ?
"""
# Until an incarnation has been read, report the position in the previous one.
_SELECT_POSITIONS = """
SELECT source, incarnation, seq FROM cursor
WHERE source IN (SELECT value FROM json_each(?)) AND (seq >= first_seq OR last_to < 0)
ORDER BY source, first_seq
"""
# In this incarnation, and in earlier ones if the gap may reach back into them.
_GO_BACK = """
UPDATE cursor SET seq = min(seq, max(?, first_seq - 1))
WHERE source = ? AND (incarnation = ? OR (first_seq < ? AND last_to >= 0))
"""
_SELECT_LAST_INCARNATION = """
SELECT incarnation FROM cursor WHERE source = ? ORDER BY first_seq DESC LIMIT 1
"""


_SELECT_READ = """
SELECT source, incarnation, seq, at FROM cursor WHERE seq >= first_seq ORDER BY source, incarnation
"""


class ReadPosition(NamedTuple):
    """How far one incarnation of an outbox is read, and when that was."""

    source: str
    incarnation: str
    seq: int
    at: int


class OutboxCursor(Struct):
    """How far one incarnation of one outbox is read.

    `last_to` is the last event there for this node, `last_all` the last for all subscribers; the
    next event of each kind names it as its predecessor. A reader that starts anew, in another
    incarnation or behind events it was told to skip, was told of the events for it up to `known`:
    if the next event follows a later one, that one was left out. A reader that begins with an
    outbox has not missed the earlier events for all subscribers.
    """

    source: str
    incarnation: str
    first_seq: int
    seq: int
    last_to: int = 0
    last_all: int = ANYTHING
    known: int = 0

    @classmethod
    def load(cls, tx: Tx, source: str, incarnation: str, first_seq: int) -> "OutboxCursor":
        row = tx.fetch_one(_SELECT_CURSOR, (source, incarnation))
        if row is None:
            _check_incarnation_count(tx, source)
        cursor = cls(source, incarnation, *(row or (first_seq, first_seq - 1)))
        if cursor.last_to == ANYTHING:
            cursor.known = cursor.seq
        elif not cursor.last_to and first_seq > 1:
            ((known,),) = tx.fetch_all(_SELECT_KNOWN_BEFORE, (source, first_seq))
            cursor.known = min(known or 0, first_seq - 1)
        return cursor

    def has_read(self, envelope: Envelope) -> bool:
        last = self._last_like(envelope)
        return envelope.seq <= (self.seq if last == ANYTHING else last)

    def follows(self, envelope: Envelope) -> bool:
        """Whether an event is the next one for this node, or for all subscribers."""
        previous = envelope.prev_seq_to
        if envelope.to_node_id is None:
            return self.last_all in (ANYTHING, previous)
        return previous == self.last_to if self.last_to > 0 else previous <= self.known

    def gap_before(self, envelope: Envelope) -> int:
        """The last seq that was read before the gap in front of this event."""
        last = self._last_like(envelope)
        return last if last > 0 else self.known

    def read_event(self, envelope: Envelope) -> None:
        if envelope.to_node_id is None:
            self.last_all = envelope.seq
        else:
            self.last_to = envelope.seq

    def read_through(self, upto: int) -> None:
        """Every event through `upto` has come. `seq` stays until an event came after a skip."""
        if self.last_to != ANYTHING:
            self.seq = max(self.seq, upto)

    def skip_through(self, upto: int) -> None:
        """Every event through `upto` is gone; the next event starts a new sequence."""
        self.seq, self.last_to, self.last_all = upto, ANYTHING, ANYTHING

    def save(self, tx: Tx) -> None:
        row = (self.source, self.incarnation, self.first_seq, self.seq, self.last_to, self.last_all)
        tx.execute(_SAVE_CURSOR, (*row, tx.now))

    def _last_like(self, envelope: Envelope) -> int:
        return self.last_all if envelope.to_node_id is None else self.last_to


def _check_incarnation_count(tx: Tx, source: str) -> None:
    """LinkError if an outbox has more incarnations than an honest one would."""
    ((count,),) = tx.fetch_all("SELECT count(*) FROM cursor WHERE source = ?", (source,))
    if count >= _MAX_INCARNATIONS:
        raise LinkError(f"the outbox of {source} has had {count} incarnations already")


class OutboxGaps:
    """Gaps in outboxes: the next commit group moves the cursor back and reads the missing events.

    The batch with the gap is refused as a whole, so the note has to outlive its transaction.
    """

    def __init__(self) -> None:
        # (source, incarnation) -> (last seq before the gap, first seq of a previous incarnation,
        # whether the gap is among the events for all subscribers).
        self._gaps: dict[tuple[str, str], tuple[int, int, bool]] = {}

    def check_follows(self, cursor: OutboxCursor, envelope: Envelope) -> None:
        """LinkError if events between the cursor and this one were left out."""
        if cursor.follows(envelope):
            return
        last = cursor.gap_before(envelope)
        before = cursor.first_seq if last < cursor.first_seq else 0
        is_for_all = envelope.to_node_id is None
        self._gaps[cursor.source, cursor.incarnation] = (last, before, is_for_all)
        raise LinkError(
            f"events {last + 1} to {envelope.seq - 1} of {cursor.source} were left out:"
            f" the next should follow {last}, this follows {envelope.prev_seq_to}"
        )

    def rewind_cursors(self, tx: Tx) -> None:
        while self._gaps:
            outbox, (last, before, is_for_all) = self._gaps.popitem()
            if not _has_gone_on(tx, outbox, last, is_for_all):
                tx.execute(_GO_BACK, (last, *outbox, before))


def _has_gone_on(tx: Tx, outbox: tuple[str, str], last: int, is_for_all: bool) -> bool:
    """Whether the events behind `last` have come another way, each behind its predecessor."""
    row = tx.fetch_one(_SELECT_CURSOR, outbox)
    return row is not None and bool(row[3 if is_for_all else 2] > last)


def read_positions(tx: Tx, sources: list[str]) -> list[Position]:
    """How far these outboxes are read, as (source, incarnation, seq)."""
    rows = tx.fetch_all(_SELECT_POSITIONS, (msgspec.json.encode(sources).decode(),))
    return [(row[0], row[1], row[2]) for row in rows]


def last_read_seq(tx: Tx, source: str) -> int:
    """The highest sequence number that was read in any incarnation of an outbox."""
    sql = "SELECT coalesce(max(seq), 0) FROM cursor WHERE source = ?"
    ((seq,),) = tx.fetch_all(sql, (source,))
    return int(seq)


def all_positions(tx: Tx) -> list[ReadPosition]:
    """The position in every outbox from which an event was read."""
    return [ReadPosition(*row) for row in tx.fetch_all(_SELECT_READ)]


def all_sources(tx: Tx) -> list[str]:
    """The nodes whose outbox was read at some time."""
    return [row[0] for row in tx.fetch_all("SELECT DISTINCT source FROM cursor")]


def last_incarnation(tx: Tx, source: str) -> str:
    row = tx.fetch_one(_SELECT_LAST_INCARNATION, (source,))
    return row[0] if row else ""
