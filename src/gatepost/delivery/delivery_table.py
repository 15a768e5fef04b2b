"""The deliveries of this gateway in the journal, and when the next one is due.

The transactions of this package change deliveries too, each with its own SQL.
"""

from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import astuple

from gatepost.delivery.delivery_states import IS_UNACCEPTED
from gatepost.delivery.outgoing import OutgoingEvent, SenderPair
from gatepost.events import format_event_id, parse_event_id
from gatepost.journal.facts import RESTORED_AT_SQL
from gatepost.journal.outbox_reads import first_seq_to
from gatepost.journal.recipients import sent_through
from gatepost.journal.transaction import Row, Tx


class OpenDelivery(NamedTuple):
    """The part of a delivery that the sender's transactions use; its fields are columns."""

    event_id: bytes
    kind: str
    from_agent: str
    to_agent: str
    corr_id: str
    state: str
    node: str
    offer: int
    routes: int
    attempt: int
    pair_seq: int
    expires_at: int
    accepted_at: int | None
    content_key: bytes | None
    digest: str | None
    reason: str | None
    origin_node: str

    @property
    def id(self) -> str:
        return format_event_id(self.event_id)

    @property
    def pair(self) -> SenderPair:
        return SenderPair(self.from_agent, self.to_agent, self.origin_node)

    @property
    def known_verdict(self) -> str | None:
        """The verdict to keep if the delivery is given up now: the last receipt of its owner."""
        return "accepted" if self.accepted_at is not None else None


class NewDelivery(Struct, frozen=True, kw_only=True):
    """A delivery as it is opened; its fields are columns."""

    event_id: bytes
    kind: str
    from_agent: str
    to_agent: str
    corr_id: str
    state: str
    emitted_at: int
    accepted_at: int | None
    replies_to: str
    node: str | None
    offer: bool
    pair_seq: int
    expires_at: int
    next_at: int
    content_key: bytes | None
    fingerprint: bytes | None
    digest: str | None
    origin: bytes | None
    origin_node: str
    not_before: int


DELIVERY_COLUMNS = ", ".join(OpenDelivery._fields)
_OPEN = f"""
INSERT INTO delivery ({", ".join(NewDelivery.__struct_fields__)})
VALUES ({", ".join("?" * len(NewDelivery.__struct_fields__))})
"""
_SELECT_DELIVERY = f"SELECT {DELIVERY_COLUMNS} FROM delivery WHERE event_id = ?"
_SELECT_NUMBERED = f"""
SELECT {DELIVERY_COLUMNS} FROM delivery WHERE processed_at IS NULL AND pair_seq > 0
    AND event_id IN (SELECT ? UNION ALL SELECT event_id FROM delivery
                     WHERE origin = ? AND processed_at IS NULL)
    AND from_agent = ? AND to_agent = ? AND origin_node = ?
"""
_SELECT_DESTINATIONS = """
SELECT DISTINCT node FROM delivery WHERE processed_at IS NULL AND node IS NOT NULL
"""

# Deliveries since the last restore: the ends of older ones may have been lost.
SINCE_RESTORE = f"emitted_at > {RESTORED_AT_SQL}"

# The verdict of a message that was given up before it was sent.
NEVER_SENT = "never sent"

# The delivery expired after it was sent, and waits because its owner may have taken it.
EXPIRING = "expiring"
# Reasons to park a delivery, so that it is at no node: its owner was revoked before it was sent, or
# its node reports that the agent moved, and no other node is known to host the agent yet.
HOMELESS = "homeless"
MOVED = "moved"
IS_PARKED = f"(reason IN ('{MOVED}', '{HOMELESS}') AND {IS_UNACCEPTED})"


class OpenDeliveries:
    """State of the open deliveries in memory.

    `destinations` are the nodes something was sent to, for the dialer. `next_due` is when the next
    delivery is due; 0 means at once. `previous_now` is the time of the commit group before.
    """

    def __init__(self) -> None:
        self.destinations: set[str] = set()
        self.next_due: int | None = 0
        self.previous_now: int | None = None

    def note_due(self, due: int) -> None:
        if self.next_due is None or due < self.next_due:
            self.next_due = due

    def load_destinations(self, tx: Tx) -> None:
        self.destinations |= {row[0] for row in tx.fetch_all(_SELECT_DESTINATIONS)}

    def forget_due(self) -> None:
        """Read the deadlines from the journal again, because a group was rolled back."""
        self.next_due = 0
        self.previous_now = None


def insert_delivery(tx: Tx, row: NewDelivery) -> None:
    tx.execute(_OPEN, astuple(row))


def insert_deliveries(tx: Tx, rows: list[NewDelivery]) -> None:
    tx.execute_many(_OPEN, [astuple(row) for row in rows])


def find_delivery(tx: Tx, event_id: str) -> OpenDelivery | None:
    row = tx.fetch_one(_SELECT_DELIVERY, (parse_event_id(event_id),))
    return None if row is None else OpenDelivery(*row)


def find_numbered(tx: Tx, out: OutgoingEvent) -> OpenDelivery | None:
    """Our open, numbered delivery of the same message, whether sent first or forwarded from here.

    There is one at most.
    """
    if out.envelope.origin_event_id is None:
        return None
    origin = parse_event_id(out.envelope.origin_event_id)
    row = tx.fetch_one(_SELECT_NUMBERED, (origin, origin, *out.pair))
    return None if row is None else OpenDelivery(*row)


def is_unchanged(tx: Tx, record: OpenDelivery | Row) -> bool:
    return tx.fetch_one(_SELECT_DELIVERY, (record[0],)) == record


def may_have_been_sent(tx: Tx, delivery: OpenDelivery) -> bool:
    """Whether the owner of a delivery may have heard of it."""
    seq = first_seq_to(tx, delivery.event_id, delivery.node)
    sent = sent_through(tx, delivery.node)
    return seq is None or (sent is not None and seq <= sent[1])


def was_sent_to(tx: Tx, event_id: bytes, node: str) -> bool:
    return first_seq_to(tx, event_id, node) is not None
