"""Ending turns: ack and nack, in the order of the run, and idempotently."""

from itertools import groupby
from operator import itemgetter

from msgspec import Struct, field

from gatepost.errors import GatepostError, OutOfOrder, StaleReceipt, UnknownMessage, WrongState
from gatepost.events.envelope import Outcome
from gatepost.journal.tx import Tx
from gatepost.mailbox import lease as leases
from gatepost.mailbox.lease import Lease, parse_receipt, receipt
from gatepost.mailbox.policy import Policy
from gatepost.mailbox.states import Input, State, move
from gatepost.wire import Failure

_SET_ACKED, _IF_IN_FLIGHT = move(Input.ACK)
_SET_NACKED, _ = move(Input.NACK)
_SET_DEAD, _IF_NACKED = move(Input.EXHAUST)

_ACK = f"""
UPDATE mail SET {_SET_ACKED}, settled_at = ? WHERE id BETWEEN ? AND ? AND {_IF_IN_FLIGHT}
"""
_NACK = f"""
UPDATE mail SET {_SET_NACKED}, attempt = ?, not_before = ? WHERE id = ? AND {_IF_IN_FLIGHT}
"""
_BURY = f"UPDATE mail SET {_SET_DEAD}, settled_at = ? WHERE id = ? AND {_IF_NACKED}"
_IN_FLIGHT = f"""
SELECT id FROM mail WHERE id BETWEEN ? AND ? AND {_IF_IN_FLIGHT} ORDER BY id LIMIT ?
"""
_TRACKED = "SELECT msg_id, id FROM mail WHERE id BETWEEN ? AND ? AND tracked ORDER BY id"

Ref = tuple[int, int]  # mail id, lease id


class Closed(Struct, frozen=True):
    """A tracked message came to its end; its sender is to be told."""

    msg_id: str
    outcome: Outcome
    reason: str = ""
    receipt: str = ""


class Settlement(Struct):
    """What a batch did: how many turns ended, what failed, who has credit again, what closed."""

    settled: int = 0
    failures: list[Failure] = field(default_factory=list)
    freed: list[tuple[str, int]] = field(default_factory=list)
    closed: list[Closed] = field(default_factory=list)

    def fail(self, refs: list[Ref], error: GatepostError) -> None:
        self.failures += [Failure.of(error, receipt(*ref)) for ref in refs]


def refs_of(tx: Tx, mailbox: int, receipts: list[str], msg_ids: list[str]) -> list[Ref]:
    """Receipts as they are; a bare msg_id stands for its message's latest lease."""
    query = "SELECT id, lease FROM mail WHERE mailbox = ? AND msg_id = ?"
    refs = [parse_receipt(text) for text in receipts]
    for msg_id in msg_ids:
        row = tx.one(query, (mailbox, msg_id))
        if row is None:
            raise UnknownMessage(f"no message {msg_id} in this mailbox")
        refs.append((row[0], row[1] or 0))
    return refs


def ack(tx: Tx, mailbox: int, refs: list[Ref]) -> Settlement:
    """End the turns of these messages. Those of one lease must come in its order."""
    result = Settlement()
    for lease_id, group in groupby(refs, key=itemgetter(1)):
        run = list(group)
        lease = _find(tx, mailbox, lease_id)
        if lease is not None:
            run = _ack_run(tx, lease, run, result)
        _repeats(tx, mailbox, run, State.ACKED, result)
    return result


def _find(tx: Tx, mailbox: int, id: int) -> Lease | None:
    row = tx.one("SELECT * FROM lease WHERE id = ? AND mailbox = ?", (id, mailbox))
    return None if row is None else Lease(*row)


def _ack_run(tx: Tx, lease: Lease, run: list[Ref], result: Settlement) -> list[Ref]:
    """Ack the part of `run` that is next in the lease; return what was settled before."""
    before = [ref for ref in run if ref[0] < lease.next]
    now = [ref for ref in run if ref[0] >= lease.next]
    good = _in_order(tx, lease, [id for id, _ in now])
    if good < len(now):
        result.fail(now[good:], OutOfOrder("ack the messages of a lease in the order they came"))
    if good:
        _end_turns(tx, lease, now[good - 1][0], good, result)
    return before


def _in_order(tx: Tx, lease: Lease, ids: list[int]) -> int:
    """How many of `ids`, from the first, are the next messages of the lease."""
    if ids and ids[-1] <= lease.last and ids == list(range(lease.next, lease.next + len(ids))):
        return len(ids)
    expected = [row[0] for row in tx.rows(_IN_FLIGHT, (lease.next, lease.last, len(ids)))]
    same = (a == b for a, b in zip(ids, expected, strict=False))
    return next((n for n, equal in enumerate(same) if not equal), min(len(ids), len(expected)))


def _end_turns(tx: Tx, lease: Lease, last: int, size: int, result: Settlement) -> None:
    tx.run(_ACK, (tx.now, lease.next, last))
    leases.count(tx, lease.mailbox, 0, -size)
    if lease.tracked:
        rows = tx.rows(_TRACKED, (lease.next, last))
        result.closed += [Closed(m, "ok", receipt=receipt(id, lease.id)) for m, id in rows]
    result.settled += size
    result.freed.append((lease.consumer, size))
    if size == lease.size:
        leases.end(tx, lease, last + 1)
    else:
        _shorten(tx, lease, last + 1, size)


def _shorten(tx: Tx, lease: Lease, first: int, size: int) -> None:
    lease.next, lease.size = first, lease.size - size
    tx.run("UPDATE lease SET next = ?, size = ? WHERE id = ?", (first, lease.size, lease.id))


def _repeats(tx: Tx, mailbox: int, refs: list[Ref], state: State, result: Settlement) -> None:
    """The same answer again for what this very lease settled; an error for anything else."""
    for ref in refs:
        try:
            _check_repeat(tx, mailbox, ref, state)
        except GatepostError as error:
            result.fail([ref], error)


def _check_repeat(tx: Tx, mailbox: int, ref: Ref, state: State) -> None:
    query = "SELECT state, lease FROM mail WHERE id = ? AND mailbox = ?"
    row = tx.one(query, (ref[0], mailbox))
    if row is None:
        raise UnknownMessage("no such message in this mailbox")
    if row[1] is None:
        raise WrongState("the message was not dequeued yet")
    done = row[0] == state or (state is State.NACKED and row[0] != State.ACKED)
    if not done or row[1] != ref[1]:
        raise StaleReceipt("the lease ran out or was settled otherwise; this turn does not count")


def nack(tx: Tx, mailbox: int, refs: list[Ref], reason: str, policy: Policy) -> Settlement:
    """Fail the turns of these messages. What is behind the first of a lease is given back."""
    result = Settlement()
    for lease_id, group in groupby(refs, key=itemgetter(1)):
        run = list(group)
        lease = _find(tx, mailbox, lease_id)
        if lease is None:
            _repeats(tx, mailbox, run, State.NACKED, result)
        elif run[0][0] != lease.next:
            result.fail(run, OutOfOrder("settle the earlier messages of this lease first"))
        else:
            fail_head(tx, lease, reason or "nacked", policy, result)
    return result


def fail_head(tx: Tx, lease: Lease, reason: str, policy: Policy, result: Settlement) -> None:
    """The turn of a lease's next message failed: retry it later or bury it; free the rest."""
    head, size = lease.next, lease.size
    query = "SELECT msg_id, attempt, expires_at, tracked FROM mail WHERE id = ?"
    msg_id, attempt, expires_at, tracked = tx.rows(query, (head,))[0]
    retry_at = tx.now + policy.backoff(attempt)
    tx.run(_NACK, (attempt + 1, retry_at, head))
    leases.count(tx, lease.mailbox, 1, -1)
    outcome: Outcome | None = None
    if policy.exhausted(attempt):
        bury(tx, lease.mailbox, head, f"max_retries exhausted: {reason}", attempt + 1)
        outcome = "dead_letter"
    elif expires_at <= tx.now:
        leases.expire(tx, lease.mailbox, [head])
        outcome = "expired"
    if outcome and tracked:
        result.closed.append(Closed(msg_id, outcome, reason))
    result.settled += 1
    result.freed.append((lease.consumer, size))
    lease.next, lease.size = head + 1, size - 1
    leases.free(tx, lease)
    leases.end(tx, lease, head)


def bury(tx: Tx, mailbox: int, id: int, reason: str, attempts: int) -> None:
    """A nacked message becomes a dead letter; its payload stays."""
    tx.run(_BURY, (tx.now, id))
    tx.run(
        "INSERT INTO dead_letter (id, mailbox, reason, failed_at, attempts) VALUES (?, ?, ?, ?, ?)",
        (id, mailbox, reason, tx.now, attempts),
    )
    leases.count(tx, mailbox, -1, 0)
