"""Read a mailbox without changing it."""

from bisect import insort
from operator import itemgetter

from gatepost.errors import UnknownMessage
from gatepost.journal.tx import Row, Tx
from gatepost.mailbox.enqueue import pair_end, pair_of
from gatepost.mailbox.states import State
from gatepost.wire import Summary

_LEASED = """
SELECT p.sender, l.next, l.last, p.id, l.behind
FROM lease l JOIN pair p ON p.id = l.pair WHERE l.mailbox = ?
"""
_BACKING_OFF = """
SELECT sender, head, id, head_rank, head_arrival FROM pair WHERE mailbox = ? AND ready_at > 0
"""
_QUEUED = """
SELECT sender, head, id, head_rank, head_arrival FROM pair WHERE mailbox = ? AND ready_at = 0
ORDER BY head_rank, head_arrival
"""
_LIVE = f"""
SELECT m.rank, m.arrival, m.msg_id, m.created_at, m.attempt, m.state, length(b.payload),
       m.not_before
FROM mail m JOIN body b ON b.id = m.id
WHERE m.id BETWEEN ? AND ? AND m.state < {State.ACKED:d} AND (m.rank, m.arrival) > (?, ?)
ORDER BY m.id
"""
_PLACE = "SELECT rank, arrival, id FROM mail WHERE mailbox = ? AND msg_id = ?"
_START = (-1, -1, -1)
_IN_TURN = itemgetter(0, 1)

Span = tuple[str, int, int]  # sender, first and last mail id


class Page:
    """Collects the first `limit` messages after position `after` from the spans offered to it."""

    def __init__(self, tx: Tx, limit: int, after: Row) -> None:
        self._tx = tx
        self._limit = limit
        self._after = after
        self.rows: list[Row] = []

    def offer(self, span: Span) -> None:
        """Add a span's messages; they are in order, so the first that does not fit ends it."""
        sender, first, last = span
        *position, id = self._after
        if pair_of(id) == pair_of(first):
            first = max(first, id + 1)
        for row in self._tx.each(_LIVE, (first, last, *position)):
            if not self.has_room_for(row[:2]):
                return
            insort(self.rows, (*row, sender), key=_IN_TURN)
            del self.rows[self._limit :]

    def has_room_for(self, position: Row) -> bool:
        return len(self.rows) < self._limit or position < self.rows[-1][:2]


def peek(tx: Tx, mailbox: int, limit: int, after: str = "") -> list[Summary]:
    """Return unsettled mail in the order it is handed out.

    `after` is the msg_id the previous page ended with.
    """
    page = Page(tx, limit, _place(tx, mailbox, after) if after else _START)
    for sender, first, last, pair, behind in tx.each(_LEASED, (mailbox,)):
        page.offer((sender, first, last))
        page.offer((sender, behind, pair_end(pair)))
    for sender, head, pair, *position in tx.each(_QUEUED, (mailbox,)):
        if not page.has_room_for(tuple(position)):
            break
        page.offer((sender, head, pair_end(pair)))
    for sender, head, pair, *position in tx.each(_BACKING_OFF, (mailbox,)):
        if page.has_room_for(tuple(position)):
            page.offer((sender, head, pair_end(pair)))
    return [_summary(row) for row in page.rows]


def _place(tx: Tx, mailbox: int, msg_id: str) -> Row:
    row = tx.one(_PLACE, (mailbox, msg_id))
    if row is None:
        raise UnknownMessage(f"no message {msg_id} in this mailbox")
    return row


def _summary(row: Row) -> Summary:
    _, _, msg_id, created_at, attempt, state, size, not_before, sender = row
    retry_at = not_before // 1000 if state == State.NACKED else None
    return Summary(msg_id, sender, created_at // 1000, attempt, State(state).wire, size, retry_at)


def counts(tx: Tx) -> list[Row]:
    """Return (name, waiting, in flight, dead letters) of every mailbox."""
    return tx.rows("SELECT name, waiting, in_flight, dead FROM mailbox ORDER BY name")
