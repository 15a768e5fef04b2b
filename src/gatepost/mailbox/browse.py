"""Read a mailbox without changing it."""

from bisect import insort
from operator import itemgetter

import msgspec
from msgspec import Struct

from gatepost.errors import UnknownMessage
from gatepost.journal.transaction import Row, Tx
from gatepost.mailbox.enqueue import (
    FIRST_UNORDERED,
    IS_UNORDERED,
    PAIR_NUMBER_BITS,
    find_mailbox,
    is_unordered,
    last_mail_id,
    pair_of_mail,
)
from gatepost.mailbox.states import MailInput, MailState, transition_sql
from gatepost.wire.operations import Summary

_, _IF_WAITING = transition_sql(MailInput.EXPIRE)

_SELECT_LEASED_PAIRS = """
SELECT p.sender, l.next, l.last, p.id, l.behind
FROM lease l JOIN pair p ON p.id = l.slot WHERE l.mailbox = ?
"""
_SELECT_BACKING_OFF_PAIRS = """
SELECT sender, head, id, head_rank, head_arrival FROM pair WHERE mailbox = ? AND ready_at > 0
"""
_SELECT_QUEUED_PAIRS = """
SELECT sender, head, id, head_rank, head_arrival FROM pair WHERE mailbox = ? AND ready_at = 0
ORDER BY head_rank, head_arrival
"""
_MAIL_COLUMNS = """
m.rank, m.arrival, m.id, m.msg_id, m.created_at, m.attempt, m.state, length(b.payload),
m.not_before, b.meta
"""
_SELECT_UNSETTLED_MAIL = f"""
SELECT {_MAIL_COLUMNS}
FROM mail m JOIN body b ON b.id = m.id
WHERE m.id BETWEEN ? AND ? AND m.state < {MailState.ACKED:d} AND (m.rank, m.arrival) > (?, ?)
ORDER BY m.id
"""
_SELECT_UNORDERED = f"""
SELECT {_MAIL_COLUMNS}, p.sender
FROM mail m JOIN body b ON b.id = m.id JOIN pair p ON p.id = m.id >> {PAIR_NUMBER_BITS}
WHERE m.mailbox = ?1 AND (m.rank, m.arrival) > (?2, ?3) AND
"""
# In this order: ready mail, delayed mail, leased mail.
_SELECT_READY_UNORDERED = f"""{_SELECT_UNORDERED}
m.{_IF_WAITING} AND m.{IS_UNORDERED} AND m.not_before = 0 ORDER BY m.rank, m.arrival LIMIT ?4
"""
_SELECT_DELAYED_UNORDERED = f"""{_SELECT_UNORDERED}
m.{_IF_WAITING} AND m.{IS_UNORDERED} AND m.not_before > 0 ORDER BY m.rank, m.arrival LIMIT ?4
"""
_SELECT_LEASED_UNORDERED = f"""{_SELECT_UNORDERED}
m.id IN (SELECT next FROM lease WHERE mailbox = ?1 AND next & {FIRST_UNORDERED})
ORDER BY m.rank, m.arrival LIMIT ?4
"""
_UNORDERED_QUERIES = (
    _SELECT_READY_UNORDERED,
    _SELECT_DELAYED_UNORDERED,
    _SELECT_LEASED_UNORDERED,
)
_SELECT_WITH_PAYLOAD = f"""
SELECT m.msg_id, p.sender, m.created_at, b.payload, b.meta
FROM mail m JOIN body b ON b.id = m.id JOIN pair p ON p.id = m.id >> {PAIR_NUMBER_BITS}
WHERE m.mailbox = ? AND m.state < {MailState.ACKED:d} ORDER BY m.rank, m.arrival LIMIT ?
"""
_SELECT_POSITION = "SELECT rank, arrival, id FROM mail WHERE mailbox = ? AND msg_id = ?"
_FIRST_POSITION = (-1, -1, -1)
_rank_and_arrival = itemgetter(0, 1)

MailSpan = tuple[str, int, int]  # sender, first and last mail id


class UnsettledMail(Struct, frozen=True):
    """A message with its payload. `meta` marks tracked mail."""

    msg_id: str
    sender: str
    created_at: int
    payload: bytes
    meta: bytes | None


class MailSubject(Struct):
    """The field of an event's description that lists show."""

    subject: str | None = None


_decode_subject = msgspec.json.Decoder(MailSubject).decode


class PeekPage:
    """Collects the first `limit` messages after position `after` from the spans offered to it."""

    def __init__(self, tx: Tx, limit: int, after: Row) -> None:
        self._tx = tx
        self._limit = limit
        self._after = after
        self.rows: list[Row] = []

    def offer_span(self, span: MailSpan) -> None:
        """Add the messages of a span, in order, until one does not fit on the page."""
        sender, first, last = span
        *position, id = self._after
        if pair_of_mail(id) == pair_of_mail(first) and not is_unordered(id):
            first = max(first, id + 1)
        for row in self._tx.iterate_rows(_SELECT_UNSETTLED_MAIL, (first, last, *position)):
            if not self.has_capacity_for(row[:2]):
                return
            self._insert_row((*row, sender))

    def offer_unordered(self, mailbox: int) -> None:
        """Add the unordered messages of a mailbox."""
        *position, _ = self._after
        for query in _UNORDERED_QUERIES:
            for row in self._tx.fetch_all(query, (mailbox, *position, self._limit)):
                self._insert_row(row)

    def _insert_row(self, row: Row) -> None:
        insort(self.rows, row, key=_rank_and_arrival)
        del self.rows[self._limit :]

    def has_capacity_for(self, position: Row) -> bool:
        return len(self.rows) < self._limit or position < self.rows[-1][:2]


def list_unsettled_mail(tx: Tx, mailbox: str, limit: int) -> list[UnsettledMail]:
    """Mail that waits or is leased, in the order it is handed out, with its payloads."""
    rows = tx.fetch_all(_SELECT_WITH_PAYLOAD, (find_mailbox(tx, mailbox), limit))
    return [UnsettledMail(*row) for row in rows]


def peek_mailbox(tx: Tx, mailbox: int, limit: int, after: str = "") -> list[Summary]:
    """Return unsettled mail in the order it is handed out.

    `after` is the msg_id the previous page ended with.
    """
    page = PeekPage(tx, limit, _page_position(tx, mailbox, after) if after else _FIRST_POSITION)
    page.offer_unordered(mailbox)
    for sender, first, last, pair, behind in tx.iterate_rows(_SELECT_LEASED_PAIRS, (mailbox,)):
        page.offer_span((sender, first, last))
        page.offer_span((sender, behind, last_mail_id(pair)))
    for sender, head, pair, *position in tx.iterate_rows(_SELECT_QUEUED_PAIRS, (mailbox,)):
        if not page.has_capacity_for(tuple(position)):
            break
        page.offer_span((sender, head, last_mail_id(pair)))
    for sender, head, pair, *position in tx.iterate_rows(_SELECT_BACKING_OFF_PAIRS, (mailbox,)):
        if page.has_capacity_for(tuple(position)):
            page.offer_span((sender, head, last_mail_id(pair)))
    return [_summarize_row(row) for row in page.rows]


def _page_position(tx: Tx, mailbox: int, msg_id: str) -> Row:
    row = tx.fetch_one(_SELECT_POSITION, (mailbox, msg_id))
    if row is None:
        raise UnknownMessage(f"no message {msg_id} in this mailbox")
    return row


def _summarize_row(row: Row) -> Summary:
    _, _, id, msg_id, created_at, attempt, state, size, not_before, meta, sender = row
    due_at = not_before // 1000 if not_before or state == MailState.NACKED else None
    return Summary(
        msg_id,
        sender,
        created_at // 1000,
        attempt,
        MailState(state).wire_name,
        size,
        due_at,
        "none" if is_unordered(id) else "fifo",
        subject_of(meta),
    )


def subject_of(meta: bytes | None) -> str | None:
    """The subject of tracked mail, if it has one."""
    return None if meta is None else _decode_subject(meta).subject


def mailbox_counts(tx: Tx) -> list[Row]:
    """Return (name, waiting, in flight, dead letters, order) of every mailbox."""
    return tx.fetch_all(
        "SELECT name, waiting, in_flight, dead, iif(ordered, 'fifo', 'none') FROM mailbox"
        " ORDER BY name"
    )
