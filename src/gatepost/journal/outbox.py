"""The outbox: the log of events that only this gateway writes and every subscriber may read.

Operations append events to the transaction. When the commit group ends, they get their seq, the
whole group is linked into the hash chain, and its head is signed once. As soon as the group is on
disk, it is handed to `on_published`.
"""

from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from gatepost.events import (
    ChainHead,
    Envelope,
    NodeKey,
    decode_event,
    encode_event,
    event_digest,
    extend_chain,
    genesis_chain,
    parse_event_id,
    sign_head,
)
from gatepost.journal.incarnations import first_seq_of
from gatepost.journal.transaction import Tx
from gatepost.journal.writer import JobOutcome

# The node of a draft that is for every subscriber. As written, the event names no node.
EVERYBODY = "*"

_SELECT_LAST_HEAD = "SELECT last_seq, chain FROM head ORDER BY last_seq DESC LIMIT 1"
_INSERT_EVENT = """
INSERT INTO outbox (seq, event_id, ref_id, kind, body, digest, to_node) VALUES (?, ?, ?, ?, ?, ?, ?)
"""
_INSERT_HEAD = """
INSERT INTO head (last_seq, first_seq, chain, signature, signed_at) VALUES (?, ?, ?, ?, ?)
"""
_UPSERT_RECIPIENT = """
INSERT INTO recipient (node_id, last_seq, sent_seq) VALUES (?1, ?2, ?3)
ON CONFLICT (node_id) DO UPDATE SET last_seq = ?2, sent_seq = max(sent_seq, ?3)
"""


# seq, event id, referenced event id, kind, encoded event, its digest, recipient node
AppendedRow = tuple[int, bytes, bytes | None, str, bytes, bytes, str | None]


class OutboxGroup(Struct, frozen=True):
    """The events of one commit group: their signed head, the chain before them, their rows.

    `positions_by_node` maps a recipient node to the indexes of its rows.
    """

    head: ChainHead
    previous_chain: bytes
    rows: list[AppendedRow]
    positions_by_node: dict[str, list[int]]

    def rows_for(self, node: str) -> list[tuple[int, bytes]]:
        """Return (seq, event) of the rows for a node, in order."""
        own, shared = (
            self.positions_by_node.get(node, []),
            self.positions_by_node.get(EVERYBODY, []),
        )
        positions = sorted(own + shared) if own and shared else own or shared
        return [(self.rows[position][0], self.rows[position][4]) for position in positions]


PublishCallback = Callable[[OutboxGroup], None]


class Outbox:
    """Takes part in every commit group: numbers, chains and signs the appended events.

    `live_nodes` are sent new events as soon as these are on disk. If EVERYBODY is among them, a
    relay sends the events to all recipients.
    """

    def __init__(self, node_id: str, incarnation: str, key: NodeKey) -> None:
        self.node_id = node_id
        self.incarnation = incarnation
        self._key = key
        self.live_nodes: frozenset[str] = frozenset()
        self.on_published: PublishCallback | None = None
        self._group: OutboxGroup | None = None
        # The last seq for each node, and the tail of the chain; read again after a rollback.
        self._last_seq_to: dict[str, int] = {}
        self._tail: tuple[int, bytes] | None = None

    def before_commit(self, tx: Tx) -> None:
        if not tx.appended_drafts:
            return
        last, chain = self._tail or self._read_tail(tx)
        touched: dict[str, int] = {}
        rows = [
            self._build_row(tx, seq, draft, touched)
            for seq, draft in enumerate(tx.appended_drafts, last + 1)
        ]
        tx.execute_many(_INSERT_EVENT, rows)
        head = sign_head(
            self._key,
            node=self.node_id,
            incarnation=self.incarnation,
            first=last + 1,
            last=last + len(rows),
            chain=extend_chain(chain, (row[5] for row in rows)),
        )
        tx.execute(_INSERT_HEAD, (head.last, head.first, head.chain, head.signature, tx.now))
        live = self.live_nodes
        to_all = EVERYBODY in live
        sent = {to: seq if to_all or to in live else 0 for to, seq in touched.items()}
        tx.execute_many(_UPSERT_RECIPIENT, [(to, seq, sent[to]) for to, seq in touched.items()])
        self._tail = (head.last, head.chain)
        positions: dict[str, list[int]] = {}
        for position, row in enumerate(rows):
            if row[6] is not None:
                positions.setdefault(row[6], []).append(position)
        self._group = OutboxGroup(head, chain, rows, positions)

    def after_commit(self) -> list[JobOutcome]:
        appended, self._group = self._group, None
        if appended is None or self.on_published is None:
            return []
        published = self.on_published
        return [(lambda value, _: published(value), appended, None)]

    def rolled_back(self) -> None:
        self._group = None
        self._tail = None
        self._last_seq_to.clear()

    def next_due(self, tx: Tx) -> int | None:
        return None

    def _read_tail(self, tx: Tx) -> tuple[int, bytes]:
        first = first_seq_of(tx, self.incarnation)
        head = tx.fetch_one(_SELECT_LAST_HEAD)
        if head is None or head[0] < first:
            return first - 1, genesis_chain(self.node_id, self.incarnation)
        return head[0], head[1]

    def _build_row(self, tx: Tx, seq: int, draft: Envelope, touched: dict[str, int]) -> AppendedRow:
        to = None if draft.to_node_id == self.node_id else draft.to_node_id
        event = replace(
            draft,
            seq=seq,
            prev_seq_to=self._previous_seq_to(tx, to),
            source_node_id=self.node_id,
            to_node_id=None if to == EVERYBODY else draft.to_node_id,
            created_at=tx.now,
        )
        body = encode_event(event)
        if to is not None:
            self._last_seq_to[to] = touched[to] = seq
        ref = draft.ref_event_id and parse_event_id(draft.ref_event_id)
        id = parse_event_id(draft.event_id)
        return seq, id, ref or None, draft.kind, body, event_digest(body), to

    def _previous_seq_to(self, tx: Tx, to: str | None) -> int:
        """Return the last seq whose event was for that node, or 0."""
        if to is None:
            return 0
        if (known := self._last_seq_to.get(to)) is None:
            query = "SELECT last_seq FROM recipient WHERE node_id = ?"
            row = tx.fetch_one(query, (to,))
            known = self._last_seq_to[to] = int(row[0]) if row else 0
        return known


def read_journey(tx: Tx, event_id: str) -> list[Envelope]:
    """Return an event and all events of this outbox that refer to it, in order."""
    id = parse_event_id(event_id)
    query = "SELECT body FROM outbox WHERE event_id = ? OR ref_id = ? ORDER BY seq"
    return [decode_event(row[0]) for row in tx.fetch_all(query, (id, id))]
