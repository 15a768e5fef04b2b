"""Starting on a journal from a backup: a new incarnation that does nothing twice.

What the gateway did after the backup is unknown. So mail that waits or is in flight becomes dead
letters, and its senders are told. Events that were taken and not accepted are handed back to their
sender's judgement. The owners of open deliveries are asked about them, and nothing is sent again.
Invites, sessions and tickets are void. The rules are in `gatepost.delivery.incarnations`.
"""

from gatepost.access.retention import void_credentials
from gatepost.delivery.assembly import DeliveryCore
from gatepost.delivery.delivery_reads import count_open
from gatepost.delivery.inbox.resuming import forget_resumed
from gatepost.delivery.outbox_writer import RESTORED
from gatepost.delivery.recover import doubt_open
from gatepost.delivery.release import disown_undecided
from gatepost.journal.audit import record_audit_entry
from gatepost.journal.facts import save_fact
from gatepost.journal.incarnations import add_restored_incarnation
from gatepost.journal.outbox_reads import last_seq
from gatepost.journal.recipients import assume_all_sent
from gatepost.journal.transaction import Tx
from gatepost.mailbox.counts import count_unreplayed
from gatepost.mailbox.dead_letters import purge_mailbox
from gatepost.mailbox.leases import release_all_leases
from gatepost.mailbox.lookup import find_waiting_mailbox

# Pairs continue after their last number, on any route; receivers do not wait for earlier ones.
_RENEW_PAIRS = "UPDATE pair_seq SET node = '', base = last + 1, moving = 0"
_DOUBT_UNDELIVERED = "UPDATE undelivered SET verdict = ? WHERE replayed_as IS NULL"


def begin_incarnation(tx: Tx, incarnation: str, leap: int) -> int:
    """Begin a new incarnation; returns its first seq. `leap` is how far room versions jump."""
    last = last_seq(tx)
    add_restored_incarnation(tx, incarnation, last + 1)
    for name, value in (("incarnation", incarnation), ("leap", leap), ("restored_at", tx.now)):
        save_fact(tx, name, value)
    tx.execute(_RENEW_PAIRS)
    assume_all_sent(tx)
    forget_resumed(tx)
    tx.execute(_DOUBT_UNDELIVERED, (RESTORED,))
    void_credentials(tx)
    record_audit_entry(
        tx, "restore", "journal.restore", incarnation, f"goes on with seq {last + 1}"
    )
    return last + 1


def quarantine(tx: Tx, core: DeliveryCore, limit: int) -> int:
    """Take part of the unfinished work out of use; returns how much. Repeat it until that is 0.

    Do this before anything else happens in the new incarnation, even timers.
    """
    if buried := _bury_mail(tx, core, limit):
        return buried
    count, decisions = disown_undecided(core.parts, tx)
    if not count:
        count, decisions = doubt_open(core.parts, tx, limit)
    core.coordinator.apply_decisions(tx, decisions)
    return count


def _bury_mail(tx: Tx, core: DeliveryCore, limit: int) -> int:
    release_all_leases(tx)
    mailbox = find_waiting_mailbox(tx)
    if mailbox is None:
        return 0
    size, closed = purge_mailbox(tx, mailbox, limit, "restore", RESTORED)
    core.coordinator.end_turns(tx, closed)
    return size


def count_quarantined(tx: Tx) -> tuple[int, int]:
    """(dead letters the restore made, deliveries that are in doubt)"""
    return count_unreplayed(tx, RESTORED), count_open(tx)
