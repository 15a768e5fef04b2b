"""Retention: which rows of deliveries may be forgotten, and what the outbox keeps for its readers.

The outbox is forgotten up to where every active reader has taken it and no delivery is open. A
reader that is away too long is not waited for: events that old are no longer kept for it, and when
it comes back it gets them from the archive, if they are there.
"""

from gatepost.delivery.assembly import DeliveryCore
from gatepost.delivery.incidents import IncidentLog
from gatepost.delivery.release import expire_event
from gatepost.delivery.routes import RouteFinder
from gatepost.journal.outbox import EVERYBODY
from gatepost.journal.transaction import Tx
from gatepost.mailbox import MailState

# People look at incidents long after everything else about them is gone.
_KEEP_INCIDENTS_MS = 30 * 86_400_000
_KEEP_OF_CLASS = 10_000

_HEX = "lower(hex(event_id))"
_PARTS = ((1, 8), (9, 4), (13, 4), (17, 4), (21, 12))
_MSG_ID = " || '-' || ".join(f"substr({_HEX}, {start}, {size})" for start, size in _PARTS)
# A taken event is remembered as long as it may come again: until its mail is settled, and until
# its sender has read the receipts for it.
_FORGET_INBOX = f"""
DELETE FROM inbox WHERE (source, event_id) IN (
    SELECT source, event_id FROM inbox WHERE at <= ? AND state NOT IN ('held', 'offered')
    AND NOT EXISTS (
        SELECT 1 FROM mail m JOIN mailbox b ON b.id = m.mailbox
        WHERE b.name = inbox.mailbox AND m.msg_id = {_MSG_ID} AND m.state < {MailState.ACKED:d}
    )
    AND NOT EXISTS (
        SELECT 1 FROM forwarded h
        WHERE h.source = inbox.source AND h.original = inbox.event_id AND h.outcome IS NULL
    )
    AND NOT EXISTS (
        SELECT 1 FROM outbox o JOIN recipient r ON r.node_id = o.to_node
        WHERE o.ref_id = inbox.event_id AND o.to_node = inbox.source
        AND o.seq > max(r.acked_seq, r.cut_seq)
    )
    LIMIT ?
)
"""
# The outcome of forwarded mail is asked for as long as its event may come again.
_FORGET_FORWARDS = """
DELETE FROM forwarded WHERE event_id IN (
    SELECT event_id FROM forwarded h WHERE at <= ? AND outcome IS NOT NULL AND NOT EXISTS (
        SELECT 1 FROM inbox i WHERE i.source = h.source AND i.event_id = h.original
    ) LIMIT ?
)
"""
_FORGET_INCIDENTS = """
DELETE FROM incident WHERE id IN (SELECT id FROM incident WHERE raised_at <= ? LIMIT ?)
"""
_COUNT_INCIDENTS = "SELECT class, count(*) FROM incident GROUP BY class HAVING count(*) > ?"
_FORGET_OLDEST = """
DELETE FROM incident
WHERE id IN (SELECT id FROM incident WHERE class = ? ORDER BY raised_at LIMIT ?)
"""
# Held or offered events that have expired: their sender decides nothing about them any more.
_SELECT_EXPIRED = """
SELECT i.source, i.event_id FROM inbox i
LEFT JOIN held h ON h.source = i.source AND h.sender = i.sender AND h.mailbox = i.mailbox
    AND h.event_id = i.event_id
LEFT JOIN offered o ON o.source = i.source AND o.event_id = i.event_id
WHERE i.at <= ?1 AND i.state IN ('held', 'offered')
AND CAST(coalesce(h.body, o.body) AS TEXT) ->> '$.expiresAt' <= ?2 LIMIT ?3
"""

_SELECT_READERS = "SELECT node_id, acked_seq, cut_seq, seen_at FROM recipient"
_SELECT_NEEDED = f"SELECT min(seq) FROM outbox WHERE to_node IN (?, '{EVERYBODY}') AND seq > ?"
_SELECT_SIGNED_AT = "SELECT signed_at FROM head WHERE last_seq >= ? ORDER BY last_seq LIMIT 1"
_SELECT_OLD = "SELECT max(last_seq) FROM head WHERE signed_at <= ?"
_CUT_OFF = """
INSERT INTO recipient (node_id, last_seq, cut_seq) VALUES (?1, 0, ?2)
ON CONFLICT (node_id) DO UPDATE SET cut_seq = max(cut_seq, ?2)
"""
_SELECT_LOWEST_OPEN = """
SELECT min(o.seq) FROM delivery d JOIN outbox o ON o.event_id = d.event_id
WHERE d.processed_at IS NULL
"""


def forget_closed(tx: Tx, core: DeliveryCore, before: int, batch: int) -> int:
    """Forget rows that were closed before that time; returns how many. Repeat it until 0."""
    expired = tx.fetch_all(_SELECT_EXPIRED, (before, tx.now, batch))
    for source, event_id in expired:
        core.coordinator.apply_decisions(tx, expire_event(core.parts, tx, source, event_id))
    gone = len(expired)
    incidents = (_FORGET_INCIDENTS, tx.now - _KEEP_INCIDENTS_MS)
    for sql, moment in ((_FORGET_INBOX, before), (_FORGET_FORWARDS, before), incidents):
        tx.execute(sql, (moment, batch))
        gone += tx.changed_rows()
    for kind, count in tx.fetch_all(_COUNT_INCIDENTS, (_KEEP_OF_CLASS,)):
        tx.execute(_FORGET_OLDEST, (kind, min(batch, count - _KEEP_OF_CLASS)))
        gone += tx.changed_rows()
    return gone


class OutboxBounds:
    """How far the outbox may be forgotten. Its readers are the members of the room."""

    def __init__(self, me: str, routes: RouteFinder, incidents: IncidentLog, cut_off: int) -> None:
        self._me = me
        self._routes = routes
        self._incidents = incidents
        self._cut_off = cut_off

    def read_through(self, tx: Tx) -> int | None:
        """The highest seq that every active reader has taken; None if none waits for any."""
        return _seq_before(self.lowest_needed(tx))

    def closed_through(self, tx: Tx) -> int | None:
        """The highest seq before the first open delivery; None if there is none open."""
        return _seq_before(self.lowest_open(tx))

    def lowest_needed(self, tx: Tx) -> int | None:
        """The lowest seq that some active reader has not taken yet."""
        needed = (self._next_needed(tx, node, done) for node, done, _ in self._readers(tx))
        return min((seq for seq in needed if seq is not None), default=None)

    def lowest_open(self, tx: Tx) -> int | None:
        """The lowest seq of an event whose delivery is open."""
        ((seq,),) = tx.fetch_all(_SELECT_LOWEST_OPEN)
        return None if seq is None else int(seq)

    def cut_off_readers(self, tx: Tx) -> list[str]:
        """Wait no longer for readers that are away too long; returns them."""
        gone = [
            node
            for node, done, seen_at in self._readers(tx)
            if not self._routes.is_online(node) and self._is_late(tx, node, done, seen_at)
        ]
        for node in gone:
            ((upto,),) = tx.fetch_all(_SELECT_OLD, (tx.now - self._cut_off,))
            tx.execute(_CUT_OFF, (node, upto))
            why = f"it was away too long: events for it up to seq {upto} are only in the archive"
            self._incidents.raise_(tx, "reader_cut_off", f"{node}/{upto}", why)
        return gone

    def _readers(self, tx: Tx) -> list[tuple[str, int, int]]:
        """(node, seq up to which it needs nothing, when it was last seen) of each other member."""
        known = {row[0]: (max(row[1], row[2]), row[3]) for row in tx.fetch_all(_SELECT_READERS)}
        others = (node for node in self._routes.directory.gateways if node != self._me)
        return [(node, *known.get(node, (0, 0))) for node in others]

    def _next_needed(self, tx: Tx, node: str, done: int) -> int | None:
        ((seq,),) = tx.fetch_all(_SELECT_NEEDED, (node, done))
        return None if seq is None else int(seq)

    def _is_late(self, tx: Tx, node: str, done: int, seen_at: int) -> bool:
        """Whether an event has waited too long for a reader that was not here since."""
        first = self._next_needed(tx, node, done)
        if first is None:
            return False
        ((since,),) = tx.fetch_all(_SELECT_SIGNED_AT, (first,))
        return max(int(since), seen_at) <= tx.now - self._cut_off


def _seq_before(seq: int | None) -> int | None:
    return None if seq is None else seq - 1
