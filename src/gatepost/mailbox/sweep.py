"""Time-driven changes: leases time out, waiting mail expires, old mail is forgotten."""

from collections import Counter

from gatepost.journal.facts import find_fact, save_fact
from gatepost.journal.transaction import Tx
from gatepost.journal.transition_sql import is_in_states
from gatepost.mailbox import leases
from gatepost.mailbox.enqueue import (
    IS_UNORDERED,
    PAIR_NUMBER_BITS,
    is_unordered,
    last_unordered_id,
    pair_of_mail,
)
from gatepost.mailbox.leases import LEASE_COLUMNS, Lease
from gatepost.mailbox.policy import MailboxPolicy
from gatepost.mailbox.settle import ClosedMail, FailedTurn, Settlement, fail_head
from gatepost.mailbox.states import MailInput, MailState, transition_sql

# Limit of each kind of change per commit group; the rest is due at once in the next group.
SWEEP_BATCH = 1000
# The name of the fact that holds the position, by time and id, through which bodies are deleted.
_BODIES_FORGOTTEN = "bodies_forgotten"

_SET_EXPIRED, _IF_WAITING = transition_sql(MailInput.EXPIRE)

_SELECT_TIMED_OUT_LEASES = f"""
SELECT {LEASE_COLUMNS} FROM lease WHERE expires_at <= ? ORDER BY expires_at, slot LIMIT ?
"""
_SELECT_LATE_MAIL = f"""
SELECT id, mailbox, msg_id, tracked FROM mail
WHERE expires_at <= ? AND {_IF_WAITING} ORDER BY expires_at, id LIMIT ?
"""
_EXPIRE_MAIL = f"UPDATE mail SET {_SET_EXPIRED}, settled_at = ? WHERE id = ? AND {_IF_WAITING}"
_SELECT_PAIR_START = """
SELECT p.head, l.behind FROM pair p LEFT JOIN lease l ON l.slot = p.id WHERE p.id = ?
"""
_PROMOTE_PAIRS = """
UPDATE pair SET ready_at = 0
WHERE id IN (SELECT id FROM pair WHERE ready_at > 0 AND ready_at <= ? ORDER BY ready_at LIMIT ?)
RETURNING mailbox
"""
_IF_DELAYED = f"{_IF_WAITING} AND {IS_UNORDERED} AND not_before > 0"
_PROMOTE_UNORDERED = f"""
UPDATE mail SET not_before = 0 WHERE id IN (
    SELECT id FROM mail INDEXED BY mail_retry WHERE {_IF_DELAYED} AND not_before <= ?
    ORDER BY not_before LIMIT ?
) RETURNING mailbox
"""
# Backoffs only: mail that its sender delayed is due at its time of day.
_SELECT_PAIR_BACKOFFS = f"""
SELECT p.head, p.ready_at, m.attempt FROM pair p JOIN mail m ON m.id = p.head
WHERE p.ready_at > ? AND m.state = {MailState.NACKED:d}
"""
_SELECT_UNORDERED_BACKOFFS = f"""
SELECT id, not_before, attempt FROM mail INDEXED BY mail_retry
WHERE {_IF_DELAYED} AND not_before > ? AND state = {MailState.NACKED:d}
"""
_NEXT_EXPIRY = f"SELECT expires_at FROM mail WHERE {_IF_WAITING} ORDER BY expires_at LIMIT 1"
_NEXT_TIMEOUT = "SELECT min(expires_at) FROM lease"
_NEXT_PAIR = "SELECT min(ready_at) FROM pair WHERE ready_at > 0"
_NEXT_UNORDERED = f"SELECT min(not_before) FROM mail INDEXED BY mail_retry WHERE {_IF_DELAYED}"
_SELECT_NEXT_DUE = (
    f"SELECT ({_NEXT_EXPIRY}), ({_NEXT_TIMEOUT}), ({_NEXT_PAIR}), ({_NEXT_UNORDERED})"
)

_FORGETTABLE = is_in_states((MailState.ACKED, MailState.EXPIRED))
_SELECT_SETTLED = f"""
SELECT settled_at, id FROM mail
WHERE settled_at >= ? AND (settled_at > ? OR id > ?) AND settled_at <= ? AND {_FORGETTABLE}
ORDER BY settled_at, id LIMIT ?
"""
_SELECT_DISCARDED = "SELECT id FROM discarded WHERE at <= ? ORDER BY at LIMIT ?"
_DROP_PAIR = """
DELETE FROM pair WHERE id = ?1 AND head IS NULL
AND NOT EXISTS (SELECT 1 FROM mail WHERE id BETWEEN ?2 AND ?3)
"""


def next_due(tx: Tx) -> int | None:
    """When the next lease, mail, backoff or delay ends; None if there is none."""
    ((*found,),) = tx.fetch_all(_SELECT_NEXT_DUE)
    return min((moment for moment in found if moment is not None), default=None)


def time_out_leases(tx: Tx, policy: MailboxPolicy) -> list[tuple[int, Settlement]]:
    """Nack the head of each lease that ran out; return (mailbox, settlement) for each lease."""
    results = []
    for row in tx.fetch_all(_SELECT_TIMED_OUT_LEASES, (tx.now, SWEEP_BATCH)):
        lease, result = Lease(*row), Settlement()
        fail_head(tx, lease, FailedTurn("not acked in time"), policy, result)
        results.append((lease.mailbox, result))
    return results


def expire_mail(tx: Tx) -> tuple[set[int], list[ClosedMail]]:
    """Expire waiting mail past its TTL; return the affected mailboxes and the closed messages."""
    rows = tx.fetch_all(_SELECT_LATE_MAIL, (tx.now, SWEEP_BATCH))
    tx.execute_many(_EXPIRE_MAIL, [(tx.now, row[0]) for row in rows])
    for mailbox, size in Counter(row[1] for row in rows).items():
        leases.adjust_counts(tx, mailbox, -size, 0)
    _skip_expired(tx, {row[0] for row in rows})
    reason = "nobody took it in time"
    closed = [ClosedMail(row[-2], "expired", row[0], reason) for row in rows if row[-1]]
    return {row[1] for row in rows}, closed


def _skip_expired(tx: Tx, gone: set[int]) -> None:
    """Advance the pairs whose head, or first message behind a lease, has expired."""
    for pair in {pair_of_mail(id) for id in gone if not is_unordered(id)}:
        ((head, behind),) = tx.fetch_all(_SELECT_PAIR_START, (pair,))
        if head in gone:
            leases.advance_head(tx, pair, head)
        elif behind in gone:
            while behind in gone:
                behind += 1
            tx.execute("UPDATE lease SET behind = ? WHERE slot = ?", (behind, pair))


def promote_mail(tx: Tx) -> set[int]:
    """Make mail ready whose backoff or delay is over; return its mailboxes."""
    rows = tx.fetch_all(_PROMOTE_PAIRS, (tx.now, SWEEP_BATCH))
    rows += tx.fetch_all(_PROMOTE_UNORDERED, (tx.now, SWEEP_BATCH))
    return {row[0] for row in rows}


def cap_deadlines(tx: Tx, policy: MailboxPolicy) -> None:
    """After the clock went back, cap each lease and backoff at now + its full length."""
    latest_timeout = tx.now + policy.inflight_timeout
    tx.execute("UPDATE lease SET expires_at = ?1 WHERE expires_at > ?1", (latest_timeout,))
    backoffs = tx.fetch_all(_SELECT_PAIR_BACKOFFS, (tx.now,))
    backoffs += tx.fetch_all(_SELECT_UNORDERED_BACKOFFS, (tx.now,))
    for mail, retry_at, attempt in backoffs:
        latest = tx.now + policy.backoff_after(attempt - 1)
        if retry_at > latest:
            tx.execute(
                "UPDATE pair SET ready_at = ? WHERE head = ? AND id = ?",
                (latest, mail, pair_of_mail(mail)),
            )
            tx.execute("UPDATE mail SET not_before = ? WHERE id = ?", (latest, mail))


def forget_settled_mail(tx: Tx, bodies_before: int, rows_before: int, batch: int) -> int:
    """Delete the bodies of mail settled before one time, and the rows before an earlier one.

    A row outlives every retry of its sender, so that a repeated msg_id is always recognized. Dead
    letters keep both until a person discards them. Returns the number of deletions.
    """
    return _forget_bodies(tx, bodies_before, batch) + _forget_rows(tx, rows_before, batch)


def _forget_bodies(tx: Tx, before: int, batch: int) -> int:
    position = find_fact(tx, _BODIES_FORGOTTEN)
    at, id = map(int, position.split()) if position else (-1, -1)
    rows = tx.fetch_all(_SELECT_SETTLED, (at, at, id, before, batch))
    tx.execute_many("DELETE FROM body WHERE id = ?", [(id,) for _, id in rows])
    if rows:
        save_fact(tx, _BODIES_FORGOTTEN, f"{rows[-1][0]} {rows[-1][1]}")
    return len(rows)


def _forget_rows(tx: Tx, before: int, batch: int) -> int:
    ids = [(id,) for _, id in tx.fetch_all(_SELECT_SETTLED, (-1, -1, -1, before, batch))]
    ids += tx.fetch_all(_SELECT_DISCARDED, (before, batch))
    tx.execute_many("DELETE FROM body WHERE id = ?", ids)
    tx.execute_many("DELETE FROM discarded WHERE id = ?", ids)
    tx.execute_many("DELETE FROM mail WHERE id = ?", ids)
    _drop_pairs(tx, {pair_of_mail(id) for (id,) in ids})
    return len(ids)


def _drop_pairs(tx: Tx, pairs: set[int]) -> None:
    """Delete pairs that have no mail left; the next message of such a sender starts a new pair."""
    spans = ((pair, pair << PAIR_NUMBER_BITS, last_unordered_id(pair)) for pair in pairs)
    tx.execute_many(_DROP_PAIR, spans)
