"""A journal that came back from a backup: a new life, in which nothing is done twice.

Since the backup the gateway may have done anything, and nobody can tell. So mail that waits or is
in flight becomes dead letters, which its senders are told; what was taken and not accepted is
handed back to its sender's judgement; what was sent and is open is asked about, not sent again; and
everything that was good once is good no more.
"""

from gatepost.delivery.messages import Messages
from gatepost.delivery.sender import RESTORED
from gatepost.journal.audit import record_audit_entry
from gatepost.journal.transaction import Tx
from gatepost.mailbox.dead_letters import purge_mailbox
from gatepost.mailbox.leases import Lease, release_lease

_LAST = "SELECT coalesce(max(last_seq), 0) FROM head"
_FACTS = """
INSERT OR REPLACE INTO fact VALUES ('incarnation', ?), ('leap', ?), ('restored_at', ?)
"""
# What may have been used, or taken back, since the backup.
_VOID = (
    "UPDATE invite SET revoked_at = ? WHERE used_at IS NULL AND revoked_at IS NULL",
    "UPDATE agent_invite SET revoked_at = ? WHERE used_at IS NULL AND revoked_at IS NULL",
    "UPDATE agent_session SET revoked_at = ?, revoked_by = 'restore' WHERE revoked_at IS NULL",
    "UPDATE ticket SET used_at = ? WHERE used_at IS NULL",
)
# Pairs go on behind their last number, wherever they go: receivers need not wait for the others.
_PAIRS = "UPDATE pair_seq SET node = '', base = last + 1, moving = 0"
_LETTERS = "UPDATE undelivered SET verdict = ? WHERE replayed_as IS NULL"
_WAITING = "SELECT id FROM mailbox WHERE waiting > 0 LIMIT 1"


def begin(tx: Tx, incarnation: str, leap: int) -> int:
    """Begin a new life; returns its first seq. `leap` is how far versions in the room jump."""
    ((last,),) = tx.fetch_all(_LAST)
    # A life without events leaves no trace.
    tx.execute("DELETE FROM incarnation WHERE first_seq = ?", (last + 1,))
    tx.execute("INSERT INTO incarnation VALUES (?, ?)", (incarnation, last + 1))
    tx.execute(_FACTS, (incarnation, leap, tx.now))
    tx.execute(_PAIRS)
    tx.execute(_LETTERS, (RESTORED,))
    for sql in _VOID:
        tx.execute(sql, (tx.now,))
    record_audit_entry(
        tx, "restore", "journal.restore", incarnation, f"goes on with seq {last + 1}"
    )
    return int(last) + 1


def quarantine(tx: Tx, messages: Messages, limit: int) -> int:
    """Take a part of what is not settled out of use. Again and again, until it returns 0.

    Only before anything else happens in the new life: not even time may pass for it.
    """
    return (
        _bury_mail(tx, messages, limit)
        or messages.receiver.disown(tx)
        or messages.sender.doubt(tx, limit)
    )


def _bury_mail(tx: Tx, messages: Messages, limit: int) -> int:
    for row in tx.fetch_all("SELECT * FROM lease"):
        release_lease(tx, Lease(*row))
    mailbox = tx.fetch_one(_WAITING)
    if mailbox is None:
        return 0
    size, closed = purge_mailbox(tx, mailbox[0], limit, "restore", RESTORED)
    messages.close(tx, closed)
    return size


def counts(tx: Tx) -> tuple[int, int]:
    """(dead letters the restore made, deliveries that are in doubt)"""
    dead = "SELECT count(*) FROM dead_letter WHERE reason = ? AND replayed_as IS NULL"
    doubt = "SELECT count(*) FROM delivery WHERE processed_at IS NULL"
    ((size,),), ((open_,),) = tx.fetch_all(dead, (RESTORED,)), tx.fetch_all(doubt)
    return int(size), int(open_)
