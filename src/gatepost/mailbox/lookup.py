"""Look up one mail, pair or mailbox without changing it.

The constants are conditions for the SQL of other modules; each names its parameters in braces.
"""

from typing import NamedTuple

from gatepost.journal.transaction import Tx
from gatepost.mailbox.enqueue import PAIR_NUMBER_BITS
from gatepost.mailbox.states import MailState

_OF_MAILBOX = "FROM mail m JOIN mailbox b ON b.id = m.mailbox"
# Whether the mail `{mail}` is in the mailbox `{mailbox}`.
IS_MAIL_OF_SQL = f"EXISTS (SELECT 1 {_OF_MAILBOX} WHERE m.id = {{mail}} AND b.name = {{mailbox}})"
# Whether the mailbox `{mailbox}` has mail `{msg_id}` that is not settled.
IS_UNSETTLED_SQL = f"""EXISTS (
    SELECT 1 {_OF_MAILBOX}
    WHERE b.name = {{mailbox}} AND m.msg_id = {{msg_id}} AND m.state < {MailState.ACKED:d}
)"""
# Whether the payload of the mail `{mail}` is still kept.
HAS_BODY_SQL = "EXISTS (SELECT 1 FROM body WHERE body.id = {mail})"
# Whether mail of the mailbox `{mailbox}` is ordered by default; NULL if there is no mailbox.
IS_ORDERED_SQL = "(SELECT ordered FROM mailbox WHERE name = {mailbox})"

_SELECT_MAIL = f"""
SELECT m.state, m.attempt, m.settled_at, m.not_before, d.failed_at, d.reason, l.consumer
{_OF_MAILBOX} LEFT JOIN dead_letter d ON d.id = m.id
LEFT JOIN lease l ON l.slot IN (m.id, m.id >> {PAIR_NUMBER_BITS}) AND l.id = m.lease
WHERE b.name = ? AND m.msg_id = ?
"""
_SELECT_MAIL_ID = f"SELECT m.id {_OF_MAILBOX} WHERE b.name = ? AND m.msg_id = ?"
_SELECT_TERMS = "SELECT expires_at, not_before, max_retries FROM mail WHERE id = ?"
_SELECT_META = "SELECT meta FROM body WHERE id = ?"
_SELECT_PAIR = """
SELECT p.sender, b.name FROM pair p JOIN mailbox b ON b.id = p.mailbox WHERE p.id = ?
"""
_SELECT_WAITING = "SELECT waiting FROM mailbox WHERE name = ?"
_SELECT_NAME_IF_WAITING = "SELECT name FROM mailbox WHERE waiting > 0 AND id = ?"
_SELECT_ANY_WAITING = "SELECT id FROM mailbox WHERE waiting > 0 LIMIT 1"


class MailRecord(NamedTuple):
    """The state of a mail. `consumer` has leased it; `reason` is why it is a dead letter."""

    state: MailState
    attempt: int
    settled_at: int | None
    not_before: int | None
    failed_at: int | None
    reason: str | None
    consumer: str | None


class MailTerms(NamedTuple):
    expires_at: int
    not_before: int
    max_retries: int | None


def find_mail(tx: Tx, mailbox: str, msg_id: str) -> MailRecord | None:
    row = tx.fetch_one(_SELECT_MAIL, (mailbox, msg_id))
    return None if row is None else MailRecord(MailState(row[0]), *row[1:])


def find_mail_id(tx: Tx, mailbox: str, msg_id: str) -> int | None:
    row = tx.fetch_one(_SELECT_MAIL_ID, (mailbox, msg_id))
    return None if row is None else int(row[0])


def mail_terms(tx: Tx, mail: int) -> MailTerms:
    (row,) = tx.fetch_all(_SELECT_TERMS, (mail,))
    return MailTerms(*row)


def find_meta(tx: Tx, mail: int) -> bytes | None:
    """The description of tracked mail; None if the mail is not tracked, or is forgotten."""
    row = tx.fetch_one(_SELECT_META, (mail,))
    return None if row is None else row[0]


def pair_ends(tx: Tx, pair: int) -> tuple[str, str]:
    """(sender, mailbox) of a pair."""
    ((sender, mailbox),) = tx.fetch_all(_SELECT_PAIR, (pair,))
    return sender, mailbox


def count_waiting(tx: Tx, mailbox: str) -> int:
    """The mail of a mailbox that is not leased; 0 if there is no such mailbox."""
    row = tx.fetch_one(_SELECT_WAITING, (mailbox,))
    return int(row[0]) if row else 0


def name_if_waiting(tx: Tx, mailbox: int) -> str | None:
    """The name of a mailbox in which mail waits; None if none does."""
    row = tx.fetch_one(_SELECT_NAME_IF_WAITING, (mailbox,))
    return None if row is None else row[0]


def find_waiting_mailbox(tx: Tx) -> int | None:
    """Any mailbox in which mail waits."""
    row = tx.fetch_one(_SELECT_ANY_WAITING)
    return None if row is None else int(row[0])
