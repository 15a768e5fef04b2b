"""The heads of other outboxes as this gateway has seen them, as evidence for an audit."""

from gatepost.archive.room_facts import HeadFact
from gatepost.journal import Tx

_SELECT_CURSORS = "SELECT source, incarnation, seq, at FROM cursor WHERE seq >= first_seq"
_SELECT_RELAYED = """
SELECT source, incarnation, seq, chain FROM relayed WHERE seq > 0 AND chain IS NOT NULL
"""


def read_seen_heads(tx: Tx) -> tuple[HeadFact, ...]:
    """The position of this gateway in every other outbox, and the chains it has verified itself."""
    heads = [
        HeadFact(node=source, incarnation=incarnation, seq=seq, at=at)
        for source, incarnation, seq, at in tx.fetch_all(_SELECT_CURSORS)
    ]
    heads += [
        HeadFact(node=source, incarnation=incarnation, seq=seq, at=tx.now, chain=chain.hex())
        for source, incarnation, seq, chain in tx.fetch_all(_SELECT_RELAYED)
    ]
    return tuple(sorted(heads, key=lambda head: (head.node, head.incarnation, head.seq)))
