"""Counts of mailboxes and of the mail in them, for limits and alerts."""

from gatepost.journal.transaction import Tx


def count_mailboxes(tx: Tx) -> int:
    ((count,),) = tx.fetch_all("SELECT count(*) FROM mailbox")
    return int(count)


def has_mail(tx: Tx, name: str) -> bool:
    """Whether a mailbox has mail that waits or is leased."""
    sql = "SELECT 1 FROM mailbox WHERE name = ? AND waiting + in_flight > 0"
    return tx.fetch_one(sql, (name,)) is not None


def mailbox_levels(tx: Tx) -> dict[str, int]:
    """Mailbox → the mail that waits or is leased, of those that have any."""
    sql = "SELECT name, waiting + in_flight FROM mailbox WHERE waiting + in_flight > 0"
    return {row[0]: row[1] for row in tx.fetch_all(sql)}


def mail_totals(tx: Tx) -> tuple[int, int]:
    """(waiting, in flight) of all mailboxes together."""
    sql = "SELECT coalesce(sum(waiting), 0), coalesce(sum(in_flight), 0) FROM mailbox"
    ((waiting, in_flight),) = tx.fetch_all(sql)
    return int(waiting), int(in_flight)


def count_dead_letters(tx: Tx) -> int:
    ((count,),) = tx.fetch_all("SELECT count(*) FROM dead_letter")
    return int(count)


def count_open_dead_letters(tx: Tx) -> int:
    """The dead letters that were not replayed."""
    ((count,),) = tx.fetch_all("SELECT count(*) FROM dead_letter WHERE replayed_as IS NULL")
    return int(count)


def count_unreplayed(tx: Tx, reason: str) -> int:
    """The dead letters with this reason that were not replayed."""
    sql = "SELECT count(*) FROM dead_letter WHERE reason = ? AND replayed_as IS NULL"
    ((count,),) = tx.fetch_all(sql, (reason,))
    return int(count)
