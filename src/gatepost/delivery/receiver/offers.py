"""Offers this gateway accepted, which their sender has yet to confirm or to withdraw."""

from gatepost.delivery.receiver.inbox_pairs import InboxPair, PairKey
from gatepost.delivery.receiver.inbox_states import InboxInput
from gatepost.delivery.receiver.inbox_table import InboxTable
from gatepost.events import Envelope, decode_event, parse_event_id
from gatepost.journal.transaction import Tx

_KEEP = """
INSERT INTO offered (source, event_id, body) VALUES (?, ?, ?)
ON CONFLICT (source, event_id) DO UPDATE SET body = excluded.body
"""
_REMOVE = "DELETE FROM offered WHERE source = ? AND event_id = ? RETURNING body"
_SELECT_OF_PAIR = """
SELECT o.event_id FROM offered o JOIN inbox i ON i.source = o.source AND i.event_id = o.event_id
WHERE o.source = ? AND i.sender = ? AND i.mailbox = ? AND i.origin_node = ?
"""


class OfferTable:
    """The offers of one source, in one transaction."""

    def __init__(self, tx: Tx, source: str, inbox: InboxTable) -> None:
        self._tx = tx
        self._source = source
        self._inbox = inbox

    def keep_offer(self, envelope: Envelope, body: bytes) -> None:
        id = parse_event_id(envelope.event_id)
        self._tx.execute(_KEEP, (self._source, id, body))
        self._inbox.record_event(envelope, InboxInput.OFFER)

    def take_offer(self, event_id: bytes) -> Envelope | None:
        """Remove an offer; returns its event, or None if there is no such offer."""
        row = self._tx.fetch_one(_REMOVE, (self._source, event_id))
        return None if row is None else decode_event(row[0])

    def withdraw_all(self, key: PairKey, pair: InboxPair) -> None:
        """Drop a pair's offers: the new incarnation of their sender does not know of them."""
        for (id,) in self._tx.fetch_all(_SELECT_OF_PAIR, key) if pair.offered else ():
            self.take_offer(id)
            self._inbox.change_state(id, InboxInput.LAPSE)
        pair.count_offered(-pair.offered)


def forget_undecided(tx: Tx) -> None:
    """In a restored journal: senders may have decided about offers and refusals since."""
    tx.execute("DELETE FROM offered")
    tx.execute("UPDATE inbox_pair SET offered = 0, refused = 0")
