"""Putting messages into mailboxes."""

from hashlib import blake2b

import apsw
import msgspec

from gatepost.errors import GatepostError, IdempotencyConflict, InvalidRequest, MailboxFull
from gatepost.journal.tx import Tx
from gatepost.mailbox.policy import Policy
from gatepost.mailbox.states import State
from gatepost.wire import EnqueueAck, Failure

NUMBER_BITS = 32

_PAIR = """
SELECT p.id, p.next_number, p.last_rank, p.head IS NULL AND l.id IS NULL
FROM pair p LEFT JOIN lease l ON l.pair = p.id WHERE p.mailbox = ? AND p.sender = ?
"""
_ADVANCE = "UPDATE pair SET next_number = ?, last_rank = ? WHERE id = ?"
_LEAD = "UPDATE pair SET head = ?, head_rank = ?, head_arrival = ?, ready_at = 0 WHERE id = ?"
_MAIL = f"""
INSERT INTO mail (id, mailbox, msg_id, state, attempt, arrival, rank, created_at, expires_at,
                  not_before, tracked, fingerprint)
VALUES (?, ?, ?, {State.PENDING:d}, 0, ?, ?, ?, ?, 0, ?, ?)
"""
_BODY = "INSERT INTO body (id, payload, meta) VALUES (?, ?, ?)"
_SEEN = f"""
SELECT p.sender, m.fingerprint FROM mail m JOIN pair p ON p.id = m.id >> {NUMBER_BITS}
WHERE m.mailbox = ? AND m.msg_id = ?
"""


class Mail(msgspec.Struct):
    """A message on its way in. `meta` marks mail whose sender is told when it is settled."""

    msg_id: str
    payload: bytes
    created_at: int | None = None
    ttl: int | None = None
    meta: bytes | None = None


class Pair(msgspec.Struct):
    id: int
    next_number: int
    last_rank: int
    idle: bool


def mailbox_id(tx: Tx, name: str) -> int:
    """The mailbox of that name, which comes into being when it is first addressed."""
    row = tx.one("SELECT id FROM mailbox WHERE name = ?", (name,))
    if row is None:
        row = tx.one("INSERT INTO mailbox (name) VALUES (?) RETURNING id", (name,))
        assert row is not None
    return int(row[0])


def enqueue(
    tx: Tx, mailbox: int, sender: str, mails: list[Mail], policy: Policy
) -> list[EnqueueAck]:
    """One sender's messages for one mailbox, in order. Each is queued, known already or refused."""
    waiting = _waiting(tx, mailbox)
    if waiting + len(mails) > policy.max_pending:
        return [_one_by_one(tx, mailbox, sender, mail, policy) for mail in mails]
    tx.run("SAVEPOINT enqueue")
    try:
        _insert(tx, mailbox, sender, mails, policy)
    except apsw.ConstraintError:
        # At least one msg_id is not new. That is rare, so only then is each looked up.
        tx.run("ROLLBACK TO enqueue")
        return [_one_by_one(tx, mailbox, sender, mail, policy) for mail in mails]
    finally:
        tx.run("RELEASE enqueue")
    return [EnqueueAck(mail.msg_id, True, waiting + n) for n, mail in enumerate(mails, 1)]


def _one_by_one(tx: Tx, mailbox: int, sender: str, mail: Mail, policy: Policy) -> EnqueueAck:
    waiting = _waiting(tx, mailbox)
    try:
        if _known(tx, mailbox, sender, mail):
            return EnqueueAck(mail.msg_id, False, waiting)
        if waiting >= policy.max_pending:
            raise MailboxFull(f"the mailbox holds {waiting} messages already", retry_after=5.0)
    except GatepostError as error:
        return EnqueueAck(mail.msg_id, False, waiting, Failure.of(error, mail.msg_id))
    _insert(tx, mailbox, sender, [mail], policy)
    return EnqueueAck(mail.msg_id, True, waiting + 1)


def _known(tx: Tx, mailbox: int, sender: str, mail: Mail) -> bool:
    row = tx.one(_SEEN, (mailbox, mail.msg_id))
    if row is None:
        return False
    if row != (sender, _fingerprint(mail.payload)):
        raise IdempotencyConflict(f"{mail.msg_id} was used before for another message")
    return True


def _waiting(tx: Tx, mailbox: int) -> int:
    row = tx.one("SELECT waiting FROM mailbox WHERE id = ?", (mailbox,))
    return int(row[0]) if row else 0


def _fingerprint(payload: bytes) -> bytes:
    return blake2b(payload, digest_size=8).digest()


def _insert(tx: Tx, mailbox: int, sender: str, mails: list[Mail], policy: Policy) -> None:
    pair = _pair(tx, mailbox, sender)
    base = (pair.id << NUMBER_BITS) + pair.next_number
    rank = pair.last_rank
    rows, bodies = [], []
    for id, mail in enumerate(mails, base):
        created = tx.now if mail.created_at is None else mail.created_at
        expires = tx.now + (policy.ttl if mail.ttl is None else mail.ttl)
        rank = max(rank, created)
        mark = _fingerprint(mail.payload)
        tracked = mail.meta is not None
        rows.append((id, mailbox, mail.msg_id, tx.tick(), rank, created, expires, tracked, mark))
        bodies.append((id, mail.payload, mail.meta))
    tx.many(_MAIL, rows)
    tx.many(_BODY, bodies)
    tx.run(_ADVANCE, (pair.next_number + len(mails), rank, pair.id))
    if pair.idle:
        tx.run(_LEAD, (base, rows[0][4], rows[0][3], pair.id))
    tx.run("UPDATE mailbox SET waiting = waiting + ? WHERE id = ?", (len(mails), mailbox))


def _pair(tx: Tx, mailbox: int, sender: str) -> Pair:
    row = tx.one(_PAIR, (mailbox, sender))
    if row is None:
        tx.run("INSERT INTO pair (mailbox, sender) VALUES (?, ?)", (mailbox, sender))
        row = tx.one(_PAIR, (mailbox, sender))
        assert row is not None
    return Pair(*row)


def check_payload(payload: bytes) -> None:
    """JSON is UTF-8; a decoder that skips over a payload has not looked."""
    if not payload.isascii():
        try:
            payload.decode()
        except UnicodeDecodeError:
            raise InvalidRequest("the payload is not valid UTF-8") from None
