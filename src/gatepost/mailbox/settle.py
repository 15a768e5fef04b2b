"""Settle leased mail: ack and nack, in the order of the lease, idempotently."""

from msgspec import Struct, field

from gatepost.errors import GatepostError, OutOfOrder, StaleReceipt, UnknownMessage, WrongState
from gatepost.events.envelope import Outcome
from gatepost.journal.tx import Tx
from gatepost.mailbox import lease as leases
from gatepost.mailbox.enqueue import pair_of
from gatepost.mailbox.lease import Lease, parse_receipt, receipt
from gatepost.mailbox.policy import Policy
from gatepost.mailbox.states import Input, State, move
from gatepost.wire import Failure

_SET_ACKED, _IF_IN_FLIGHT = move(Input.ACK)
_SET_NACKED, _ = move(Input.NACK)
_SET_DEAD, _IF_NACKED = move(Input.EXHAUST)
_SET_EXPIRED, _ = move(Input.EXPIRE)

_FIND = "SELECT * FROM lease WHERE pair = ? AND id = ? AND mailbox = ?"
_ACK = f"""
UPDATE mail SET {_SET_ACKED}, settled_at = ? WHERE id BETWEEN ? AND ? AND {_IF_IN_FLIGHT}
"""
_NACK = f"""
UPDATE mail SET {_SET_NACKED}, attempt = ?, not_before = ? WHERE id = ? AND {_IF_IN_FLIGHT}
"""
_EXHAUST = f"UPDATE mail SET {_SET_DEAD}, settled_at = ? WHERE id = ? AND {_IF_NACKED}"
_TOO_LATE = f"UPDATE mail SET {_SET_EXPIRED}, settled_at = ? WHERE id = ? AND {_IF_NACKED}"
_BURY = "INSERT INTO dead_letter (id, mailbox, reason, failed_at, attempts) VALUES (?, ?, ?, ?, ?)"
_IN_FLIGHT = f"""
SELECT id FROM mail WHERE id BETWEEN ? AND ? AND {_IF_IN_FLIGHT} ORDER BY id LIMIT ?
"""
_TRACKED = f"""
SELECT m.msg_id, m.id, b.meta FROM mail m JOIN body b ON b.id = m.id
WHERE m.id BETWEEN ? AND ? AND m.tracked AND m.lease = ? AND m.state = {State.ACKED:d} ORDER BY m.id
"""

Ref = tuple[int, int]  # mail id, lease id


class Closed(Struct, frozen=True):
    """A tracked message that was closed; its sender has to be told.

    `lease_handle` and `meta` are set only for acked mail.
    """

    msg_id: str
    outcome: Outcome
    mail: int
    reason: str = ""
    receipt: str = ""
    meta: bytes | None = None


class Freed(Struct, frozen=True):
    """`size` messages of a lease have left its consumer, which still holds `left`."""

    lease: int
    size: int
    left: int


class Settlement(Struct):
    """The result of a batch: the number of settled turns, failures, freed and closed messages."""

    settled: int = 0
    failures: list[Failure] = field(default_factory=list)
    freed: list[Freed] = field(default_factory=list)
    closed: list[Closed] = field(default_factory=list)

    def fail(self, refs: list[Ref], error: GatepostError) -> None:
        self.failures += [Failure.of(error, receipt(*ref)) for ref in refs]


def refs_of(
    tx: Tx, mailbox: int, receipts: list[str], msg_ids: list[str]
) -> tuple[list[Ref], list[Failure]]:
    """Resolve lease handles and msg_ids to unique refs; a msg_id means its latest lease.

    The second list has a failure for each that cannot be resolved.
    """
    refs: dict[Ref, None] = {}
    failures = []
    for text in receipts:
        try:
            refs[parse_receipt(text)] = None
        except GatepostError as error:
            failures.append(Failure.of(error, text))
    for msg_id in msg_ids:
        try:
            refs[_latest(tx, mailbox, msg_id)] = None
        except GatepostError as error:
            failures.append(Failure.of(error, msg_id))
    return list(refs), failures


def _latest(tx: Tx, mailbox: int, msg_id: str) -> Ref:
    row = tx.one("SELECT id, lease FROM mail WHERE mailbox = ? AND msg_id = ?", (mailbox, msg_id))
    if row is None:
        raise UnknownMessage(f"no message {msg_id} in this mailbox")
    return row[0], row[1] or 0


def _by_lease(refs: list[Ref]) -> list[list[Ref]]:
    """Group refs by their lease, in the order given."""
    groups: dict[Ref, list[Ref]] = {}
    for ref in refs:
        groups.setdefault((pair_of(ref[0]), ref[1]), []).append(ref)
    return list(groups.values())


def ack(tx: Tx, mailbox: int, refs: list[Ref]) -> Settlement:
    """Ack these messages. Messages of one lease must come in its order."""
    result = Settlement()
    for run in _by_lease(refs):
        lease = _find(tx, mailbox, run[0])
        before = run if lease is None else _ack_run(tx, lease, run, result)
        _repeats(tx, mailbox, before, State.ACKED, result)
    return result


def _find(tx: Tx, mailbox: int, ref: Ref) -> Lease | None:
    row = tx.one(_FIND, (pair_of(ref[0]), ref[1], mailbox))
    return None if row is None else Lease(*row)


def _ack_run(tx: Tx, lease: Lease, run: list[Ref], result: Settlement) -> list[Ref]:
    """Ack the refs of `run` that are next in the lease; return the refs settled before."""
    before = [ref for ref in run if ref[0] < lease.next]
    now = [ref for ref in run if ref[0] >= lease.next]
    good = _in_order(tx, lease, [id for id, _ in now])
    if good < len(now):
        result.fail(now[good:], OutOfOrder("ack the messages of a lease in the order they came"))
    if good:
        _end_turns(tx, lease, now[good - 1][0], good, result)
    return before


def _in_order(tx: Tx, lease: Lease, ids: list[int]) -> int:
    """Return how many of `ids`, from the first, are the next messages of the lease."""
    gapless = lease.last - lease.next + 1 == lease.size
    if gapless and len(ids) <= lease.size and ids == list(range(lease.next, lease.next + len(ids))):
        return len(ids)
    expected = [row[0] for row in tx.rows(_IN_FLIGHT, (lease.next, lease.last, len(ids)))]
    same = (a == b for a, b in zip(ids, expected, strict=False))
    return next((n for n, equal in enumerate(same) if not equal), min(len(ids), len(expected)))


def _end_turns(tx: Tx, lease: Lease, last: int, size: int, result: Settlement) -> None:
    tx.run(_ACK, (tx.now, lease.next, last))
    leases.count(tx, lease.mailbox, 0, -size)
    if lease.tracked:
        rows = tx.rows(_TRACKED, (lease.next, last, lease.id))
        result.closed += [
            Closed(msg_id, "ok", id, receipt=receipt(id, lease.id), meta=meta)
            for msg_id, id, meta in rows
        ]
    result.settled += size
    result.freed.append(Freed(lease.id, size, lease.size - size))
    if size == lease.size:
        leases.end(tx, lease, last + 1)
    else:
        _shorten(tx, lease, last + 1, lease.size - size)


def _shorten(tx: Tx, lease: Lease, first: int, size: int) -> None:
    tx.run("UPDATE lease SET next = ?, size = ? WHERE pair = ?", (first, size, lease.pair))


def _repeats(tx: Tx, mailbox: int, refs: list[Ref], state: State, result: Settlement) -> None:
    """Accept refs that the same lease already settled this way; fail all others."""
    for ref in refs:
        try:
            _check_repeat(tx, mailbox, ref, state)
        except GatepostError as error:
            result.fail([ref], error)


def _check_repeat(tx: Tx, mailbox: int, ref: Ref, state: State) -> None:
    query = "SELECT state, coalesce(lease, 0) FROM mail WHERE id = ? AND mailbox = ?"
    row = tx.one(query, (ref[0], mailbox))
    if row is None:
        raise UnknownMessage("no such message in this mailbox")
    if row == (State.PENDING, 0):
        raise WrongState("the message was not dequeued yet")
    done = row[0] == state or (state is State.NACKED and row[0] != State.ACKED)
    if not done or row[1] != ref[1]:
        raise StaleReceipt("the lease ran out or was settled differently; this turn does not count")


def nack(tx: Tx, mailbox: int, refs: list[Ref], reason: str, policy: Policy) -> Settlement:
    """Nack these messages. Of each lease only the first is nacked; the rest are released."""
    result = Settlement()
    for run in _by_lease(refs):
        lease = _find(tx, mailbox, run[0])
        before = run if lease is None else _nack_run(tx, lease, run, reason, policy, result)
        _repeats(tx, mailbox, before, State.NACKED, result)
    return result


def _nack_run(
    tx: Tx, lease: Lease, run: list[Ref], reason: str, policy: Policy, result: Settlement
) -> list[Ref]:
    """Nack the next message of the lease if `run` has it; return the refs settled before."""
    before = [ref for ref in run if ref[0] < lease.next]
    now = [ref for ref in run if ref[0] >= lease.next]
    if now and _in_order(tx, lease, [now[0][0]]):
        fail_head(tx, lease, reason or "nacked", policy, result)
    elif now:
        result.fail(now, OutOfOrder("settle the earlier messages of this lease first"))
    return before


def fail_head(tx: Tx, lease: Lease, reason: str, policy: Policy, result: Settlement) -> None:
    """Fail the turn of a lease's next message (retry or dead letter); release the rest."""
    ((head,),) = tx.rows(_IN_FLIGHT, (lease.next, lease.last, 1))
    result.closed += _fail(tx, lease.mailbox, head, reason, policy)
    result.settled += 1
    result.freed.append(Freed(lease.id, lease.size, 0))
    lease.next, lease.size = head + 1, lease.size - 1
    leases.free(tx, lease)
    leases.end(tx, lease, head)


def _fail(tx: Tx, mailbox: int, id: int, reason: str, policy: Policy) -> list[Closed]:
    """Nack one message in flight; close it if it may not be retried."""
    query = "SELECT msg_id, attempt, expires_at, tracked FROM mail WHERE id = ?"
    ((msg_id, attempt, expires_at, tracked),) = tx.rows(query, (id,))
    exhausted = policy.exhausted(attempt)
    retry_at = tx.now + policy.backoff(attempt)
    tx.run(_NACK, (attempt if exhausted else attempt + 1, retry_at, id))
    leases.count(tx, mailbox, 1, -1)
    outcome: Outcome
    if exhausted:
        outcome = "dead_letter"
        _bury(tx, mailbox, id, f"max_retries exhausted: {reason}", attempt + 1)
    elif expires_at <= tx.now:
        outcome = "expired"
        tx.run(_TOO_LATE, (tx.now, id))
        leases.count(tx, mailbox, -1, 0)
    else:
        return []
    return [Closed(msg_id, outcome, id, reason)] if tracked else []


def _bury(tx: Tx, mailbox: int, id: int, reason: str, attempts: int) -> None:
    """Turn a nacked message into a dead letter; its payload stays."""
    tx.run(_EXHAUST, (tx.now, id))
    tx.run(_BURY, (id, mailbox, reason, tx.now, attempts))
    leases.count(tx, mailbox, -1, 0, 1)
