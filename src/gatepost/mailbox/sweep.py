"""Time-driven changes: leases time out, waiting mail expires, old mail is forgotten."""

from collections import Counter

from gatepost.journal.tx import Tx
from gatepost.mailbox import lease as leases
from gatepost.mailbox.enqueue import NUMBER_BITS, pair_end, pair_of
from gatepost.mailbox.lease import Lease
from gatepost.mailbox.policy import Policy
from gatepost.mailbox.settle import Closed, Settlement, fail_head
from gatepost.mailbox.states import Input, State, move

# Limit of each kind of change per commit group; the rest is due at once in the next group.
BATCH = 1000

_SET_EXPIRED, _IF_WAITING = move(Input.EXPIRE)

_TIMED_OUT = "SELECT * FROM lease WHERE expires_at <= ? ORDER BY expires_at, pair LIMIT ?"
_LATE = f"""
SELECT id, mailbox, msg_id, tracked FROM mail
WHERE expires_at <= ? AND {_IF_WAITING} ORDER BY expires_at, id LIMIT ?
"""
_EXPIRE = f"UPDATE mail SET {_SET_EXPIRED}, settled_at = ? WHERE id = ? AND {_IF_WAITING}"
_START = """
SELECT p.head, l.behind FROM pair p LEFT JOIN lease l ON l.pair = p.id WHERE p.id = ?
"""
_PROMOTE = """
UPDATE pair SET ready_at = 0
WHERE id IN (SELECT id FROM pair WHERE ready_at > 0 AND ready_at <= ? ORDER BY ready_at LIMIT ?)
RETURNING mailbox
"""
_BACKING_OFF = """
SELECT p.id, p.head, p.ready_at, m.attempt FROM pair p JOIN mail m ON m.id = p.head
WHERE p.ready_at > ?
"""
_NEXT_EXPIRY = f"SELECT expires_at FROM mail WHERE {_IF_WAITING} ORDER BY expires_at LIMIT 1"
_NEXT_TIMEOUT = "SELECT min(expires_at) FROM lease"
_NEXT_RETRY = "SELECT min(ready_at) FROM pair WHERE ready_at > 0"
_NEXT = f"SELECT ({_NEXT_EXPIRY}), ({_NEXT_TIMEOUT}), ({_NEXT_RETRY})"

_FORGETTABLE = f"state IN ({State.ACKED:d}, {State.EXPIRED:d})"
_SETTLED = f"""
SELECT settled_at, id FROM mail
WHERE settled_at >= ? AND (settled_at > ? OR id > ?) AND settled_at <= ? AND {_FORGETTABLE}
ORDER BY settled_at, id LIMIT ?
"""
_DISCARDED = "SELECT id FROM discarded WHERE at <= ? ORDER BY at LIMIT ?"
_DROP_PAIR = """
DELETE FROM pair WHERE id = ?1 AND head IS NULL
AND NOT EXISTS (SELECT 1 FROM mail WHERE id BETWEEN ?2 AND ?3)
"""


def next_due(tx: Tx) -> int | None:
    """Return the next moment at which a lease, mail or backoff ends, or None."""
    ((*found,),) = tx.rows(_NEXT)
    return min((moment for moment in found if moment is not None), default=None)


def time_out(tx: Tx, policy: Policy) -> list[tuple[int, Settlement]]:
    """Nack the head of each lease that ran out; return (mailbox, settlement) for each lease."""
    results = []
    for row in tx.rows(_TIMED_OUT, (tx.now, BATCH)):
        lease, result = Lease(*row), Settlement()
        fail_head(tx, lease, "not acked in time", policy, result)
        results.append((lease.mailbox, result))
    return results


def expire(tx: Tx) -> tuple[set[int], list[Closed]]:
    """Expire waiting mail past its TTL; return the affected mailboxes and the closed messages."""
    rows = tx.rows(_LATE, (tx.now, BATCH))
    tx.many(_EXPIRE, [(tx.now, row[0]) for row in rows])
    for mailbox, size in Counter(row[1] for row in rows).items():
        leases.count(tx, mailbox, -size, 0)
    _close_ranks(tx, {row[0] for row in rows})
    reason = "nobody took it in time"
    closed = [Closed(row[-2], "expired", row[0], reason) for row in rows if row[-1]]
    return {row[1] for row in rows}, closed


def _close_ranks(tx: Tx, gone: set[int]) -> None:
    """Advance each pair whose head, or first message behind its lease, is one of these."""
    for pair in {pair_of(id) for id in gone}:
        ((head, behind),) = tx.rows(_START, (pair,))
        if head in gone:
            leases.find_head(tx, pair, head)
        elif behind in gone:
            while behind in gone:
                behind += 1
            tx.run("UPDATE lease SET behind = ? WHERE pair = ?", (behind, pair))


def promote(tx: Tx) -> set[int]:
    """Make pairs ready whose backoff is over; return their mailboxes."""
    return {row[0] for row in tx.rows(_PROMOTE, (tx.now, BATCH))}


def shorten(tx: Tx, policy: Policy) -> None:
    """The clock may have gone back: cap each backoff at now + its full length.

    Leases are not capped: if the clock went forward again, a live lease would run out early.
    """
    for pair, head, ready_at, attempt in tx.rows(_BACKING_OFF, (tx.now,)):
        latest = tx.now + policy.backoff(attempt - 1)
        if ready_at > latest:
            tx.run("UPDATE pair SET ready_at = ? WHERE id = ?", (latest, pair))
            tx.run("UPDATE mail SET not_before = ? WHERE id = ?", (latest, head))


def forget(tx: Tx, bodies_before: int, rows_before: int, batch: int) -> int:
    """Delete the bodies, and much later the rows, of mail settled before these times.

    A row outlives every retry of its sender, so that a repeated msg_id is always recognized. Dead
    letters keep both until a person discards them. Returns the number of deletions.
    """
    return _forget_bodies(tx, bodies_before, batch) + _forget_rows(tx, rows_before, batch)


def _forget_bodies(tx: Tx, before: int, batch: int) -> int:
    row = tx.one("SELECT value FROM fact WHERE name = 'bodies_forgotten'")
    at, id = map(int, row[0].split()) if row else (-1, -1)
    rows = tx.rows(_SETTLED, (at, at, id, before, batch))
    tx.many("DELETE FROM body WHERE id = ?", [(id,) for _, id in rows])
    if rows:
        position = f"{rows[-1][0]} {rows[-1][1]}"
        tx.run("INSERT OR REPLACE INTO fact VALUES ('bodies_forgotten', ?)", (position,))
    return len(rows)


def _forget_rows(tx: Tx, before: int, batch: int) -> int:
    ids = [(id,) for _, id in tx.rows(_SETTLED, (-1, -1, -1, before, batch))]
    ids += tx.rows(_DISCARDED, (before, batch))
    tx.many("DELETE FROM body WHERE id = ?", ids)
    tx.many("DELETE FROM discarded WHERE id = ?", ids)
    tx.many("DELETE FROM mail WHERE id = ?", ids)
    _drop_pairs(tx, {pair_of(id) for (id,) in ids})
    return len(ids)


def _drop_pairs(tx: Tx, pairs: set[int]) -> None:
    """Delete pairs that have no mail left; the next message of such a sender starts a new pair."""
    spans = ((pair, pair << NUMBER_BITS, pair_end(pair)) for pair in pairs)
    tx.many(_DROP_PAIR, spans)
