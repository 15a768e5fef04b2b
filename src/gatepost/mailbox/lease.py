"""Taking mail: a consumer leases runs of messages, each run from one pair.

A pair has at most one lease, and its next message waits until that lease is settled: this alone
makes delivery FIFO per pair. Between pairs the oldest head goes first.
"""

from collections.abc import Iterator
from heapq import merge
from itertools import islice
from operator import itemgetter

from msgspec import UNSET, Raw, Struct
from msgspec.structs import astuple

from gatepost.errors import StaleReceipt
from gatepost.journal.tx import Row, Tx
from gatepost.mailbox.enqueue import NUMBER_BITS
from gatepost.mailbox.policy import Policy
from gatepost.mailbox.states import Input, move
from gatepost.wire import Message

_LAST_NUMBER = (1 << NUMBER_BITS) - 1
_SET_IN_FLIGHT, _IF_PENDING = move(Input.DEQUEUE)
_SET_PENDING_AGAIN, _IF_NACKED = move(Input.RETRY)
_SET_EXPIRED, _IF_WAITING = move(Input.EXPIRE)
_SET_RELEASED, _IF_IN_FLIGHT = move(Input.RELEASE)

_READY = """
SELECT id, sender, head FROM pair WHERE mailbox = ? AND ready_at <= ?
ORDER BY head_rank, head_arrival LIMIT ?
"""
_COLUMNS = """
m.rank, m.arrival, m.id, m.msg_id, m.created_at, m.attempt, m.expires_at, m.tracked,
b.payload, b.meta
"""
_QUEUE = f"""
SELECT {_COLUMNS} FROM mail m JOIN body b ON b.id = m.id
WHERE m.id BETWEEN ? AND ? AND m.{_IF_WAITING} ORDER BY m.id LIMIT ?
"""
_HELD = f"""
SELECT {_COLUMNS} FROM mail m JOIN body b ON b.id = m.id
WHERE m.id BETWEEN ? AND ? AND m.{_IF_IN_FLIGHT} ORDER BY m.id
"""
_OLDEST = itemgetter(0, 1)
_ID, _MSG_ID, _CREATED, _ATTEMPT, _EXPIRES, _TRACKED, _PAYLOAD, _META = range(2, 10)

_HELD_BY = """
SELECT l.*, p.sender FROM lease l JOIN pair p ON p.id = l.pair
WHERE l.mailbox = ? AND l.consumer = ?
"""
_LEASE = "INSERT INTO lease VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
_NEXT_HEAD = f"""
SELECT id, rank, arrival, not_before FROM mail
WHERE id BETWEEN ? AND ? AND {_IF_WAITING} ORDER BY id LIMIT 1
"""
_SET_HEAD = "UPDATE pair SET head = ?, head_rank = ?, head_arrival = ?, ready_at = ? WHERE id = ?"
_COUNTS = "UPDATE mailbox SET waiting = waiting + ?, in_flight = in_flight + ? WHERE id = ?"


class Lease(Struct):
    id: int
    pair: int
    mailbox: int
    consumer: str
    next: int
    last: int
    size: int
    tracked: int
    expires_at: int


class Box(Struct, frozen=True):
    """A mailbox: its row and its name."""

    id: int
    name: str


class Taken(Struct):
    """What a consumer got, and the tracked mail found expired on the way."""

    messages: list[Message]
    expired: list[str]


def receipt(mail: int, lease: int) -> str:
    return f"{mail:x}.{lease:x}"


def parse_receipt(text: str) -> tuple[int, int]:
    try:
        mail, lease = text.split(".")
        return int(mail, 16), int(lease, 16)
    except ValueError:
        raise StaleReceipt(f"{text!r} is not a receipt of this mailbox") from None


def pair_end(pair: int) -> int:
    return (pair << NUMBER_BITS) | _LAST_NUMBER


def take(
    tx: Tx, box: Box, consumer: str, limit: int, policy: Policy, lease_ids: Iterator[int]
) -> Taken:
    """Lease up to `limit` messages: the oldest heads first, each pair's mail in order."""
    pairs = tx.rows(_READY, (box.id, tx.now, limit))
    if not pairs:
        return Taken([], [])
    queues = [tx.each(_QUEUE, (head, pair_end(pair), limit)) for pair, _, head in pairs]
    oldest_first = queues[0] if len(queues) == 1 else merge(*queues, key=_OLDEST)
    rows = list(islice(oldest_first, limit))
    live = [row for row in rows if row[_EXPIRES] > tx.now]
    late = [row for row in rows if row[_EXPIRES] <= tx.now]
    if late:
        _drop(tx, box, late)
    leases = _lease_runs(tx, box, consumer, live, policy, lease_ids)
    senders = {pair: sender for pair, sender, _ in pairs}
    messages = [_message(row, leases, senders, box.name, policy) for row in live]
    return Taken(messages, [row[_MSG_ID] for row in late if row[_TRACKED]])


def _drop(tx: Tx, box: Box, late: list[Row]) -> None:
    expire(tx, box.id, [row[_ID] for row in late])
    # A pair that also has live mail in this batch is leased next, which sets its head anew.
    for pair, last in {row[_ID] >> NUMBER_BITS: row[_ID] for row in late}.items():
        find_head(tx, pair, last + 1)


def _lease_runs(
    tx: Tx, box: Box, consumer: str, rows: list[Row], policy: Policy, lease_ids: Iterator[int]
) -> dict[int, int]:
    runs: dict[int, list[Row]] = {}
    for row in rows:
        runs.setdefault(row[_ID] >> NUMBER_BITS, []).append(row)
    until = tx.now + policy.inflight_timeout
    leases = {}
    for pair, run in runs.items():
        tracked = sum(row[_TRACKED] for row in run)
        first, last = run[0][_ID], run[-1][_ID]
        id = leases[pair] = next(lease_ids)
        _open(tx, Lease(id, pair, box.id, consumer, first, last, len(run), tracked, until))
    return leases


def expire(tx: Tx, mailbox: int, ids: list[int]) -> None:
    """Ids of mail that waits."""
    sql = f"UPDATE mail SET {_SET_EXPIRED}, settled_at = ? WHERE id = ? AND {_IF_WAITING}"
    tx.many(sql, [(tx.now, id) for id in ids])
    count(tx, mailbox, -len(ids), 0)


def _open(tx: Tx, lease: Lease) -> None:
    # Only a pair's head can have been nacked; its backoff is over, so it is pending again.
    tx.run(f"UPDATE mail SET {_SET_PENDING_AGAIN} WHERE id = ? AND {_IF_NACKED}", (lease.next,))
    tx.run(
        f"UPDATE mail SET {_SET_IN_FLIGHT}, lease = ? WHERE id BETWEEN ? AND ? AND {_IF_PENDING}",
        (lease.id, lease.next, lease.last),
    )
    tx.run(_LEASE, astuple(lease))
    tx.run(_SET_HEAD, (None, None, None, None, lease.pair))
    count(tx, lease.mailbox, -lease.size, lease.size)


def _message(
    row: Row, leases: dict[int, int], senders: dict[int, str], name: str, policy: Policy
) -> Message:
    pair = row[_ID] >> NUMBER_BITS
    return Message(
        row[_MSG_ID],
        senders[pair],
        name,
        Raw(row[_PAYLOAD]),
        row[_CREATED] // 1000,
        row[_ATTEMPT],
        receipt(row[_ID], leases[pair]),
        policy.inflight_timeout / 1000,
        UNSET if row[_META] is None else Raw(row[_META]),
    )


def held(tx: Tx, box: Box, consumer: str, policy: Policy) -> list[Message]:
    """What this consumer has leased and not settled, for one that lost its connection."""
    found: list[Message] = []
    for row in tx.rows(_HELD_BY, (box.id, consumer)):
        lease, sender = Lease(*row[:-1]), row[-1]
        extend(tx, lease.id, policy)
        run = tx.rows(_HELD, (lease.next, lease.last))
        leases, senders = {lease.pair: lease.id}, {lease.pair: sender}
        found += [_message(each, leases, senders, box.name, policy) for each in run]
    return found


def extend(tx: Tx, lease: int, policy: Policy) -> bool:
    """Push a lease's end back to a full timeout from now; false if there is no such lease."""
    until = tx.now + policy.inflight_timeout
    tx.run("UPDATE lease SET expires_at = max(expires_at, ?) WHERE id = ?", (until, lease))
    return tx.changes() == 1


def release(tx: Tx, lease: Lease) -> None:
    """Give back what is left of a lease, unharmed: no attempt is counted."""
    free(tx, lease)
    end(tx, lease, lease.next)


def free(tx: Tx, lease: Lease) -> None:
    tx.run(
        f"UPDATE mail SET {_SET_RELEASED} WHERE id BETWEEN ? AND ? AND {_IF_IN_FLIGHT}",
        (lease.next, lease.last),
    )
    count(tx, lease.mailbox, lease.size, -lease.size)


def end(tx: Tx, lease: Lease, first: int) -> None:
    """Drop the lease; the pair's next head is at `first` or behind it."""
    tx.run("DELETE FROM lease WHERE id = ?", (lease.id,))
    find_head(tx, lease.pair, first)


def find_head(tx: Tx, pair: int, first: int) -> None:
    row = tx.one(_NEXT_HEAD, (first, pair_end(pair)))
    head = row if row is not None else (None, None, None, None)
    tx.run(_SET_HEAD, (*head, pair))


def count(tx: Tx, mailbox: int, waiting: int, in_flight: int) -> None:
    tx.run(_COUNTS, (waiting, in_flight, mailbox))
