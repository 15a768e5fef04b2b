"""Dead letters: kept until a person replays or discards them; each such action is audited."""

from collections.abc import Callable, Iterator

from msgspec import Raw, Struct

from gatepost.errors import UnknownMessage
from gatepost.events.reserved_names import SenderName
from gatepost.journal.audit import record_audit_entry
from gatepost.journal.conditions import (
    FilterCondition,
    join_conditions,
    optional_millis,
    optional_value,
)
from gatepost.journal.transaction import Row, Tx
from gatepost.mailbox.browse import subject_of
from gatepost.mailbox.enqueue import (
    FIRST_UNORDERED,
    IS_UNORDERED,
    PAIR_NUMBER_BITS,
    is_unordered,
    last_mail_id,
)
from gatepost.mailbox.leases import adjust_counts, advance_head
from gatepost.mailbox.settle import INSERT_DEAD_LETTER, ClosedMail
from gatepost.mailbox.states import MailInput, transition_sql
from gatepost.wire.operations import DeadLetter, EnqueueAck, MsgIds, Reason, Seconds

_SET_DEAD, _IF_WAITING = transition_sql(MailInput.PURGE)

_SELECT_DEAD_LETTERS = f"""
SELECT m.msg_id, p.sender, b.name, m.created_at / 1000, m.attempt, d.reason, d.failed_at / 1000,
       d.attempts, body.payload, d.replayed_as, m.id, body.meta, m.max_retries
FROM dead_letter d JOIN mail m ON m.id = d.id JOIN mailbox b ON b.id = m.mailbox
     JOIN pair p ON p.id = m.id >> {PAIR_NUMBER_BITS} JOIN body ON body.id = d.id
"""
_PAYLOAD, _REPLAYED_AS, _ID, _META, _MAX_RETRIES = range(8, 13)
# Both select pairs and the id at which their waiting mail begins.
_SELECT_HEADED_PAIRS = (
    "SELECT id, head FROM pair WHERE mailbox = ? AND ready_at IS NOT NULL LIMIT ?"
)
_SELECT_LEASED_PAIRS = f"""
SELECT slot, behind FROM lease WHERE mailbox = ? AND NOT next & {FIRST_UNORDERED}
"""
_SELECT_WAITING_MAIL = f"""
SELECT id, attempt, msg_id, tracked FROM mail
WHERE id BETWEEN ? AND ? AND {_IF_WAITING} ORDER BY id LIMIT ?
"""
_SELECT_WAITING_UNORDERED = f"""
SELECT id, attempt, msg_id, tracked FROM mail INDEXED BY mail_queue
WHERE mailbox = ? AND {_IF_WAITING} AND {IS_UNORDERED} ORDER BY not_before, rank, arrival LIMIT ?
"""
_PURGE_MAIL = f"""
UPDATE mail SET {_SET_DEAD}, settled_at = ? WHERE id BETWEEN ? AND ? AND {_IF_WAITING}
"""

# Enqueues the content of a dead letter again; the last argument is the meta of its event, if any.
ResendCallback = Callable[[Tx, DeadLetter, bytes | None], EnqueueAck]


class DeadLetterFilter(Struct, forbid_unknown_fields=True):
    """Selects dead letters: all given conditions must hold; without conditions it matches all."""

    msg_ids: MsgIds | None = None
    sender: SenderName | None = None
    reason_contains: Reason | None = None
    failed_after: Seconds | None = None
    failed_before: Seconds | None = None
    replayed: bool | None = None

    def where_clause(self, mailbox: int) -> tuple[str, list[object]]:
        return join_conditions(
            [
                self._msg_id_condition(mailbox),
                ("p.sender = ?", optional_value(self.sender)),
                ("instr(d.reason, ?)", optional_value(self.reason_contains)),
                ("d.failed_at > ?", optional_millis(self.failed_after)),
                ("d.failed_at < ?", optional_millis(self.failed_before)),
                ("(d.replayed_as IS NOT NULL) = ?", optional_value(self.replayed)),
            ]
        )

    def _msg_id_condition(self, mailbox: int) -> FilterCondition:
        marks = ", ".join("?" * len(self.msg_ids or ()))
        sql = f"d.id IN (SELECT id FROM mail WHERE mailbox = ? AND msg_id IN ({marks}))"
        return sql, None if self.msg_ids is None else [mailbox, *self.msg_ids]


def find_dead_letters(
    tx: Tx, mailbox: int, wanted: DeadLetterFilter, limit: int, after: str = ""
) -> list[DeadLetter]:
    """Return dead letters, oldest first; `after` is the msg_id the previous page ended with."""
    return [_dead_letter(row) for row in _select_rows(tx, mailbox, wanted, limit, after)]


def _select_rows(
    tx: Tx, mailbox: int, wanted: DeadLetterFilter, limit: int, after: str = ""
) -> list[Row]:
    sql, values = wanted.where_clause(mailbox)
    start = _page_position(tx, mailbox, after) if after else (-1, -1)
    # The plus keeps SQLite from scanning all dead letters when only a few are named.
    in_mailbox = "d.mailbox = ?" if wanted.msg_ids is None else "+d.mailbox = ?"
    query = f"""{_SELECT_DEAD_LETTERS} WHERE {in_mailbox} AND (d.failed_at, d.id) > (?, ?){sql}
                ORDER BY d.failed_at, d.id LIMIT ?"""
    return tx.fetch_all(query, (mailbox, *start, *values, limit))


def _page_position(tx: Tx, mailbox: int, msg_id: str) -> Row:
    """Return the position of a dead letter, even if it was discarded since."""
    query = "SELECT settled_at, id FROM mail WHERE mailbox = ? AND msg_id = ?"
    row = tx.fetch_one(query, (mailbox, msg_id))
    if row is None or row[0] is None:
        raise UnknownMessage(f"no dead letter {msg_id} in this mailbox")
    return row


def _dead_letter(row: Row) -> DeadLetter:
    letter = DeadLetter(*row[:_PAYLOAD])
    letter.payload, letter.replayed_as = Raw(row[_PAYLOAD]), row[_REPLAYED_AS]
    letter.order = "none" if is_unordered(row[_ID]) else "fifo"
    letter.max_retries, letter.subject = row[_MAX_RETRIES], subject_of(row[_META])
    return letter


def replay_dead_letters(
    tx: Tx, mailbox: int, wanted: DeadLetterFilter, limit: int, resend: ResendCallback, actor: str
) -> list[EnqueueAck]:
    """Send up to `limit` matching dead letters again, as new messages with new ids.

    The dead letter stays and records the msg_id of its replay.
    """
    acks: list[EnqueueAck] = []
    for row in _select_rows(tx, mailbox, wanted, limit):
        ack = resend(tx, _dead_letter(row), row[_META])
        acks.append(ack)
        if ack.error is None:
            tx.execute(
                "UPDATE dead_letter SET replayed_as = ? WHERE id = ?", (ack.msg_id, row[_ID])
            )
            record_audit_entry(tx, actor, "dead_letter.replay", row[0], f"as {ack.msg_id}")
    return acks


def discard_dead_letters(
    tx: Tx, mailbox: int, wanted: DeadLetterFilter, limit: int, actor: str
) -> int:
    """Delete dead letters and their payloads; their ids stay known."""
    rows = _select_rows(tx, mailbox, wanted, limit)
    for row in rows:
        tx.execute("DELETE FROM dead_letter WHERE id = ?", (row[_ID],))
        tx.execute("DELETE FROM body WHERE id = ?", (row[_ID],))
        tx.execute("INSERT INTO discarded (id, at) VALUES (?, ?)", (row[_ID], tx.now))
        record_audit_entry(tx, actor, "dead_letter.discard", row[0], row[5])
    adjust_counts(tx, mailbox, 0, 0, -len(rows))
    return len(rows)


def purge_mailbox(
    tx: Tx, mailbox: int, limit: int, actor: str, why: str = ""
) -> tuple[int, list[ClosedMail]]:
    """Turn up to `limit` waiting messages into dead letters; leased messages are left alone."""
    ((name, waiting),) = tx.fetch_all("SELECT name, waiting FROM mailbox WHERE id = ?", (mailbox,))
    limit = min(limit, waiting)
    reason = why or f"purged by {actor}"
    purged = _purge_unordered(tx, mailbox, limit, reason)
    for pair, first, leased in _waiting_pairs(tx, mailbox, limit):
        if len(purged) == limit:
            break
        rows = _purge_pair(tx, mailbox, pair, first, limit - len(purged), reason)
        if rows:
            _advance_pair(tx, pair, rows[-1][0] + 1, leased)
        purged += rows
    if purged:
        adjust_counts(tx, mailbox, -len(purged), 0, len(purged))
        record_audit_entry(tx, actor, "mailbox.purge", name, f"{len(purged)} messages")
    public_reason = why or "purged"
    closed = [
        ClosedMail(row[-2], "dead_letter", row[0], public_reason) for row in purged if row[-1]
    ]
    return len(purged), closed


def _waiting_pairs(tx: Tx, mailbox: int, limit: int) -> Iterator[tuple[int, int, bool]]:
    """Yield (pair, first id of its waiting mail, whether that is behind a lease)."""
    for pair, head in tx.fetch_all(_SELECT_HEADED_PAIRS, (mailbox, limit)):
        yield pair, head, False
    for pair, behind in tx.fetch_all(_SELECT_LEASED_PAIRS, (mailbox,)):
        yield pair, behind, True


def _purge_unordered(tx: Tx, mailbox: int, limit: int, reason: str) -> list[Row]:
    rows = tx.fetch_all(_SELECT_WAITING_UNORDERED, (mailbox, limit))
    tx.execute_many(_PURGE_MAIL, [(tx.now, row[0], row[0]) for row in rows])
    _insert_dead_letters(tx, mailbox, rows, reason)
    return rows


def _purge_pair(tx: Tx, mailbox: int, pair: int, first: int, limit: int, reason: str) -> list[Row]:
    rows = tx.fetch_all(_SELECT_WAITING_MAIL, (first, last_mail_id(pair), limit))
    if rows:
        tx.execute(_PURGE_MAIL, (tx.now, first, rows[-1][0]))
    _insert_dead_letters(tx, mailbox, rows, reason)
    return rows


def _insert_dead_letters(tx: Tx, mailbox: int, rows: list[Row], reason: str) -> None:
    tx.execute_many(
        INSERT_DEAD_LETTER, [(id, mailbox, reason, tx.now, attempt) for id, attempt, _, _ in rows]
    )


def _advance_pair(tx: Tx, pair: int, first: int, leased: bool) -> None:
    if leased:
        tx.execute("UPDATE lease SET behind = ? WHERE slot = ?", (first, pair))
    else:
        advance_head(tx, pair, first)
