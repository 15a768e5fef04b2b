"""A journal that came back from a backup: a new incarnation, in which nothing is done twice.

Since the backup the gateway may have done anything, and nobody can tell. So mail that waits or is
in flight becomes dead letters, and its senders are told. Events that were taken and not accepted
are handed back to their sender's judgement. The owners of open deliveries are asked about them, and
nothing is sent again. Invites, sessions and tickets are void. The rules are in
`gatepost.delivery.incarnations`.
"""

from gatepost.delivery.assembly import DeliveryCore
from gatepost.delivery.outbox_writer import RESTORED
from gatepost.delivery.recover import doubt_open
from gatepost.delivery.release import disown_undecided
from gatepost.journal.audit import record_audit_entry
from gatepost.journal.facts import save_fact
from gatepost.journal.incarnations import add_restored_incarnation
from gatepost.journal.transaction import Tx
from gatepost.mailbox.dead_letters import purge_mailbox
from gatepost.mailbox.leases import Lease, release_lease

_SELECT_LAST_SEQ = "SELECT coalesce(max(last_seq), 0) FROM head"
# Each of these may have been used, or revoked, since the backup.
_VOID = (
    "UPDATE invite SET revoked_at = ? WHERE used_at IS NULL AND revoked_at IS NULL",
    "UPDATE agent_invite SET revoked_at = ? WHERE used_at IS NULL AND revoked_at IS NULL",
    "UPDATE agent_session SET revoked_at = ?, revoked_by = 'restore' WHERE revoked_at IS NULL",
    "UPDATE ticket SET used_at = ? WHERE used_at IS NULL",
)
# Pairs go on behind their last number, on any route: receivers need not wait for the others.
_RENEW_PAIRS = "UPDATE pair_seq SET node = '', base = last + 1, moving = 0"
# Readers may have heard of every event in the backup since it was made.
_FORGET_RESUMED = "DELETE FROM resuming"
_ASSUME_ALL_SENT = "UPDATE recipient SET sent_seq = max(sent_seq, last_seq)"
_DOUBT_UNDELIVERED = "UPDATE undelivered SET verdict = ? WHERE replayed_as IS NULL"
_SELECT_LEASES = f"SELECT {', '.join(Lease.__struct_fields__)} FROM lease"
_SELECT_MAILBOX = "SELECT id FROM mailbox WHERE waiting > 0 LIMIT 1"


def begin_incarnation(tx: Tx, incarnation: str, leap: int) -> int:
    """Begin a new incarnation; returns its first seq. `leap` is how far room versions jump."""
    ((last,),) = tx.fetch_all(_SELECT_LAST_SEQ)
    add_restored_incarnation(tx, incarnation, last + 1)
    for name, value in (("incarnation", incarnation), ("leap", leap), ("restored_at", tx.now)):
        save_fact(tx, name, value)
    tx.execute(_RENEW_PAIRS)
    tx.execute(_ASSUME_ALL_SENT)
    tx.execute(_FORGET_RESUMED)
    tx.execute(_DOUBT_UNDELIVERED, (RESTORED,))
    for sql in _VOID:
        tx.execute(sql, (tx.now,))
    record_audit_entry(
        tx, "restore", "journal.restore", incarnation, f"goes on with seq {last + 1}"
    )
    return int(last) + 1


def quarantine(tx: Tx, core: DeliveryCore, limit: int) -> int:
    """Take part of the unfinished work out of use; returns how much. Repeat it until that is 0.

    Only before anything else happens in the new incarnation: not even time may pass for it.
    """
    if buried := _bury_mail(tx, core, limit):
        return buried
    count, decisions = disown_undecided(core.parts, tx)
    if not count:
        count, decisions = doubt_open(core.parts, tx, limit)
    core.coordinator.apply_decisions(tx, decisions)
    return count


def _bury_mail(tx: Tx, core: DeliveryCore, limit: int) -> int:
    for row in tx.fetch_all(_SELECT_LEASES):
        release_lease(tx, Lease(*row))
    mailbox = tx.fetch_one(_SELECT_MAILBOX)
    if mailbox is None:
        return 0
    size, closed = purge_mailbox(tx, mailbox[0], limit, "restore", RESTORED)
    core.coordinator.end_turns(tx, closed)
    return size


def count_quarantined(tx: Tx) -> tuple[int, int]:
    """(dead letters the restore made, deliveries that are in doubt)"""
    dead = "SELECT count(*) FROM dead_letter WHERE reason = ? AND replayed_as IS NULL"
    doubt = "SELECT count(*) FROM delivery WHERE processed_at IS NULL"
    ((size,),), ((open_,),) = tx.fetch_all(dead, (RESTORED,)), tx.fetch_all(doubt)
    return int(size), int(open_)
