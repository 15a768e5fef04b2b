"""What time does to mail: leases run out, waiting mail expires, old mail is forgotten."""

from gatepost.journal.tx import Tx
from gatepost.mailbox import lease as leases
from gatepost.mailbox.enqueue import NUMBER_BITS
from gatepost.mailbox.lease import Lease
from gatepost.mailbox.policy import Policy
from gatepost.mailbox.settle import Closed, Settlement, fail_head
from gatepost.mailbox.states import Input, State, move

_, _IF_WAITING = move(Input.EXPIRE)

_LATE = f"""
SELECT id, mailbox, msg_id, tracked FROM mail
WHERE expires_at <= ? AND {_IF_WAITING} ORDER BY expires_at LIMIT ?
"""
_HEAD_OF = "SELECT id FROM pair WHERE head = ? AND id = ?"
_NEXT_EXPIRY = f"SELECT expires_at FROM mail WHERE {_IF_WAITING} ORDER BY expires_at LIMIT 1"
_NEXT_TIMEOUT = "SELECT min(expires_at) FROM lease"
_NEXT_RETRY = "SELECT min(ready_at) FROM pair WHERE ready_at > ?"

_FORGETTABLE = f"state IN ({State.ACKED:d}, {State.EXPIRED:d})"
_BATCH_END = f"""
SELECT settled_at FROM mail WHERE settled_at > ? AND settled_at <= ? AND {_FORGETTABLE}
ORDER BY settled_at LIMIT 1 OFFSET ?
"""
_SETTLED = f"SELECT id FROM mail WHERE settled_at > ? AND settled_at <= ? AND {_FORGETTABLE}"


def next_due(tx: Tx) -> int | None:
    """The next moment at which time alone changes something."""
    found = (tx.one(_NEXT_EXPIRY), tx.one(_NEXT_TIMEOUT), tx.one(_NEXT_RETRY, (tx.now,)))
    return min((row[0] for row in found if row and row[0] is not None), default=None)


def ready_since(tx: Tx, since: int) -> set[int]:
    """Mailboxes with a pair whose backoff ended after `since`."""
    query = "SELECT DISTINCT mailbox FROM pair WHERE ready_at > ? AND ready_at <= ?"
    return {row[0] for row in tx.rows(query, (since, tx.now))}


def time_out(tx: Tx, policy: Policy) -> list[tuple[int, Settlement]]:
    """Nack what stayed in flight too long. (mailbox, what it did) for each lease."""
    query = "SELECT * FROM lease WHERE expires_at <= ? ORDER BY expires_at LIMIT 1000"
    results = []
    for row in tx.rows(query, (tx.now,)):
        lease, result = Lease(*row), Settlement()
        fail_head(tx, lease, "not acked in time", policy, result)
        results.append((lease.mailbox, result))
    return results


def expire(tx: Tx, batch: int) -> list[Closed]:
    """Expire waiting mail past its time, at most `batch` messages at once."""
    rows = tx.rows(_LATE, (tx.now, batch))
    for id, mailbox, _, _ in rows:
        leases.expire(tx, mailbox, [id])
        if tx.one(_HEAD_OF, (id, id >> NUMBER_BITS)):
            leases.find_head(tx, id >> NUMBER_BITS, id + 1)
    return [Closed(msg_id, "expired", "nobody took it in time") for *_, msg_id, t in rows if t]


def forget(tx: Tx, bodies_before: int, rows_before: int, batch: int) -> int:
    """Drop bodies, and much later rows, of mail settled before these times.

    A row outlives every retry of its sender, so its msg_id is refused as long as it can come
    again. Dead letters keep both until somebody discards them.
    """
    start = _bodies_forgotten(tx)
    end = _batch_end(tx, start, bodies_before, batch)
    tx.run(f"DELETE FROM body WHERE id IN ({_SETTLED})", (start, end))
    gone = tx.changes()
    tx.run("INSERT OR REPLACE INTO fact VALUES ('bodies_forgotten', ?)", (end,))
    span = (0, _batch_end(tx, 0, rows_before, batch))
    tx.run(f"DELETE FROM body WHERE id IN ({_SETTLED})", span)
    tx.run(f"DELETE FROM mail WHERE id IN ({_SETTLED})", span)
    return gone + tx.changes()


def _bodies_forgotten(tx: Tx) -> int:
    row = tx.one("SELECT value FROM fact WHERE name = 'bodies_forgotten'")
    return int(row[0]) if row else 0


def _batch_end(tx: Tx, start: int, end: int, batch: int) -> int:
    """The moment up to which about `batch` messages were settled after `start`."""
    row = tx.one(_BATCH_END, (start, end, batch - 1))
    return int(row[0]) if row else max(start, end)
