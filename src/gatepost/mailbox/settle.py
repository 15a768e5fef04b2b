"""Settle leased mail: ack and nack, in the order of the lease, idempotently."""

from collections.abc import Mapping
from itertools import groupby
from types import MappingProxyType

from msgspec import Struct, field

from gatepost.errors import (
    GatepostError,
    IdempotencyConflict,
    OutOfOrder,
    StaleLeaseHandle,
    UnknownMessage,
    WrongState,
)
from gatepost.events.envelope import TurnOutcome
from gatepost.journal.transaction import Tx
from gatepost.mailbox import leases
from gatepost.mailbox.enqueue import is_unordered, slot_of_mail
from gatepost.mailbox.leases import LEASE_COLUMNS, Lease, format_lease_handle, parse_lease_handle
from gatepost.mailbox.policy import MailboxPolicy
from gatepost.mailbox.states import MailInput, MailState, transition_sql
from gatepost.wire.operations import Failure

_SET_ACKED, _IF_IN_FLIGHT = transition_sql(MailInput.ACK)
_SET_NACKED, _ = transition_sql(MailInput.NACK)
_SET_DEAD, _IF_NACKED = transition_sql(MailInput.EXHAUST)
_SET_EXPIRED, _ = transition_sql(MailInput.EXPIRE)

_SELECT_LEASE = f"SELECT {LEASE_COLUMNS} FROM lease WHERE slot = ? AND id = ? AND mailbox = ?"
_ACK_MAIL = f"""
UPDATE mail SET {_SET_ACKED}, settled_at = ? WHERE id BETWEEN ? AND ? AND {_IF_IN_FLIGHT}
"""
# A run of unordered messages: the ids of mail and lease both count up by one.
_ACK_UNORDERED = f"""
UPDATE mail SET {_SET_ACKED}, settled_at = ?
WHERE id BETWEEN ? AND ? AND lease - id = ? AND {_IF_IN_FLIGHT}
"""
_END_UNORDERED = """
DELETE FROM lease WHERE slot BETWEEN ? AND ? AND id - slot = ? AND mailbox = ?
RETURNING slot, id, tracked
"""
_SELECT_TRACKED_ONE = """
SELECT m.msg_id, m.id, m.lease, b.meta FROM mail m JOIN body b ON b.id = m.id WHERE m.id = ?
"""
_RECORD_REPLY = f"UPDATE mail SET reply = ? WHERE id = ? AND {_IF_IN_FLIGHT}"
_NACK_MAIL = f"""
UPDATE mail SET {_SET_NACKED}, attempt = ?, not_before = ? WHERE id = ? AND {_IF_IN_FLIGHT}
"""
_EXHAUST_MAIL = f"UPDATE mail SET {_SET_DEAD}, settled_at = ? WHERE id = ? AND {_IF_NACKED}"
_EXPIRE_NACKED_MAIL = (
    f"UPDATE mail SET {_SET_EXPIRED}, settled_at = ? WHERE id = ? AND {_IF_NACKED}"
)
INSERT_DEAD_LETTER = (
    "INSERT INTO dead_letter (id, mailbox, reason, failed_at, attempts) VALUES (?, ?, ?, ?, ?)"
)
_SELECT_IN_FLIGHT = f"""
SELECT id FROM mail WHERE id BETWEEN ? AND ? AND {_IF_IN_FLIGHT} ORDER BY id LIMIT ?
"""
_SELECT_TRACKED_ACKED = f"""
SELECT m.msg_id, m.id, b.meta FROM mail m JOIN body b ON b.id = m.id
WHERE m.id BETWEEN ? AND ? AND m.tracked AND m.lease = ? AND m.state = {MailState.ACKED:d}
ORDER BY m.id
"""

LeaseRef = tuple[int, int]  # mail id, lease id
# Lease handle → fingerprint of the reply that comes with its ack.
ReplyMarks = Mapping[str, bytes]


class ClosedMail(Struct, frozen=True):
    """A tracked message that was closed, for the report to its sender.

    `lease_handle` and `meta` are set only for acked mail.
    """

    msg_id: str
    outcome: TurnOutcome
    mail_id: int
    reason: str = ""
    lease_handle: str = ""
    meta: bytes | None = None


class FreedMail(Struct, frozen=True):
    """`size` messages of a lease were settled or released; its consumer still holds `left`."""

    lease: int
    size: int
    left: int


class Settlement(Struct):
    """The result of a batch: the number of settled turns, failures, freed and closed messages."""

    settled: int = 0
    failures: list[Failure] = field(default_factory=list)
    freed: list[FreedMail] = field(default_factory=list)
    closed: list[ClosedMail] = field(default_factory=list)

    def add_failures(self, refs: list[LeaseRef], error: GatepostError) -> None:
        self.failures += [Failure.from_error(error, format_lease_handle(*ref)) for ref in refs]


def resolve_refs(
    tx: Tx, mailbox: int, lease_handles: list[str], msg_ids: list[str]
) -> tuple[list[LeaseRef], list[Failure]]:
    """Resolve lease handles and msg_ids to unique refs; a msg_id means its latest lease.

    The second list has a failure for each that cannot be resolved.
    """
    refs: dict[LeaseRef, None] = {}
    failures = []
    for text in lease_handles:
        try:
            refs[parse_lease_handle(text)] = None
        except GatepostError as error:
            failures.append(Failure.from_error(error, text))
    for msg_id in msg_ids:
        try:
            refs[_latest_ref(tx, mailbox, msg_id)] = None
        except GatepostError as error:
            failures.append(Failure.from_error(error, msg_id))
    return list(refs), failures


def _latest_ref(tx: Tx, mailbox: int, msg_id: str) -> LeaseRef:
    row = tx.fetch_one(
        "SELECT id, lease FROM mail WHERE mailbox = ? AND msg_id = ?", (mailbox, msg_id)
    )
    if row is None:
        raise UnknownMessage(f"no message {msg_id} in this mailbox")
    return row[0], row[1] or 0


def _group_by_lease(refs: list[LeaseRef]) -> list[list[LeaseRef]]:
    """Group refs by their lease, in the order given."""
    groups: dict[LeaseRef, list[LeaseRef]] = {}
    for ref in refs:
        groups.setdefault((slot_of_mail(ref[0]), ref[1]), []).append(ref)
    return list(groups.values())


def ack_mail(tx: Tx, mailbox: int, refs: list[LeaseRef], marks: ReplyMarks) -> Settlement:
    """Ack these messages. Messages of one lease must come in its order."""
    result = Settlement()
    for unordered, runs in groupby(_group_by_lease(refs), lambda run: is_unordered(run[0][0])):
        if unordered:
            _ack_unordered(tx, mailbox, [ref for run in runs for ref in run], marks, result)
            continue
        for run in runs:
            lease = _find_lease(tx, mailbox, run[0])
            before = run if lease is None else _ack_run(tx, lease, run, marks, result)
            _check_repeats(tx, mailbox, before, MailState.ACKED, result, marks)
    return result


def _ack_unordered(
    tx: Tx, mailbox: int, refs: list[LeaseRef], marks: ReplyMarks, result: Settlement
) -> None:
    """Ack unordered messages, each of which has a separate lease."""
    runs = leases.find_lease_runs(refs)
    rows = tx.fetch_many(
        _END_UNORDERED, [(first, last, offset, mailbox) for offset, first, last in runs]
    )
    ended = {(slot, lease): tracked for slot, lease, tracked in rows}
    now = [ref for ref in refs if ref in ended]
    if now:
        if marks:
            _record_replies(tx, now, marks)
        tx.execute_many(
            _ACK_UNORDERED, [(tx.now, first, last, offset) for offset, first, last in runs]
        )
        leases.adjust_counts(tx, mailbox, 0, -len(now))
        if tracked := [(id,) for id, lease in now if ended[id, lease]]:
            result.closed += [
                ClosedMail(msg_id, "ok", id, lease_handle=format_lease_handle(id, lease), meta=meta)
                for msg_id, id, lease, meta in tx.fetch_many(_SELECT_TRACKED_ONE, tracked)
            ]
        result.settled += len(now)
        result.freed += [FreedMail(lease, 1, 0) for _, lease in now]
    before = [ref for ref in refs if ref not in ended]
    _check_repeats(tx, mailbox, before, MailState.ACKED, result, marks)


def _find_lease(tx: Tx, mailbox: int, ref: LeaseRef) -> Lease | None:
    row = tx.fetch_one(_SELECT_LEASE, (slot_of_mail(ref[0]), ref[1], mailbox))
    return None if row is None else Lease(*row)


def _ack_run(
    tx: Tx, lease: Lease, run: list[LeaseRef], marks: ReplyMarks, result: Settlement
) -> list[LeaseRef]:
    """Ack the refs of `run` that are next in the lease; return the refs settled before."""
    before = [ref for ref in run if ref[0] < lease.next]
    now = [ref for ref in run if ref[0] >= lease.next]
    good = _count_in_order(tx, lease, [id for id, _ in now])
    if good < len(now):
        result.add_failures(
            now[good:], OutOfOrder("ack the messages of a lease in the order they came")
        )
    if good:
        if marks:
            _record_replies(tx, now[:good], marks)
        _end_turns(tx, lease, now[good - 1][0], good, result)
    return before


def _record_replies(tx: Tx, refs: list[LeaseRef], marks: ReplyMarks) -> None:
    """Remember the replies, so that a repeated ack with another reply is noticed."""
    given = ((marks.get(format_lease_handle(*ref)), ref[0]) for ref in refs)
    tx.execute_many(_RECORD_REPLY, [each for each in given if each[0] is not None])


def _count_in_order(tx: Tx, lease: Lease, ids: list[int]) -> int:
    """Return how many of `ids`, from the first, are the next messages of the lease."""
    gapless = lease.last - lease.next + 1 == lease.size
    if gapless and len(ids) <= lease.size and ids == list(range(lease.next, lease.next + len(ids))):
        return len(ids)
    expected = [
        row[0] for row in tx.fetch_all(_SELECT_IN_FLIGHT, (lease.next, lease.last, len(ids)))
    ]
    same = (a == b for a, b in zip(ids, expected, strict=False))
    return next((n for n, equal in enumerate(same) if not equal), min(len(ids), len(expected)))


def _end_turns(tx: Tx, lease: Lease, last: int, size: int, result: Settlement) -> None:
    tx.execute(_ACK_MAIL, (tx.now, lease.next, last))
    leases.adjust_counts(tx, lease.mailbox, 0, -size)
    if lease.tracked:
        rows = tx.fetch_all(_SELECT_TRACKED_ACKED, (lease.next, last, lease.id))
        result.closed += [
            ClosedMail(msg_id, "ok", id, lease_handle=format_lease_handle(id, lease.id), meta=meta)
            for msg_id, id, meta in rows
        ]
    result.settled += size
    result.freed.append(FreedMail(lease.id, size, lease.size - size))
    if size == lease.size:
        leases.end_lease(tx, lease, last + 1)
    else:
        _shorten_lease(tx, lease, last + 1, lease.size - size)


def _shorten_lease(tx: Tx, lease: Lease, first: int, size: int) -> None:
    tx.execute("UPDATE lease SET next = ?, size = ? WHERE slot = ?", (first, size, lease.slot))


def _check_repeats(
    tx: Tx,
    mailbox: int,
    refs: list[LeaseRef],
    state: MailState,
    result: Settlement,
    marks: ReplyMarks = MappingProxyType({}),
) -> None:
    """Accept refs that the same lease already settled this way; fail all others."""
    for ref in refs:
        try:
            mark = marks.get(format_lease_handle(*ref)) if marks else None
            _check_repeat(tx, mailbox, ref, state, mark)
        except GatepostError as error:
            result.add_failures([ref], error)


def _check_repeat(
    tx: Tx, mailbox: int, ref: LeaseRef, state: MailState, mark: bytes | None
) -> None:
    query = "SELECT state, coalesce(lease, 0), reply FROM mail WHERE id = ? AND mailbox = ?"
    row = tx.fetch_one(query, (ref[0], mailbox))
    if row is None:
        raise UnknownMessage("no such message in this mailbox")
    if row[:2] == (MailState.PENDING, 0):
        raise WrongState("the message was not dequeued yet")
    done = row[0] == state or (state is MailState.NACKED and row[0] != MailState.ACKED)
    if not done or row[1] != ref[1]:
        raise StaleLeaseHandle(
            "the lease ran out or was settled differently; this turn does not count"
        )
    if mark is not None and mark != row[2]:
        raise IdempotencyConflict("this turn was acked before, with another reply or without one")


class FailedTurn(Struct, frozen=True):
    """The reason of a failed turn; a `rejected` message is not retried."""

    reason: str
    rejected: bool = False


def nack_mail(
    tx: Tx, mailbox: int, refs: list[LeaseRef], turn: FailedTurn, policy: MailboxPolicy
) -> Settlement:
    """Nack these messages. Of each lease only the first is nacked; the rest are released."""
    result = Settlement()
    for run in _group_by_lease(refs):
        lease = _find_lease(tx, mailbox, run[0])
        before = run if lease is None else _nack_run(tx, lease, run, turn, policy, result)
        _check_repeats(tx, mailbox, before, MailState.NACKED, result)
    return result


def _nack_run(
    tx: Tx,
    lease: Lease,
    run: list[LeaseRef],
    turn: FailedTurn,
    policy: MailboxPolicy,
    result: Settlement,
) -> list[LeaseRef]:
    """Nack the next message of the lease if `run` has it; return the refs settled before."""
    before = [ref for ref in run if ref[0] < lease.next]
    now = [ref for ref in run if ref[0] >= lease.next]
    if now and _count_in_order(tx, lease, [now[0][0]]):
        fail_head(tx, lease, turn, policy, result)
    elif now:
        result.add_failures(now, OutOfOrder("settle the earlier messages of this lease first"))
    return before


def fail_head(
    tx: Tx, lease: Lease, turn: FailedTurn, policy: MailboxPolicy, result: Settlement
) -> None:
    """Fail the turn of a lease's next message (retry or dead letter); release the rest."""
    ((head,),) = tx.fetch_all(_SELECT_IN_FLIGHT, (lease.next, lease.last, 1))
    result.closed += _fail_mail(tx, lease.mailbox, head, turn, policy)
    result.settled += 1
    result.freed.append(FreedMail(lease.id, lease.size, 0))
    lease.next, lease.size = head + 1, lease.size - 1
    leases.release_mail(tx, lease)
    leases.end_lease(tx, lease, head)


def _fail_mail(
    tx: Tx, mailbox: int, id: int, turn: FailedTurn, policy: MailboxPolicy
) -> list[ClosedMail]:
    """Nack one message in flight; close it if no retry is left."""
    query = "SELECT msg_id, attempt, expires_at, tracked, max_retries FROM mail WHERE id = ?"
    ((msg_id, attempt, expires_at, tracked, max_retries),) = tx.fetch_all(query, (id,))
    exhausted = turn.rejected or policy.is_exhausted(attempt, max_retries)
    retry_at = tx.now + policy.backoff_after(attempt)
    tx.execute(_NACK_MAIL, (attempt if exhausted else attempt + 1, retry_at, id))
    leases.adjust_counts(tx, mailbox, 1, -1)
    outcome: TurnOutcome
    if exhausted:
        outcome = "dead_letter"
        why = "rejected" if turn.rejected else "max_retries exhausted"
        _bury_mail(tx, mailbox, id, f"{why}: {turn.reason}", attempt + 1)
    elif expires_at <= tx.now:
        outcome = "expired"
        tx.execute(_EXPIRE_NACKED_MAIL, (tx.now, id))
        leases.adjust_counts(tx, mailbox, -1, 0)
    else:
        return []
    return [ClosedMail(msg_id, outcome, id, turn.reason)] if tracked else []


def _bury_mail(tx: Tx, mailbox: int, id: int, reason: str, attempts: int) -> None:
    """Turn a nacked message into a dead letter; its payload stays."""
    tx.execute(_EXHAUST_MAIL, (tx.now, id))
    tx.execute(INSERT_DEAD_LETTER, (id, mailbox, reason, tx.now, attempts))
    leases.adjust_counts(tx, mailbox, -1, 0, 1)
