"""The outbox: what this gateway alone writes and every subscriber may read.

Events are appended to the transaction and get their seq when the commit group ends, where the
whole group is linked into the hash chain and its head signed, once.
"""

from collections.abc import Iterator

from msgspec import UNSET, Raw, Struct, UnsetType

from gatepost.events import (
    Envelope,
    Head,
    NodeKey,
    PayloadRef,
    Trace,
    decode,
    encode,
    event_digest,
    extend,
    genesis,
    parse_event_id,
    sign_head,
)
from gatepost.journal.tx import Tx
from gatepost.journal.writer import Outcome

_LAST_HEAD = "SELECT last_seq, chain FROM head ORDER BY last_seq DESC LIMIT 1"
_APPEND = "INSERT INTO outbox (seq, event_id, ref_id, kind, body, digest) VALUES (?, ?, ?, ?, ?, ?)"
_HEAD = "INSERT INTO head VALUES (?, ?, ?, ?, ?)"
_PREVIOUS = "SELECT last_seq FROM recipient WHERE node_id = ?"
_RECIPIENT = "INSERT OR REPLACE INTO recipient VALUES (?, ?)"


class Draft(Struct, frozen=True, kw_only=True):
    """An event before it has a place in the outbox."""

    event_id: str
    kind: str
    source_agent_id: str
    to_node_id: str | None = None
    to_agent_id: str | None = None
    pair_seq: int = 0
    corr_id: str | None = None
    ref_event_id: str | None = None
    causation_id: str | None = None
    expires_at: int | None = None
    attempt: int = 1
    payload: Raw | UnsetType = UNSET
    payload_ref: PayloadRef | None = None
    trace: Trace | None = None


class Outbox:
    """Takes part in every commit group: numbers, links and signs what was appended."""

    def __init__(self, node_id: str, incarnation: str, key: NodeKey) -> None:
        self.node_id = node_id
        self.incarnation = incarnation
        self._key = key

    def before_commit(self, tx: Tx) -> None:
        if not tx.appended:
            return
        last, chain = self._tail(tx)
        rows = [self._row(tx, seq, draft) for seq, draft in enumerate(tx.appended, last + 1)]
        tx.many(_APPEND, rows)
        head = sign_head(
            self._key,
            node=self.node_id,
            incarnation=self.incarnation,
            first=last + 1,
            last=last + len(rows),
            chain=extend(chain, (row[-1] for row in rows)),
        )
        tx.run(_HEAD, (head.last, head.first, head.chain, head.signature, tx.now))

    def after_commit(self) -> list[Outcome]:
        return []

    def rolled_back(self) -> None:
        """Nothing is kept in memory."""

    def next_due(self, tx: Tx) -> int | None:
        return None

    def _tail(self, tx: Tx) -> tuple[int, bytes]:
        row = tx.one(_LAST_HEAD)
        return (row[0], row[1]) if row else (0, genesis(self.node_id, self.incarnation))

    def _row(
        self, tx: Tx, seq: int, draft: Draft
    ) -> tuple[int, bytes, bytes | None, str, bytes, bytes]:
        body = encode(self._envelope(tx, seq, draft))
        ref = draft.ref_event_id and parse_event_id(draft.ref_event_id)
        return (
            seq,
            parse_event_id(draft.event_id),
            ref or None,
            draft.kind,
            body,
            event_digest(body),
        )

    def _envelope(self, tx: Tx, seq: int, draft: Draft) -> Envelope:
        return Envelope(
            event_id=draft.event_id,
            seq=seq,
            pair_seq=draft.pair_seq,
            prev_seq_to=_previous_to(tx, draft.to_node_id, seq),
            source_node_id=self.node_id,
            source_agent_id=draft.source_agent_id,
            to_node_id=draft.to_node_id,
            to_agent_id=draft.to_agent_id,
            kind=draft.kind,
            corr_id=draft.corr_id,
            ref_event_id=draft.ref_event_id,
            causation_id=draft.causation_id,
            created_at=tx.now,
            expires_at=draft.expires_at,
            attempt=draft.attempt,
            payload=draft.payload,
            payload_ref=draft.payload_ref,
            trace=draft.trace,
        )


def _previous_to(tx: Tx, node_id: str | None, seq: int) -> int:
    """The last seq meant for that node, which from now on is `seq`."""
    if node_id is None:
        return 0
    row = tx.one(_PREVIOUS, (node_id,))
    tx.run(_RECIPIENT, (node_id, seq))
    return int(row[0]) if row else 0


def read(tx: Tx, after: int, limit: int) -> Iterator[Envelope]:
    """Events behind `after`, in order."""
    query = "SELECT body FROM outbox WHERE seq > ? ORDER BY seq LIMIT ?"
    return (decode(row[0]) for row in tx.each(query, (after, limit)))


def journey(tx: Tx, event_id: str) -> list[Envelope]:
    """An event and everything in this outbox that refers to it, in order."""
    id = parse_event_id(event_id)
    query = "SELECT body FROM outbox WHERE event_id = ? OR ref_id = ? ORDER BY seq"
    return [decode(row[0]) for row in tx.rows(query, (id, id))]


def heads(tx: Tx, node_id: str, incarnation: str) -> Iterator[tuple[Head, list[bytes]]]:
    """Every signed head with the digests of the events it vouches for, oldest first."""
    query = "SELECT first_seq, last_seq, chain, signature FROM head ORDER BY last_seq"
    digests = "SELECT digest FROM outbox WHERE seq BETWEEN ? AND ? ORDER BY seq"
    for first, last, chain, signature in tx.each(query):
        head = Head(node_id, incarnation, first, last, chain, signature)
        yield head, [row[0] for row in tx.rows(digests, (first, last))]
