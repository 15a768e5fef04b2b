"""What deliveries may forget, and what the outbox has to keep for others.

The outbox is forgotten up to where every active reader has taken it and no delivery is open. A
reader that is away too long is not waited for: it is cut off from what is that old, and told so
when it comes back.
"""

from gatepost.delivery.incidents import Incidents
from gatepost.delivery.receiver import Receiver
from gatepost.delivery.sender import Sender
from gatepost.journal.outbox import EVERYBODY
from gatepost.journal.transaction import Tx

# People look at incidents long after everything else about them is gone.
_INCIDENTS_MS = 30 * 86_400_000

_HEX = "lower(hex(event_id))"
_PARTS = ((1, 8), (9, 4), (13, 4), (17, 4), (21, 12))
_MSG_ID = " || '-' || ".join(f"substr({_HEX}, {start}, {size})" for start, size in _PARTS)
# A taken event is remembered as long as it may come again: until its mail is settled, and until
# its sender has read what we said about it.
_INBOX = f"""
DELETE FROM inbox WHERE (source, event_id) IN (
    SELECT source, event_id FROM inbox WHERE at <= ? AND state NOT IN ('held', 'offered')
    AND NOT EXISTS (
        SELECT 1 FROM mail m JOIN mailbox b ON b.id = m.mailbox
        WHERE b.name = inbox.mailbox AND m.msg_id = {_MSG_ID} AND m.state < 3
    )
    AND NOT EXISTS (
        SELECT 1 FROM handover h
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
# What became of mail that was handed over is asked for as long as the event may come again.
_HANDOVERS = """
DELETE FROM handover WHERE event_id IN (
    SELECT event_id FROM handover h WHERE at <= ? AND outcome IS NOT NULL AND NOT EXISTS (
        SELECT 1 FROM inbox i WHERE i.source = h.source AND i.event_id = h.original
    ) LIMIT ?
)
"""
_INCIDENTS = """
DELETE FROM incident WHERE id IN (SELECT id FROM incident WHERE raised_at <= ? LIMIT ?)
"""
# Held or offered, and their own time is over: their sender has nothing more to say.
_LEFTOVERS = """
SELECT i.source, i.event_id FROM inbox i
LEFT JOIN held h ON h.source = i.source AND h.sender = i.sender AND h.mailbox = i.mailbox
    AND h.event_id = i.event_id
LEFT JOIN offered o ON o.source = i.source AND o.event_id = i.event_id
WHERE i.at <= ?1 AND i.state IN ('held', 'offered')
AND CAST(coalesce(h.body, o.body) AS TEXT) ->> '$.expiresAt' <= ?2 LIMIT ?3
"""

_READERS = "SELECT node_id, acked_seq, cut_seq, seen_at FROM recipient"
_NEEDS = f"SELECT min(seq) FROM outbox WHERE to_node IN (?, '{EVERYBODY}') AND seq > ?"
_SINCE = "SELECT signed_at FROM head WHERE last_seq >= ? ORDER BY last_seq LIMIT 1"
_OLD = "SELECT max(last_seq) FROM head WHERE signed_at <= ?"
_CUT = """
INSERT INTO recipient (node_id, last_seq, cut_seq) VALUES (?1, 0, ?2)
ON CONFLICT (node_id) DO UPDATE SET cut_seq = max(cut_seq, ?2)
"""
_LOWEST_OPEN = """
SELECT min(o.seq) FROM delivery d JOIN outbox o ON o.event_id = d.event_id
WHERE d.processed_at IS NULL
"""


def forget(tx: Tx, receiver: Receiver, before: int, batch: int) -> int:
    """Forget what was settled before that time; how much. Again and again, until it is 0."""
    leftovers = tx.fetch_all(_LEFTOVERS, (before, tx.now, batch))
    for source, event_id in leftovers:
        receiver.expire(tx, source, event_id)
    gone = len(leftovers)
    incidents = (_INCIDENTS, tx.now - _INCIDENTS_MS)
    for sql, moment in ((_INBOX, before), (_HANDOVERS, before), incidents):
        tx.execute(sql, (moment, batch))
        gone += tx.changed_rows()
    return gone


class Bounds:
    """How far the outbox may be forgotten. Readers are the members of the room, as last heard."""

    def __init__(self, me: str, sender: Sender, incidents: Incidents, cut_off: int) -> None:
        self._me = me
        self._sender = sender
        self._incidents = incidents
        self._cut_off = cut_off

    def read(self, tx: Tx) -> int | None:
        """The highest seq that every active reader has done with; None if none waits for any."""
        return _before(self.lowest_needed(tx))

    def settled(self, tx: Tx) -> int | None:
        """The highest seq before the first open delivery; None if there is none open."""
        return _before(self.lowest_open(tx))

    def lowest_needed(self, tx: Tx) -> int | None:
        """The lowest seq that some active reader has not taken yet."""
        needs = (self._needs(tx, node, done) for node, done, _ in self._active(tx))
        return min((seq for seq in needs if seq is not None), default=None)

    def lowest_open(self, tx: Tx) -> int | None:
        """The lowest seq of an event whose delivery is open."""
        ((seq,),) = tx.fetch_all(_LOWEST_OPEN)
        return None if seq is None else int(seq)

    def cut_off(self, tx: Tx) -> list[str]:
        """Wait no longer for readers that are away too long; who they are."""
        gone = [
            node
            for node, done, seen_at in self._active(tx)
            if not self._sender.directory.is_online(node) and self._is_late(tx, node, done, seen_at)
        ]
        for node in gone:
            ((upto,),) = tx.fetch_all(_OLD, (tx.now - self._cut_off,))
            tx.execute(_CUT, (node, upto))
            why = f"it was away too long, and misses what is for it up to seq {upto}"
            self._incidents.raise_(tx, "reader_cut_off", f"{node}/{upto}", why)
        return gone

    def _active(self, tx: Tx) -> list[tuple[str, int, int]]:
        """(node, up to where it needs nothing, when it was last seen) of every other member."""
        known = {row[0]: (max(row[1], row[2]), row[3]) for row in tx.fetch_all(_READERS)}
        others = (node for node in self._sender.directory.gateways if node != self._me)
        return [(node, *known.get(node, (0, 0))) for node in others]

    def _needs(self, tx: Tx, node: str, done: int) -> int | None:
        ((seq,),) = tx.fetch_all(_NEEDS, (node, done))
        return None if seq is None else int(seq)

    def _is_late(self, tx: Tx, node: str, done: int, seen_at: int) -> bool:
        """Whether something has waited too long for it, and it was not here since."""
        first = self._needs(tx, node, done)
        if first is None:
            return False
        ((since,),) = tx.fetch_all(_SINCE, (first,))
        return max(int(since), seen_at) <= tx.now - self._cut_off


def _before(seq: int | None) -> int | None:
    return None if seq is None else seq - 1
