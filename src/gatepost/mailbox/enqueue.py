"""Put messages into mailboxes."""

from hashlib import blake2b

import apsw
import msgspec

from gatepost.errors import (
    GatepostError,
    IdempotencyConflict,
    MailboxFull,
    Unavailable,
)
from gatepost.journal.transaction import Tx
from gatepost.mailbox.policy import MailboxPolicy
from gatepost.mailbox.states import MailState
from gatepost.wire.operations import EnqueueAck, Failure

# A mail id has 63 bits: 25 for the pair, 38 for the pair number. The highest bit of that number
# marks unordered mail. That is enough for 33 million pairs, and for four years of a thousand
# ordered and a thousand unordered messages a second in one pair.
PAIR_NUMBER_BITS = 38
FIRST_UNORDERED = 1 << PAIR_NUMBER_BITS - 1
IS_UNORDERED = f"id & {FIRST_UNORDERED}"
LAST_PAIR_NUMBER = FIRST_UNORDERED - 1
_LAST_UNORDERED = (1 << PAIR_NUMBER_BITS) - 1
_LAST_PAIR_ID = (1 << 63 - PAIR_NUMBER_BITS) - 1

_SELECT_MAILBOX = "SELECT arrivals, waiting, ordered FROM mailbox WHERE id = ?"
_COUNT_ARRIVALS = "UPDATE mailbox SET arrivals = arrivals + ?, waiting = waiting + ? WHERE id = ?"
_SELECT_PAIR = """
SELECT p.id, p.next_number, p.next_unordered, p.last_rank, p.head IS NULL AND l.slot IS NULL
FROM pair p LEFT JOIN lease l ON l.slot = p.id WHERE p.mailbox = ? AND p.sender = ?
"""
_ADVANCE_PAIR = """
UPDATE pair SET next_number = ?, next_unordered = ?, last_rank = ? WHERE id = ?
"""
_ADVANCE_IDLE_PAIR = """
UPDATE pair SET next_number = ?, next_unordered = ?, last_rank = ?, head = ?, head_rank = ?,
                head_arrival = ?, ready_at = ? WHERE id = ?
"""
_INSERT_MAIL = f"""
INSERT INTO mail (id, mailbox, msg_id, state, attempt, arrival, rank, created_at, expires_at,
                  not_before, max_retries, tracked, fingerprint)
VALUES (?, ?, ?, {MailState.PENDING:d}, 0, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_INSERT_BODY = "INSERT INTO body (id, payload, meta) VALUES (?, ?, ?)"
_SELECT_KNOWN_MAIL = f"""
SELECT p.sender, m.fingerprint FROM mail m JOIN pair p ON p.id = m.id >> {PAIR_NUMBER_BITS}
WHERE m.mailbox = ? AND m.msg_id = ?
"""

# Mail overtakes mail of other senders that is at most this much older.
_MAX_HEAD_START_MS = 3_600_000


class NewMail(msgspec.Struct):
    """A message to enqueue. `meta` marks tracked mail: its sender is told when it is settled.

    Times are in milliseconds; `ttl` is relative. If `ordered` or `max_retries` is None, the mailbox
    decides.
    """

    msg_id: str
    payload: bytes
    created_at: int | None = None
    ttl: int | None = None
    meta: bytes | None = None
    priority: int = 0
    ordered: bool | None = None
    not_before: int = 0
    max_retries: int | None = None


class MailboxPair(msgspec.Struct):
    """A pair's row; `idle` if it has neither a head nor a lease."""

    id: int
    next_number: int
    next_unordered: int
    last_rank: int
    idle: bool

    def assign_mail_id(self, ordered: bool, rank: int) -> tuple[int, int]:
        """Return the mail id and the rank of the pair's next message."""
        if ordered:
            number, self.next_number = self.next_number, self.next_number + 1
            # Within the pair, ordered mail keeps its order whatever its rank would be.
            rank = self.last_rank = max(self.last_rank, rank)
        else:
            number, self.next_unordered = self.next_unordered, self.next_unordered + 1
        return (self.id << PAIR_NUMBER_BITS) + number, rank


def ensure_mailbox(tx: Tx, name: str) -> int:
    """Return the id of the mailbox with that name; create it if it does not exist."""
    if found := find_mailbox(tx, name):
        return found
    ((id,),) = tx.fetch_all("INSERT INTO mailbox (name) VALUES (?) RETURNING id", (name,))
    return int(id)


def find_mailbox(tx: Tx, name: str) -> int:
    """Return the id of the mailbox with that name, or 0, which is never an id."""
    row = tx.fetch_one("SELECT id FROM mailbox WHERE name = ?", (name,))
    return int(row[0]) if row else 0


def set_mailbox_order(tx: Tx, mailbox: int, ordered: bool) -> None:
    """Set the default order of a mailbox. Waiting mail keeps its order."""
    tx.execute("UPDATE mailbox SET ordered = ? WHERE id = ?", (ordered, mailbox))


def find_unordered_mailboxes(tx: Tx) -> set[str]:
    return {row[0] for row in tx.fetch_all("SELECT name FROM mailbox WHERE NOT ordered")}


def pair_of_mail(mail: int) -> int:
    return mail >> PAIR_NUMBER_BITS


def is_unordered(mail: int) -> bool:
    return bool(mail & FIRST_UNORDERED)


def slot_of_mail(mail: int) -> int:
    """Return the slot of the lease on a message: its pair, or itself if it is unordered."""
    return mail if mail & FIRST_UNORDERED else mail >> PAIR_NUMBER_BITS


def last_mail_id(pair: int) -> int:
    """Return the highest id an ordered message of this pair can have."""
    return (pair << PAIR_NUMBER_BITS) | LAST_PAIR_NUMBER


def last_unordered_id(pair: int) -> int:
    """Return the highest id any message of this pair can have."""
    return (pair << PAIR_NUMBER_BITS) | _LAST_UNORDERED


def enqueue_mail(
    tx: Tx,
    mailbox: int,
    sender: str,
    mails: list[NewMail],
    policy: MailboxPolicy,
    even_if_full: bool = False,
) -> list[EnqueueAck]:
    """Enqueue one sender's messages, in order. Each is queued, already known, or refused."""
    arrivals, waiting, ordered = _read_mailbox(tx, mailbox)
    if even_if_full:
        policy = msgspec.structs.replace(policy, max_pending=waiting + len(mails))
    if len(mails) == 1 or waiting + len(mails) > policy.max_pending:
        return [_enqueue_one(tx, mailbox, sender, mail, policy) for mail in mails]
    tx.execute("SAVEPOINT enqueue")
    try:
        _insert_mail(tx, mailbox, sender, mails, arrivals, ordered, policy)
    except apsw.ConstraintError:
        # At least one msg_id is not new. That is rare, so each is looked up only then.
        tx.execute("ROLLBACK TO enqueue")
        tx.execute("RELEASE enqueue")
        return [_enqueue_one(tx, mailbox, sender, mail, policy) for mail in mails]
    # Not in a `finally`: a full disk destroys the savepoint, and its error must not be hidden by
    # the error that releasing it would raise.
    tx.execute("RELEASE enqueue")
    return [EnqueueAck(mail.msg_id, True, waiting + n) for n, mail in enumerate(mails, 1)]


def _enqueue_one(
    tx: Tx, mailbox: int, sender: str, mail: NewMail, policy: MailboxPolicy
) -> EnqueueAck:
    arrivals, waiting, ordered = _read_mailbox(tx, mailbox)
    try:
        if _is_duplicate(tx, mailbox, sender, mail):
            return EnqueueAck(mail.msg_id, False, waiting)
        if waiting >= policy.max_pending:
            raise MailboxFull(f"the mailbox holds {waiting} messages already", retry_after=5.0)
    except GatepostError as error:
        return EnqueueAck(mail.msg_id, False, waiting, Failure.from_error(error, mail.msg_id))
    _insert_mail(tx, mailbox, sender, [mail], arrivals, ordered, policy)
    return EnqueueAck(mail.msg_id, True, waiting + 1)


def _is_duplicate(tx: Tx, mailbox: int, sender: str, mail: NewMail) -> bool:
    row = tx.fetch_one(_SELECT_KNOWN_MAIL, (mailbox, mail.msg_id))
    if row is None:
        return False
    if row != (sender, _payload_fingerprint(mail.payload)):
        raise IdempotencyConflict(f"{mail.msg_id} was used before for another message")
    return True


def _read_mailbox(tx: Tx, mailbox: int) -> tuple[int, int, bool]:
    """Return (messages that ever arrived, messages that wait, whether mail is ordered)."""
    ((arrivals, waiting, ordered),) = tx.fetch_all(_SELECT_MAILBOX, (mailbox,))
    return arrivals, waiting, bool(ordered)


def _payload_fingerprint(payload: bytes) -> bytes:
    return blake2b(payload, digest_size=8).digest()


def _insert_mail(
    tx: Tx,
    mailbox: int,
    sender: str,
    mails: list[NewMail],
    arrivals: int,
    ordered_by_default: bool,
    policy: MailboxPolicy,
) -> None:
    pair = _load_pair(tx, mailbox, sender, len(mails))
    now, head = tx.now, None
    rows, bodies = [], []
    for arrival, mail in enumerate(mails, arrivals):
        ordered = ordered_by_default if mail.ordered is None else mail.ordered
        created = now if mail.created_at is None else mail.created_at
        not_before = mail.not_before if mail.not_before > now else 0
        # Priority n overtakes messages of other pairs that are up to n seconds older. A date in the
        # past overtakes no further.
        rank = max(created, not_before, now - _MAX_HEAD_START_MS) - mail.priority * 1000
        id, rank = pair.assign_mail_id(ordered, rank)
        expires = policy.expiry(now, mail.ttl, not_before)
        tracked, digest = mail.meta is not None, _payload_fingerprint(mail.payload)
        rows.append(
            (id, mailbox, mail.msg_id, arrival, rank, created, expires, not_before,
             mail.max_retries, tracked, digest)
        )  # fmt: skip
        bodies.append((id, mail.payload, mail.meta))
        if ordered and head is None:
            head = (id, rank, arrival, not_before)
    tx.execute_many(_INSERT_MAIL, rows)
    tx.execute_many(_INSERT_BODY, bodies)
    advance = (pair.next_number, pair.next_unordered, pair.last_rank)
    if pair.idle and head is not None:
        tx.execute(_ADVANCE_IDLE_PAIR, (*advance, *head, pair.id))
    else:
        tx.execute(_ADVANCE_PAIR, (*advance, pair.id))
    tx.execute(_COUNT_ARRIVALS, (len(mails), len(mails), mailbox))


def _load_pair(tx: Tx, mailbox: int, sender: str, size: int) -> MailboxPair:
    row = tx.fetch_one(_SELECT_PAIR, (mailbox, sender))
    if row is None:
        tx.execute("INSERT INTO pair (mailbox, sender) VALUES (?, ?)", (mailbox, sender))
        row = tx.fetch_one(_SELECT_PAIR, (mailbox, sender))
        assert row is not None
    pair = MailboxPair(*row)
    is_full = (
        pair.next_number + size > LAST_PAIR_NUMBER or pair.next_unordered + size > _LAST_UNORDERED
    )
    if is_full or pair.id > _LAST_PAIR_ID:
        raise Unavailable(f"this journal has no pair number left for mail from {sender}")
    return pair
