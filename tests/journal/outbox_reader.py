"""Reads the outbox of a journal: its events, and its signed heads."""

from collections.abc import Iterator

from gatepost.events import ChainHead, Envelope, decode_event
from gatepost.journal import Tx


def read_events(tx: Tx) -> list[Envelope]:
    return [decode_event(row[0]) for row in tx.iterate_rows("SELECT body FROM outbox ORDER BY seq")]


def read_heads(tx: Tx, node_id: str, incarnation: str) -> Iterator[tuple[ChainHead, list[bytes]]]:
    """Yield every signed head with the digests of its events, oldest first."""
    query = "SELECT first_seq, last_seq, chain, signature FROM head ORDER BY last_seq"
    digests = "SELECT digest FROM outbox WHERE seq BETWEEN ? AND ? ORDER BY seq"
    for first, last, chain, signature in tx.iterate_rows(query):
        head = ChainHead(node_id, incarnation, first, last, chain, signature)
        yield head, [row[0] for row in tx.fetch_all(digests, (first, last))]
