"""The theory of offers and fallbacks, and the table of offers whose sender has yet to decide.

A message that can go to more than one node must be engaged by one of them only, though nodes come
and go and no clocks are compared. So it is sent as an *offer*:

1. The sender alone decides who engages it. `accepted` only answers an offer; it engages no agent.
   The receiver keeps the event here, in state `offered`; it is not mail yet.
2. The sender writes `confirm` to one node, in its own outbox: the node that the delivery is
   routed to when the receipt comes, if the receipt names the current offer. Only that node
   engages its agent.
3. Before an offer goes to another node, the sender writes `withdraw` to the node that had it. A
   node drops a withdrawn offer, and its number is open again there.
4. The offers of one message are numbered (`Envelope.offer`), and a receipt names its number. A
   message that comes back to a node is not confirmed for the offer before.
5. The unaccepted offers of a pair move together, and not past accepted work that is still open
   (rule 4 of `gatepost.delivery.pairs`). Unordered offers move on their own.
6. Behind an undecided offer its pair waits, unless the next event is an offer too. Confirmed
   offers become mail in the order of their numbers: one that is confirmed further on in the
   outbox is confirmed at once only if no earlier number of its pair is undecided.
7. An offer that its sender forgets, because the sender was restored, lapses. In a restored
   journal here, every offer is handed back to its sender's judgement.

A message whose owner is away, and that no relay takes, is an offer as well: its agent may get
another home before the event was ever sent. A reply is never an offer: one node alone waits for
it.

The sender's half is in `gatepost.delivery.reroute` (where offers go) and
`gatepost.delivery.close` (which receipt confirms one).
"""

from gatepost.delivery.inbox.inbox_pairs import InboxPair, PairKey
from gatepost.delivery.inbox.inbox_states import InboxInput
from gatepost.delivery.inbox.inbox_table import change_state, record_event
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


def keep_offer(tx: Tx, source: str, envelope: Envelope, body: bytes) -> None:
    id = parse_event_id(envelope.event_id)
    tx.execute(_KEEP, (source, id, body))
    record_event(tx, source, envelope, InboxInput.OFFER)


def take_offer(tx: Tx, source: str, event_id: bytes) -> Envelope | None:
    """Remove an offer and return its event; None if the offer is unknown."""
    row = tx.fetch_one(_REMOVE, (source, event_id))
    return None if row is None else decode_event(row[0])


def withdraw_offers_of(tx: Tx, key: PairKey, pair: InboxPair) -> None:
    """Drop a pair's offers: the new incarnation of their sender does not know of them."""
    for (id,) in tx.fetch_all(_SELECT_OF_PAIR, key) if pair.offered else ():
        take_offer(tx, key.source, id)
        change_state(tx, key.source, id, InboxInput.LAPSE)
    pair.count_offered(-pair.offered)


def forget_undecided(tx: Tx) -> None:
    """In a restored journal: senders may have decided about offers and refusals since."""
    tx.execute("DELETE FROM offered")
    tx.execute("UPDATE inbox_pair SET offered = 0, refused = 0")
