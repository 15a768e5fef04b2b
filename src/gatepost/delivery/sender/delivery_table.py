"""The deliveries of this gateway in the journal, and the earliest time one has to be looked at."""

from typing import NamedTuple

from gatepost.delivery.delivery_states import IS_UNACCEPTED, DeliveryState
from gatepost.delivery.outgoing import OutgoingEvent, SenderPair
from gatepost.events import format_event_id, parse_event_id
from gatepost.journal.transaction import Row, Tx
from gatepost.routing import Route

DELIVERY_COLUMNS = """event_id, kind, from_agent, to_agent, corr_id, state, node, offer, routes,
    attempt, pair_seq, expires_at, accepted_at, content_key, digest, reason, origin_node"""

_OPEN = """
INSERT INTO delivery (event_id, kind, from_agent, to_agent, corr_id, state, emitted_at, accepted_at,
    replies_to, node, offer, pair_seq, expires_at, next_at, content_key, fingerprint, digest,
    origin, origin_node, not_before)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
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
_SELECT_FIRST_SEQ = "SELECT min(seq) FROM outbox WHERE event_id = ? AND to_node = ?"

_SELECT_SENT_SEQ = "SELECT sent_seq FROM recipient WHERE node_id = ?"

# A delivery whose whole story is in this journal: what became of older ones may have been lost.
SINCE_RESTORE = """
emitted_at > coalesce((SELECT value FROM fact WHERE name = 'restored_at'), 0)
"""

# Why a delivery waits that expired after it was sent: its owner may have taken it.
EXPIRING = "expiring"
# Why a delivery is parked, which is then at no node: its owner was revoked before it was sent, or
# its node says that the agent moved. No other node is known to host the agent yet.
HOMELESS = "homeless"
MOVED = "moved"
IS_PARKED = f"(reason IN ('{MOVED}', '{HOMELESS}') AND {IS_UNACCEPTED})"


class OpenDelivery(NamedTuple):
    """One row of the table."""

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


class DeliveryTable:
    """`destinations` are the nodes something was sent to, for the dialer.

    `next_due` is the earliest time the timers have to look at a delivery; 0 means at once.
    """

    def __init__(self) -> None:
        self.destinations: set[str] = set()
        self.next_due: int | None = 0

    def open(
        self,
        tx: Tx,
        out: OutgoingEvent,
        state: DeliveryState,
        route: Route | None,
        number: int,
        expires: int,
        due: int,
        content_key: bytes | None,
    ) -> None:
        """Write down a new delivery."""
        tx.execute(_OPEN, self.build_row(tx, out, state, route, number, expires, due, content_key))
        self.note_due(due)

    def open_accepted(
        self, tx: Tx, events: list[OutgoingEvent], route: Route, ttl: int, sla: int
    ) -> None:
        """Write down deliveries without numbers that this gateway has accepted itself."""
        rows = []
        for out in events:
            expires, due = out.expires_at(tx.now, ttl), out.due_at(tx.now) + sla
            state = DeliveryState.ACCEPTED
            rows.append(self.build_row(tx, out, state, route, 0, expires, due, None))
            self.note_due(due)
        tx.execute_many(_OPEN, rows)

    def build_row(
        self,
        tx: Tx,
        out: OutgoingEvent,
        state: DeliveryState,
        route: Route | None,
        number: int,
        expires: int,
        due: int,
        content_key: bytes | None,
    ) -> Row:
        node, offer = (route.node, route.offer) if route else (None, False)
        accepted = tx.now if state is DeliveryState.ACCEPTED else None
        head = (parse_event_id(out.event_id), out.kind, out.from_agent, out.to_agent, out.corr_id)
        times = (state.value, tx.now, accepted, out.replies_to)
        tail = (node, offer, number, expires, due, content_key, out.fingerprint, out.digest)
        origin = parse_event_id(out.origin_event_id) if out.origin_event_id else None
        return (*head, *times, *tail, origin, out.origin_node, out.not_before or 0)

    def find(self, tx: Tx, event_id: str) -> OpenDelivery | None:
        row = tx.fetch_one(_SELECT_DELIVERY, (parse_event_id(event_id),))
        return None if row is None else OpenDelivery(*row)

    def find_numbered(self, tx: Tx, out: OutgoingEvent) -> OpenDelivery | None:
        """Our open delivery of the same message with a number: its first event, or one forwarded.

        There is one at most.
        """
        if out.origin_event_id is None:
            return None
        origin = parse_event_id(out.origin_event_id)
        row = tx.fetch_one(_SELECT_NUMBERED, (origin, origin, *out.pair))
        return None if row is None else OpenDelivery(*row)

    def is_unchanged(self, tx: Tx, record: OpenDelivery | Row) -> bool:
        return tx.fetch_one(_SELECT_DELIVERY, (record[0],)) == record

    def note_due(self, due: int) -> None:
        if self.next_due is None or due < self.next_due:
            self.next_due = due

    def load_destinations(self, tx: Tx) -> None:
        self.destinations |= {row[0] for row in tx.fetch_all(_SELECT_DESTINATIONS)}


def may_have_been_sent(tx: Tx, delivery: OpenDelivery) -> bool:
    """Whether the owner of a delivery may have heard of it."""
    seq = first_seq_to(tx, delivery.event_id, delivery.node)
    row = tx.fetch_one(_SELECT_SENT_SEQ, (delivery.node,))
    return seq is None or (row is not None and seq <= row[0])


def first_seq_to(tx: Tx, event_id: bytes, node: str) -> int | None:
    """The seq under which an event was first appended for a node."""
    ((seq,),) = tx.fetch_all(_SELECT_FIRST_SEQ, (event_id, node))
    return None if seq is None else int(seq)


def was_sent_to(tx: Tx, event_id: bytes, node: str) -> bool:
    return first_seq_to(tx, event_id, node) is not None
