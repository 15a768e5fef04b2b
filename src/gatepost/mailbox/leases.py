"""Leases: a consumer takes runs of messages, each run from one pair, and unordered messages.

A pair has at most one lease, and its next message waits until that lease is settled. This rule
alone makes delivery FIFO per pair. An unordered message has a separate lease, so that several
consumers share the unordered mail of one sender. The oldest message goes first. A lease that times
out is ended in sweep.py.

The ids of the leases that one take opens on consecutive unordered messages are consecutive too, so
that a statement changes all of them. The first is random, and one consumer holds them all: it
learns no id of a lease that another holds.
"""

import re
from collections.abc import Container, Iterable, Iterator
from heapq import merge
from operator import itemgetter

from msgspec import UNSET, Raw, Struct
from msgspec.structs import astuple

from gatepost.errors import StaleLeaseHandle
from gatepost.journal.transaction import Row, Tx
from gatepost.mailbox.enqueue import (
    FIRST_UNORDERED,
    IS_UNORDERED,
    PAIR_NUMBER_BITS,
    is_unordered,
    last_mail_id,
    pair_of_mail,
    slot_of_mail,
)
from gatepost.mailbox.policy import MailboxPolicy
from gatepost.mailbox.states import MailInput, MailState, transition_sql
from gatepost.wire.operations import LeasedMessage

# Limits of one take: enough for any consumer, small enough that others do not wait long.
_MAX_MESSAGES = 1000
_MAX_BYTES = 4 << 20
_MAX_ROWS_PER_READ = 64  # of one pair at a time
# The lease ids of a run count up, and have at most 63 bits.
_MAX_FIRST_LEASE_ID = (1 << 63) - _MAX_MESSAGES

_SET_IN_FLIGHT, _IF_PENDING = transition_sql(MailInput.DEQUEUE)
_SET_PENDING_AGAIN, _IF_NACKED = transition_sql(MailInput.RETRY)
_SET_RELEASED, _IF_IN_FLIGHT = transition_sql(MailInput.RELEASE)
_, _IF_WAITING = transition_sql(MailInput.EXPIRE)

_MAIL_COLUMNS = """
m.rank, m.arrival, m.id, m.msg_id, m.created_at, m.attempt, m.state, m.expires_at, m.tracked,
b.payload, b.meta, m.not_before
"""


_SELECT_READY_PAIRS = f"""
SELECT id, sender, head, (id << {PAIR_NUMBER_BITS}) + next_number
FROM pair WHERE mailbox = ? AND ready_at = 0
ORDER BY head_rank, head_arrival LIMIT ?
"""


def _select_unordered(readiness: str) -> str:
    return f"""
SELECT {_MAIL_COLUMNS}, p.sender
FROM mail m INDEXED BY mail_queue JOIN body b ON b.id = m.id
     JOIN pair p ON p.id = m.id >> {PAIR_NUMBER_BITS}
WHERE m.mailbox = ? AND m.{readiness} AND m.expires_at > ? AND m.{_IF_WAITING} AND m.{IS_UNORDERED}
ORDER BY m.rank, m.arrival LIMIT ?
"""


class MailChoice(Struct, frozen=True):
    """Selects the mail to take; `whole_pairs` includes delayed mail behind ready mail."""

    unordered_query: str
    whole_pairs: bool = False


_UNORDERED_READY = _select_unordered("not_before = 0")
READY = MailChoice(_UNORDERED_READY)
# Forwarding takes whole pairs, and, when an agent has moved, all unordered mail.
FORWARD_READY = MailChoice(_UNORDERED_READY, whole_pairs=True)
FORWARD_WAITING = MailChoice(_select_unordered("not_before >= 0"), whole_pairs=True)

_SELECT_WAITING_MAIL = f"""
SELECT {_MAIL_COLUMNS} FROM mail m JOIN body b ON b.id = m.id
WHERE m.id >= ? AND m.id < ? AND m.{_IF_WAITING} ORDER BY m.id LIMIT ?
"""
_SELECT_LEASED_MAIL = f"""
SELECT {_MAIL_COLUMNS} FROM mail m JOIN body b ON b.id = m.id
WHERE m.id BETWEEN ? AND ? AND m.{_IF_IN_FLIGHT} ORDER BY m.id LIMIT ?
"""
_rank_and_arrival = itemgetter(0, 1)
_ID, _MSG_ID, _CREATED, _ATTEMPT, _STATE, _EXPIRES, _TRACKED, _PAYLOAD, _META = range(2, 11)
_NOT_BEFORE, _SENDER = 11, 12

# If this mail is released later, its finished backoff must not count again.
_RETRY_MAIL = f"UPDATE mail SET {_SET_PENDING_AGAIN}, not_before = 0 WHERE id = ? AND {_IF_NACKED}"
_DEQUEUE_MAIL = f"""
UPDATE mail SET {_SET_IN_FLIGHT}, lease = ? WHERE id BETWEEN ? AND ? AND {_IF_PENDING}
"""
_DEQUEUE_UNORDERED = f"""
UPDATE mail SET {_SET_IN_FLIGHT}, lease = id + ? WHERE id BETWEEN ? AND ? AND {_IF_PENDING}
"""
_RELEASE_MAIL = f"UPDATE mail SET {_SET_RELEASED} WHERE id BETWEEN ? AND ? AND {_IF_IN_FLIGHT}"
# The columns of a lease row, in the order of the fields of `Lease`.
LEASE_COLUMNS = "slot, id, mailbox, consumer, next, last, behind, size, tracked, expires_at"
_INSERT_LEASE = f"INSERT INTO lease ({LEASE_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_SELECT_CONSUMER_LEASES = f"""
SELECT {LEASE_COLUMNS} FROM lease WHERE mailbox = ? AND consumer = ? ORDER BY slot
"""
_EXTEND_LEASE = """
UPDATE lease SET expires_at = ? WHERE slot = ? AND id = ? AND mailbox = ?
"""
_SELECT_NEXT_HEAD = f"""
SELECT id, rank, arrival, not_before FROM mail
WHERE id BETWEEN ? AND ? AND {_IF_WAITING} ORDER BY id LIMIT 1
"""
_UPDATE_HEAD = (
    "UPDATE pair SET head = ?, head_rank = ?, head_arrival = ?, ready_at = ? WHERE id = ?"
)
_NO_HEAD = (None, None, None, None)
_ADJUST_COUNTS = """
UPDATE mailbox SET waiting = waiting + ?, in_flight = in_flight + ?, dead = dead + ? WHERE id = ?
"""

# Mail id and lease id, both of at most 63 bits, in hex.
_match_lease_handle = re.compile(r"([0-7]?[0-9a-f]{1,15})\.([0-7]?[0-9a-f]{1,15})").fullmatch


class Lease(Struct):
    """A lease row: `size` unsettled messages of one pair, from mail id `next` to `last`.

    `slot` is the pair, or the mail id if the lease is on an unordered message. `behind` is the
    first mail id after the leased run. `tracked` counts its tracked messages.
    """

    slot: int
    id: int
    mailbox: int
    consumer: str
    next: int
    last: int
    behind: int
    size: int
    tracked: int
    expires_at: int


class MailboxRef(Struct, frozen=True):
    """A mailbox: the id of its row, and its name."""

    id: int
    name: str


class ReadyMail(Struct):
    """Ready mail of a mailbox, the oldest first: pairs with ordered mail, and unordered messages.

    Several consumers can take from it in turn. `complete` says that no other mail was ready.
    """

    pairs: list[Row]
    unordered: list[Row]
    complete: bool

    def is_empty(self) -> bool:
        return not (self.pairs or self.unordered)

    def remove(self, pairs: Container[int], unordered: int) -> None:
        """Remove pairs that have a lease now, and the first unordered messages."""
        self.pairs = [row for row in self.pairs if row[0] not in pairs]
        del self.unordered[:unordered]


class TakenMail(Struct):
    """Messages a consumer took, and the leases on them."""

    messages: list[LeasedMessage]
    leases: list[Lease]


def format_lease_handle(mail: int, lease: int) -> str:
    return f"{mail:x}.{lease:x}"


def parse_lease_handle(text: str) -> tuple[int, int]:
    """Return (mail id, lease id)."""
    found = _match_lease_handle(text)
    if found is None:
        raise StaleLeaseHandle(f"{text!r} is not a lease handle of this mailbox")
    return int(found[1], 16), int(found[2], 16)


def read_ready(tx: Tx, mailbox: int, limit: int, choice: MailChoice = READY) -> ReadyMail:
    """Read the mail that takes of up to `limit` messages in all may lease."""
    limit = min(limit, _MAX_MESSAGES)
    pairs = tx.fetch_all(_SELECT_READY_PAIRS, (mailbox, limit))
    unordered = tx.fetch_all(choice.unordered_query, (mailbox, tx.now, limit))
    return ReadyMail(pairs, unordered, complete=max(len(pairs), len(unordered)) < limit)


def take_mail(
    tx: Tx,
    box: MailboxRef,
    ready: ReadyMail,
    consumer: str,
    limit: int,
    policy: MailboxPolicy,
    lease_ids: Iterator[int],
    *,
    whole_pairs: bool = False,
    unordered_limit: int = _MAX_MESSAGES,
) -> TakenMail:
    """Lease up to `limit` messages: the oldest first, each pair's ordered mail in order.

    Up to `unordered_limit` of them are unordered. What is taken leaves `ready`.
    """
    limit = min(limit, _MAX_MESSAGES)
    pairs, unordered = ready.pairs[:limit], ready.unordered[: min(limit, unordered_limit)]
    portion = min(max(limit // max(len(pairs), 1), 1), _MAX_ROWS_PER_READ)
    # A window of ids bounds how many settled rows a read may have to skip.
    runs: list[Iterable[Row]] = [
        _read_run(tx, head, min(head + limit, end), portion, whole_pairs)
        for _, _, head, end in pairs
    ]
    if unordered:
        runs.append(unordered)
    rows = _take_until_full(
        runs[0] if len(runs) == 1 else merge(*runs, key=_rank_and_arrival), limit
    )
    leases = _lease_rows(tx, box, consumer, rows, policy, lease_ids)
    senders = {pair: sender for pair, sender, _, _ in pairs}
    senders.update((pair_of_mail(row[_ID]), row[_SENDER]) for row in unordered)
    ids = {lease.slot: lease.id for lease in leases}
    ready.remove(ids, sum(is_unordered(row[_ID]) for row in rows))
    return TakenMail([_leased_message(row, ids, senders, box.name, policy) for row in rows], leases)


def _read_run(tx: Tx, head: int, end: int, portion: int, whole: bool) -> Iterator[Row]:
    """Yield a pair's mail from its head, which is ready.

    The run ends before mail past its expiry, which the sweep removes, and, unless the whole pair is
    wanted, before mail that is not due. Rows are read in portions: with many pairs each portion is
    small, because few pairs are read to the end.
    """
    first = head
    while rows := tx.fetch_all(_SELECT_WAITING_MAIL, (first, end, portion)):
        for row in rows:
            is_delayed = row[_NOT_BEFORE] > tx.now and row[_ID] != head
            if row[_EXPIRES] <= tx.now or (is_delayed and not whole):
                return
            yield row
        first = rows[-1][_ID] + 1
        if first >= end or len(rows) < portion:
            return


def _take_until_full(rows: Iterable[Row], limit: int) -> list[Row]:
    """Return up to `limit` rows; stop after the row that reaches the byte limit."""
    first: list[Row] = []
    size = 0
    for row in rows:
        first.append(row)
        size += len(row[_PAYLOAD])
        if len(first) == limit or size >= _MAX_BYTES:
            break
    return first


def _lease_rows(
    tx: Tx,
    box: MailboxRef,
    consumer: str,
    rows: list[Row],
    policy: MailboxPolicy,
    lease_ids: Iterator[int],
) -> list[Lease]:
    if not rows:
        return []
    if nacked := [(row[_ID],) for row in rows if row[_STATE] == MailState.NACKED]:
        tx.execute_many(_RETRY_MAIL, nacked)
    holder = (box.id, consumer, tx.now + policy.inflight_timeout)
    runs: dict[int, list[Row]] = {}
    unordered = []
    for row in rows:
        if is_unordered(row[_ID]):
            unordered.append(row)
        else:
            runs.setdefault(pair_of_mail(row[_ID]), []).append(row)
    leases = [_new_lease(pair, next(lease_ids), holder, run) for pair, run in runs.items()]
    if leases:
        _open_pair_leases(tx, leases)
    if unordered:
        unordered.sort(key=itemgetter(_ID))
        leases += _open_unordered_leases(tx, holder, unordered, lease_ids)
    adjust_counts(tx, box.id, -len(rows), len(rows))
    return leases


def _new_lease(slot: int, id: int, holder: tuple[int, str, int], run: list[Row]) -> Lease:
    mailbox, consumer, until = holder
    first, last = run[0][_ID], run[-1][_ID]
    span = (first, last, last + 1, len(run), sum(row[_TRACKED] for row in run))
    return Lease(slot, id, mailbox, consumer, *span, until)


def _open_pair_leases(tx: Tx, leases: list[Lease]) -> None:
    tx.execute_many(_DEQUEUE_MAIL, [(lease.id, lease.next, lease.last) for lease in leases])
    tx.execute_many(_INSERT_LEASE, [astuple(lease) for lease in leases])
    tx.execute_many(_UPDATE_HEAD, [(*_NO_HEAD, lease.slot) for lease in leases])


def _open_unordered_leases(
    tx: Tx, holder: tuple[int, str, int], rows: list[Row], lease_ids: Iterator[int]
) -> list[Lease]:
    leases: list[Lease] = []
    for row in rows:
        mail = row[_ID]
        follows = leases and leases[-1].slot == mail - 1
        id = leases[-1].id + 1 if follows else min(next(lease_ids), _MAX_FIRST_LEASE_ID)
        leases.append(_new_lease(mail, id, holder, [row]))
    runs = find_lease_runs((lease.slot, lease.id) for lease in leases)
    tx.execute_many(_DEQUEUE_UNORDERED, runs)
    tx.execute_many(_INSERT_LEASE, [astuple(lease) for lease in leases])
    return leases


def find_lease_runs(refs: Iterable[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """Return the runs of these (mail id, lease id), in each of which both count up by one.

    A run is (lease id less mail id, first mail id, last mail id).
    """
    runs: list[tuple[int, int, int]] = []
    for mail, lease in sorted(refs):
        offset, first = lease - mail, mail
        if runs and runs[-1][0] == offset and runs[-1][2] == mail - 1:
            _, first, _ = runs.pop()
        runs.append((offset, first, mail))
    return runs


def _leased_message(
    row: Row, leases: dict[int, int], senders: dict[int, str], name: str, policy: MailboxPolicy
) -> LeasedMessage:
    id, meta, unordered = row[_ID], row[_META], row[_ID] & FIRST_UNORDERED
    pair = id >> PAIR_NUMBER_BITS
    return LeasedMessage(
        row[_MSG_ID],
        senders[pair],
        name,
        Raw(row[_PAYLOAD]),
        row[_CREATED] // 1000,
        row[_ATTEMPT],
        format_lease_handle(id, leases[id if unordered else pair]),
        policy.inflight_timeout / 1000,
        UNSET if meta is None else Raw(meta),
        "none" if unordered else "fifo",
    )


def leases_held_by(tx: Tx, mailbox: int, consumer: str) -> list[Lease]:
    return [Lease(*row) for row in tx.fetch_all(_SELECT_CONSUMER_LEASES, (mailbox, consumer))]


def reread_leases(
    tx: Tx, box: MailboxRef, leases: list[Lease], limit: int, policy: MailboxPolicy
) -> list[LeasedMessage]:
    """Return the unsettled messages of these leases to a consumer that lost them.

    The leases are extended.
    """
    found: list[LeasedMessage] = []
    for lease in leases:
        if len(found) < limit:
            found += _reread_lease(tx, box, lease, limit - len(found), policy)
    return found


def _reread_lease(
    tx: Tx, box: MailboxRef, lease: Lease, limit: int, policy: MailboxPolicy
) -> list[LeasedMessage]:
    extend_lease(tx, box.id, (lease.next, lease.id), policy)
    pair = pair_of_mail(lease.next)
    ((sender,),) = tx.fetch_all("SELECT sender FROM pair WHERE id = ?", (pair,))
    rows = tx.fetch_all(_SELECT_LEASED_MAIL, (lease.next, lease.last, limit))
    leases, senders = {lease.slot: lease.id}, {pair: sender}
    return [_leased_message(row, leases, senders, box.name, policy) for row in rows]


def extend_lease(tx: Tx, mailbox: int, ref: tuple[int, int], policy: MailboxPolicy) -> bool:
    """Extend a lease to a full timeout from now; return False if it does not exist."""
    mail, lease = ref
    tx.execute(
        _EXTEND_LEASE, (tx.now + policy.inflight_timeout, slot_of_mail(mail), lease, mailbox)
    )
    return tx.changed_rows() == 1


def release_lease(tx: Tx, lease: Lease) -> None:
    """Return the unsettled messages of a lease to the queue; no attempt is counted."""
    release_mail(tx, lease)
    end_lease(tx, lease, lease.next)


def release_all_leases(tx: Tx) -> None:
    for row in tx.fetch_all(f"SELECT {LEASE_COLUMNS} FROM lease"):
        release_lease(tx, Lease(*row))


def release_mail(tx: Tx, lease: Lease) -> None:
    tx.execute(_RELEASE_MAIL, (lease.next, lease.last))
    adjust_counts(tx, lease.mailbox, lease.size, -lease.size)


def end_lease(tx: Tx, lease: Lease, first: int) -> None:
    """Delete a lease and set its pair's next head, if its mail is ordered.

    The head is the first waiting message of the leased run from `first` on, or else one behind it.
    """
    tx.execute("DELETE FROM lease WHERE slot = ?", (lease.slot,))
    if is_unordered(lease.next):
        return
    row = tx.fetch_one(_SELECT_NEXT_HEAD, (first, lease.last)) if first <= lease.last else None
    _set_head(tx, lease.slot, row or _find_next_head(tx, lease.slot, lease.behind))


def advance_head(tx: Tx, pair: int, first: int) -> None:
    """Set the head of a pair that has no lease and no waiting mail before `first`."""
    _set_head(tx, pair, _find_next_head(tx, pair, first))


def _find_next_head(tx: Tx, pair: int, first: int) -> Row | None:
    return tx.fetch_one(_SELECT_NEXT_HEAD, (first, last_mail_id(pair)))


def _set_head(tx: Tx, pair: int, row: Row | None) -> None:
    id, rank, arrival, not_before = row or _NO_HEAD
    ready_at = 0 if row and not_before <= tx.now else not_before
    tx.execute(_UPDATE_HEAD, (id, rank, arrival, ready_at, pair))


def adjust_counts(tx: Tx, mailbox: int, waiting: int, in_flight: int, dead: int = 0) -> None:
    tx.execute(_ADJUST_COUNTS, (waiting, in_flight, dead, mailbox))
