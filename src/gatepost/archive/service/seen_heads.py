"""The heads of other outboxes as this gateway has seen them, as evidence for an audit."""

from gatepost.archive.room_facts import HeadFact
from gatepost.delivery.inbox.cursors import all_positions
from gatepost.journal import Tx
from gatepost.links.outbox_replica import proven_heads


def read_seen_heads(tx: Tx) -> tuple[HeadFact, ...]:
    """The position of this gateway in every other outbox, and the chains it has verified itself."""
    heads = [
        HeadFact(node=source, incarnation=incarnation, seq=seq, at=at)
        for source, incarnation, seq, at in all_positions(tx)
    ]
    heads += [
        HeadFact(node=source, incarnation=incarnation, seq=seq, at=tx.now, chain=chain.hex())
        for source, incarnation, seq, chain in proven_heads(tx)
    ]
    return tuple(sorted(heads, key=lambda head: (head.node, head.incarnation, head.seq)))
