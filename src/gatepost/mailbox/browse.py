"""Looking at a mailbox without changing it."""

from collections.abc import Iterator
from heapq import merge
from itertools import islice
from operator import itemgetter

from gatepost.errors import UnknownMessage
from gatepost.journal.tx import Row, Tx
from gatepost.mailbox.lease import pair_end
from gatepost.mailbox.states import State
from gatepost.wire import Summary

# A pair's unsettled mail begins at its lease, or else at its head.
LIVE_PAIRS = """
SELECT p.id, p.sender, coalesce(l.next, p.head) FROM pair p LEFT JOIN lease l ON l.pair = p.id
WHERE p.mailbox = ? AND coalesce(l.next, p.head) IS NOT NULL
"""
_LIVE = f"""
SELECT m.rank, m.arrival, m.id, m.msg_id, m.created_at, m.attempt, m.state, length(b.payload),
       m.not_before
FROM mail m JOIN body b ON b.id = m.id
WHERE m.id BETWEEN ? AND ? AND m.state < {State.ACKED:d} ORDER BY m.id
"""
_PLACE = "SELECT rank, arrival FROM mail WHERE mailbox = ? AND msg_id = ?"


def peek(tx: Tx, mailbox: int, limit: int, after: str = "") -> list[Summary]:
    """Unsettled mail in the order it is handed out; `after` continues a page."""
    rows = _live(tx, mailbox)
    if after:
        place = _place(tx, mailbox, after)
        rows = (row for row in rows if row[:2] > place)
    return [_summary(row) for row in islice(rows, limit)]


def _live(tx: Tx, mailbox: int) -> Iterator[Row]:
    def of_pair(pair: int, sender: str, first: int) -> Iterator[Row]:
        return ((*row, sender) for row in tx.each(_LIVE, (first, pair_end(pair))))

    pairs = tx.rows(LIVE_PAIRS, (mailbox,))
    return merge(*(of_pair(*pair) for pair in pairs), key=itemgetter(0, 1))


def _place(tx: Tx, mailbox: int, msg_id: str) -> Row:
    row = tx.one(_PLACE, (mailbox, msg_id))
    if row is None:
        raise UnknownMessage(f"no message {msg_id} in this mailbox")
    return row


def _summary(row: Row) -> Summary:
    _, _, _, msg_id, created_at, attempt, state, size, not_before, sender = row
    retry_at = not_before // 1000 if state == State.NACKED else None
    return Summary(msg_id, sender, created_at // 1000, attempt, State(state).wire, size, retry_at)


def counts(tx: Tx) -> list[Row]:
    """(name, waiting, in flight, dead letters) of every mailbox."""
    return tx.rows(
        """SELECT b.name, b.waiting, b.in_flight,
                  (SELECT count(*) FROM dead_letter d WHERE d.mailbox = b.id)
           FROM mailbox b ORDER BY b.name"""
    )
