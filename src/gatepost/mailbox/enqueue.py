"""Put messages into mailboxes."""

from hashlib import blake2b

import apsw
import msgspec

from gatepost.errors import (
    GatepostError,
    IdempotencyConflict,
    InvalidRequest,
    MailboxFull,
    Unavailable,
)
from gatepost.journal.tx import Tx
from gatepost.mailbox.policy import Policy
from gatepost.mailbox.states import State
from gatepost.wire import EnqueueAck, Failure

# A mail id has 63 bits: 25 for the pair, 38 for the pair number. That is enough for 33 million
# pairs, and for eight years of a thousand messages a second in one pair.
NUMBER_BITS = 38
LAST_NUMBER = (1 << NUMBER_BITS) - 1
_LAST_PAIR = (1 << 63 - NUMBER_BITS) - 1

_MAILBOX = "SELECT arrivals, waiting FROM mailbox WHERE id = ?"
_ARRIVED = "UPDATE mailbox SET arrivals = arrivals + ?, waiting = waiting + ? WHERE id = ?"
_PAIR = """
SELECT p.id, p.next_number, p.last_rank, p.head IS NULL AND l.pair IS NULL
FROM pair p LEFT JOIN lease l ON l.pair = p.id WHERE p.mailbox = ? AND p.sender = ?
"""
_ADVANCE = "UPDATE pair SET next_number = ?, last_rank = ? WHERE id = ?"
_LEAD = """
UPDATE pair SET next_number = ?, last_rank = ?, head = ?, head_rank = ?, head_arrival = ?,
                ready_at = 0 WHERE id = ?
"""
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
    """A message to enqueue. `meta` marks tracked mail: its sender is told when it is settled.

    Times are in milliseconds; `ttl` is relative.
    """

    msg_id: str
    payload: bytes
    created_at: int | None = None
    ttl: int | None = None
    meta: bytes | None = None
    priority: int = 0


class Pair(msgspec.Struct):
    """A pair's row; `idle` if it has neither a head nor a lease."""

    id: int
    next_number: int
    last_rank: int
    idle: bool


def mailbox_id(tx: Tx, name: str) -> int:
    """Return the id of the mailbox with that name; create it if it does not exist."""
    if found := find_mailbox(tx, name):
        return found
    ((id,),) = tx.rows("INSERT INTO mailbox (name) VALUES (?) RETURNING id", (name,))
    return int(id)


def find_mailbox(tx: Tx, name: str) -> int:
    """Return the id of the mailbox with that name, or 0, which is never an id."""
    row = tx.one("SELECT id FROM mailbox WHERE name = ?", (name,))
    return int(row[0]) if row else 0


def pair_of(mail: int) -> int:
    return mail >> NUMBER_BITS


def pair_end(pair: int) -> int:
    """Return the highest id a message of this pair can have."""
    return (pair << NUMBER_BITS) | LAST_NUMBER


def enqueue(
    tx: Tx, mailbox: int, sender: str, mails: list[Mail], policy: Policy, over: bool = False
) -> list[EnqueueAck]:
    """Enqueue one sender's messages, in order. Each is queued, already known, or refused."""
    arrivals, waiting = _mailbox(tx, mailbox)
    if over:
        policy = msgspec.structs.replace(policy, max_pending=waiting + len(mails))
    if len(mails) == 1 or waiting + len(mails) > policy.max_pending:
        return [_one_by_one(tx, mailbox, sender, mail, policy) for mail in mails]
    tx.run("SAVEPOINT enqueue")
    try:
        _insert(tx, mailbox, sender, mails, arrivals, policy)
    except apsw.ConstraintError:
        # At least one msg_id is not new. That is rare, so each is looked up only then.
        tx.run("ROLLBACK TO enqueue")
        tx.run("RELEASE enqueue")
        return [_one_by_one(tx, mailbox, sender, mail, policy) for mail in mails]
    # Not in a `finally`: a full disk destroys the savepoint, and its error must not be hidden by
    # the error that releasing it would raise.
    tx.run("RELEASE enqueue")
    return [EnqueueAck(mail.msg_id, True, waiting + n) for n, mail in enumerate(mails, 1)]


def _one_by_one(tx: Tx, mailbox: int, sender: str, mail: Mail, policy: Policy) -> EnqueueAck:
    arrivals, waiting = _mailbox(tx, mailbox)
    try:
        if _known(tx, mailbox, sender, mail):
            return EnqueueAck(mail.msg_id, False, waiting)
        if waiting >= policy.max_pending:
            raise MailboxFull(f"the mailbox holds {waiting} messages already", retry_after=5.0)
    except GatepostError as error:
        return EnqueueAck(mail.msg_id, False, waiting, Failure.of(error, mail.msg_id))
    _insert(tx, mailbox, sender, [mail], arrivals, policy)
    return EnqueueAck(mail.msg_id, True, waiting + 1)


def _known(tx: Tx, mailbox: int, sender: str, mail: Mail) -> bool:
    row = tx.one(_SEEN, (mailbox, mail.msg_id))
    if row is None:
        return False
    if row != (sender, _fingerprint(mail.payload)):
        raise IdempotencyConflict(f"{mail.msg_id} was used before for another message")
    return True


def _mailbox(tx: Tx, mailbox: int) -> tuple[int, int]:
    """Return (messages that ever arrived, messages that wait)."""
    ((arrivals, waiting),) = tx.rows(_MAILBOX, (mailbox,))
    return arrivals, waiting


def _fingerprint(payload: bytes) -> bytes:
    return blake2b(payload, digest_size=8).digest()


def _insert(
    tx: Tx, mailbox: int, sender: str, mails: list[Mail], arrivals: int, policy: Policy
) -> None:
    pair = _pair(tx, mailbox, sender, len(mails))
    base = (pair.id << NUMBER_BITS) + pair.next_number
    rank, default_expiry = pair.last_rank, tx.now + policy.ttl
    rows, bodies = [], []
    for n, mail in enumerate(mails):
        created = tx.now if mail.created_at is None else mail.created_at
        expires = default_expiry if mail.ttl is None else tx.now + mail.ttl
        # Priority n overtakes messages of other pairs that are up to n seconds older.
        rank = max(rank, created - mail.priority * 1000)
        id, arrival, tracked = base + n, arrivals + n, mail.meta is not None
        digest = _fingerprint(mail.payload)
        rows.append((id, mailbox, mail.msg_id, arrival, rank, created, expires, tracked, digest))
        bodies.append((id, mail.payload, mail.meta))
    tx.many(_MAIL, rows)
    tx.many(_BODY, bodies)
    advance = (pair.next_number + len(mails), rank)
    if pair.idle:
        tx.run(_LEAD, (*advance, base, rows[0][4], arrivals, pair.id))
    else:
        tx.run(_ADVANCE, (*advance, pair.id))
    tx.run(_ARRIVED, (len(mails), len(mails), mailbox))


def _pair(tx: Tx, mailbox: int, sender: str, size: int) -> Pair:
    row = tx.one(_PAIR, (mailbox, sender))
    if row is None:
        tx.run("INSERT INTO pair (mailbox, sender) VALUES (?, ?)", (mailbox, sender))
        row = tx.one(_PAIR, (mailbox, sender))
        assert row is not None
    pair = Pair(*row)
    if pair.next_number + size > LAST_NUMBER or pair.id > _LAST_PAIR:
        raise Unavailable(f"this journal has no pair number left for mail from {sender}")
    return pair


def check_payload(payload: bytes) -> None:
    """Refuse a payload that is not UTF-8: the decoder skips payloads without validating them."""
    if not payload.isascii():
        try:
            payload.decode()
        except UnicodeDecodeError:
            raise InvalidRequest("the payload is not valid UTF-8") from None
