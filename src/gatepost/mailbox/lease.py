"""Leases: a consumer takes runs of messages, each run from one pair.

A pair has at most one lease, and its next message waits until that lease is settled. This rule
alone makes delivery FIFO per pair. Between pairs, the oldest head goes first.
"""

import re
from collections.abc import Iterator
from heapq import merge
from operator import itemgetter

from msgspec import UNSET, Raw, Struct
from msgspec.structs import astuple

from gatepost.errors import StaleReceipt
from gatepost.journal.tx import Row, Tx
from gatepost.mailbox.enqueue import NUMBER_BITS, pair_end, pair_of
from gatepost.mailbox.policy import Policy
from gatepost.mailbox.states import Input, State, move
from gatepost.wire import Message

# Limits of one take: enough for any consumer, small enough that others do not wait long.
_MOST_MESSAGES = 1000
_MOST_BYTES = 4 << 20
_MOST_ROWS = 64  # of one pair at a time

_SET_IN_FLIGHT, _IF_PENDING = move(Input.DEQUEUE)
_SET_PENDING_AGAIN, _IF_NACKED = move(Input.RETRY)
_SET_RELEASED, _IF_IN_FLIGHT = move(Input.RELEASE)
_, _IF_WAITING = move(Input.EXPIRE)

_READY = f"""
SELECT id, sender, head, (id << {NUMBER_BITS}) + next_number
FROM pair WHERE mailbox = ? AND ready_at = 0
ORDER BY head_rank, head_arrival LIMIT ?
"""
_COLUMNS = """
m.rank, m.arrival, m.id, m.msg_id, m.created_at, m.attempt, m.state, m.expires_at, m.tracked,
b.payload, b.meta
"""
_QUEUE = f"""
SELECT {_COLUMNS} FROM mail m JOIN body b ON b.id = m.id
WHERE m.id >= ? AND m.id < ? AND m.{_IF_WAITING} ORDER BY m.id LIMIT ?
"""
_HELD = f"""
SELECT {_COLUMNS} FROM mail m JOIN body b ON b.id = m.id
WHERE m.id BETWEEN ? AND ? AND m.{_IF_IN_FLIGHT} ORDER BY m.id LIMIT ?
"""
_OLDEST = itemgetter(0, 1)
_ID, _MSG_ID, _CREATED, _ATTEMPT, _STATE, _EXPIRES, _TRACKED, _PAYLOAD, _META = range(2, 11)

_RETRY = f"UPDATE mail SET {_SET_PENDING_AGAIN} WHERE id = ? AND {_IF_NACKED}"
_DEQUEUE = f"""
UPDATE mail SET {_SET_IN_FLIGHT}, lease = ? WHERE id BETWEEN ? AND ? AND {_IF_PENDING}
"""
_RELEASE = f"UPDATE mail SET {_SET_RELEASED} WHERE id BETWEEN ? AND ? AND {_IF_IN_FLIGHT}"
_LEASE = "INSERT INTO lease VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_HELD_BY = "SELECT * FROM lease WHERE mailbox = ? AND consumer = ? ORDER BY pair"
_EXTEND = """
UPDATE lease SET expires_at = max(expires_at, ?) WHERE pair = ? AND id = ? AND mailbox = ?
"""
# Only nacked mail backs off; mail that was released is ready at once.
_NEXT_HEAD = f"""
SELECT id, rank, arrival, iif({_IF_NACKED}, not_before, 0) FROM mail
WHERE id BETWEEN ? AND ? AND {_IF_WAITING} ORDER BY id LIMIT 1
"""
_SET_HEAD = "UPDATE pair SET head = ?, head_rank = ?, head_arrival = ?, ready_at = ? WHERE id = ?"
_NO_HEAD = (None, None, None, None)
_COUNTS = """
UPDATE mailbox SET waiting = waiting + ?, in_flight = in_flight + ?, dead = dead + ? WHERE id = ?
"""

# Mail id and lease id, both of at most 63 bits, in hex.
_is_receipt = re.compile(r"([0-7]?[0-9a-f]{1,15})\.([0-7]?[0-9a-f]{1,15})").fullmatch


class Lease(Struct):
    """A lease row: `size` unsettled messages of one pair, from mail id `next` to `last`.

    `behind` is the first mail id after the leased run. `tracked` counts its tracked messages.
    """

    pair: int
    id: int
    mailbox: int
    consumer: str
    next: int
    last: int
    behind: int
    size: int
    tracked: int
    expires_at: int


class Box(Struct, frozen=True):
    """A mailbox: the id of its row, and its name."""

    id: int
    name: str


class Taken(Struct):
    """Messages a consumer took, and the leases on them."""

    messages: list[Message]
    leases: list[Lease]


def receipt(mail: int, lease: int) -> str:
    return f"{mail:x}.{lease:x}"


def parse_receipt(text: str) -> tuple[int, int]:
    """Return (mail id, lease id)."""
    found = _is_receipt(text)
    if found is None:
        raise StaleReceipt(f"{text!r} is not a lease handle of this mailbox")
    return int(found[1], 16), int(found[2], 16)


def take(
    tx: Tx, box: Box, consumer: str, limit: int, policy: Policy, lease_ids: Iterator[int]
) -> Taken:
    """Lease up to `limit` messages: the oldest heads first, each pair's mail in order."""
    limit = min(limit, _MOST_MESSAGES)
    pairs = tx.rows(_READY, (box.id, limit))
    portion = min(max(limit // max(len(pairs), 1), 1), _MOST_ROWS)
    # A window of ids bounds how many settled rows a read may have to skip.
    runs = [_run(tx, head, min(head + limit, end), portion) for _, _, head, end in pairs]
    rows = _first(runs[0] if len(runs) == 1 else merge(*runs, key=_OLDEST), limit)
    leases = _lease_runs(tx, box, consumer, rows, policy, lease_ids)
    senders = {pair: sender for pair, sender, _, _ in pairs}
    ids = {lease.pair: lease.id for lease in leases}
    return Taken([_message(row, ids, senders, box.name, policy) for row in rows], leases)


def _run(tx: Tx, first: int, end: int, portion: int) -> Iterator[Row]:
    """Yield a pair's mail from its head; stop at mail past its expiry, which the sweep removes.

    Rows are read in portions: with many pairs each portion is small, because few pairs are read
    to the end.
    """
    while rows := tx.rows(_QUEUE, (first, end, portion)):
        for row in rows:
            if row[_EXPIRES] <= tx.now:
                return
            yield row
        first = rows[-1][_ID] + 1
        if first >= end or len(rows) < portion:
            return


def _first(rows: Iterator[Row], limit: int) -> list[Row]:
    """Return up to `limit` rows; stop after the row that reaches the byte limit."""
    first: list[Row] = []
    size = 0
    for row in rows:
        first.append(row)
        size += len(row[_PAYLOAD])
        if len(first) == limit or size >= _MOST_BYTES:
            break
    return first


def _lease_runs(
    tx: Tx, box: Box, consumer: str, rows: list[Row], policy: Policy, lease_ids: Iterator[int]
) -> list[Lease]:
    runs: dict[int, list[Row]] = {}
    for row in rows:
        runs.setdefault(pair_of(row[_ID]), []).append(row)
    until = tx.now + policy.inflight_timeout
    leases = []
    for pair, run in runs.items():
        first, last = run[0][_ID], run[-1][_ID]
        span = (first, last, last + 1, len(run), sum(row[_TRACKED] for row in run))
        leases.append(Lease(pair, next(lease_ids), box.id, consumer, *span, until))
        _open(tx, leases[-1], run[0][_STATE])
    if rows:
        count(tx, box.id, -len(rows), len(rows))
    return leases


def _open(tx: Tx, lease: Lease, state: State) -> None:
    if state == State.NACKED:
        # Only a pair's head can have been nacked, and its backoff is over.
        tx.run(_RETRY, (lease.next,))
    tx.run(_DEQUEUE, (lease.id, lease.next, lease.last))
    tx.run(_LEASE, astuple(lease))
    tx.run(_SET_HEAD, (*_NO_HEAD, lease.pair))


def _message(
    row: Row, leases: dict[int, int], senders: dict[int, str], name: str, policy: Policy
) -> Message:
    pair = pair_of(row[_ID])
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


def held_by(tx: Tx, mailbox: int, consumer: str) -> list[Lease]:
    return [Lease(*row) for row in tx.rows(_HELD_BY, (mailbox, consumer))]


def again(tx: Tx, box: Box, leases: list[Lease], limit: int, policy: Policy) -> list[Message]:
    """Return the unsettled messages of these leases to a consumer that lost them.

    The leases are extended.
    """
    found: list[Message] = []
    for lease in leases:
        if len(found) < limit:
            found += _reread(tx, box, lease, limit - len(found), policy)
    return found


def _reread(tx: Tx, box: Box, lease: Lease, limit: int, policy: Policy) -> list[Message]:
    extend(tx, box.id, (lease.next, lease.id), policy)
    ((sender,),) = tx.rows("SELECT sender FROM pair WHERE id = ?", (lease.pair,))
    rows = tx.rows(_HELD, (lease.next, lease.last, limit))
    leases, senders = {lease.pair: lease.id}, {lease.pair: sender}
    return [_message(row, leases, senders, box.name, policy) for row in rows]


def extend(tx: Tx, mailbox: int, ref: tuple[int, int], policy: Policy) -> bool:
    """Extend a lease to a full timeout from now; return False if it does not exist."""
    mail, lease = ref
    tx.run(_EXTEND, (tx.now + policy.inflight_timeout, pair_of(mail), lease, mailbox))
    return tx.changes() == 1


def release(tx: Tx, lease: Lease) -> None:
    """Return the unsettled messages of a lease to the queue; no attempt is counted."""
    free(tx, lease)
    end(tx, lease, lease.next)


def free(tx: Tx, lease: Lease) -> None:
    tx.run(_RELEASE, (lease.next, lease.last))
    count(tx, lease.mailbox, lease.size, -lease.size)


def end(tx: Tx, lease: Lease, first: int) -> None:
    """Delete a lease and set its pair's next head.

    The head is the first waiting message of the leased run from `first` on, or else one behind it.
    """
    tx.run("DELETE FROM lease WHERE pair = ?", (lease.pair,))
    row = tx.one(_NEXT_HEAD, (first, lease.last)) if first <= lease.last else None
    _set_head(tx, lease.pair, row or _next_head(tx, lease.pair, lease.behind))


def find_head(tx: Tx, pair: int, first: int) -> None:
    """Set the head of a pair that has no lease and no waiting mail before `first`."""
    _set_head(tx, pair, _next_head(tx, pair, first))


def _next_head(tx: Tx, pair: int, first: int) -> Row | None:
    return tx.one(_NEXT_HEAD, (first, pair_end(pair)))


def _set_head(tx: Tx, pair: int, row: Row | None) -> None:
    id, rank, arrival, not_before = row or _NO_HEAD
    ready_at = 0 if row and not_before <= tx.now else not_before
    tx.run(_SET_HEAD, (id, rank, arrival, ready_at, pair))


def count(tx: Tx, mailbox: int, waiting: int, in_flight: int, dead: int = 0) -> None:
    tx.run(_COUNTS, (waiting, in_flight, dead, mailbox))
