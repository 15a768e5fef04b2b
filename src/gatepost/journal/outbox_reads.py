"""Queries on the outbox and its signed heads.

`journal/outbox.py` alone writes both, and `journal/outbox_pruning.py` deletes from them.
"""

from collections.abc import Collection, Iterator

from gatepost.events import EventKind
from gatepost.journal.outbox import EVERYBODY
from gatepost.journal.transaction import Row, Tx

_SELECT_EVENTS_FOR = f"""
SELECT seq, body FROM outbox WHERE to_node IN (?, '{EVERYBODY}') AND seq > ? AND seq <= ?
ORDER BY seq LIMIT ?
"""
_SELECT_EVENTS = """
SELECT seq, body, to_node FROM outbox WHERE seq > ? AND seq <= ? ORDER BY seq LIMIT ?
"""
_SELECT_ABOUT = """
SELECT seq, to_node, body FROM outbox WHERE event_id = ?1
UNION ALL SELECT seq, to_node, body FROM outbox WHERE ref_id = ?1 AND kind IN ({kinds})
ORDER BY seq LIMIT ?2
"""
_SELECT_HEADS = """
SELECT first_seq, last_seq, chain, signature FROM head WHERE last_seq > ? AND last_seq <= ?
ORDER BY last_seq
"""
_SELECT_GROUP = """
SELECT first_seq, last_seq, chain, signature FROM head WHERE last_seq >= ? ORDER BY last_seq LIMIT 1
"""
_SELECT_WHOLE_GROUPS = """
SELECT first_seq FROM head h WHERE last_seq > ?
AND EXISTS (SELECT 1 FROM outbox WHERE seq = h.first_seq) ORDER BY last_seq LIMIT ?
"""
_SELECT_SIGNED_GROUPS = """
SELECT first_seq, last_seq, chain, signature, signed_at FROM head
WHERE last_seq > ? AND last_seq < ? AND first_seq >= (SELECT min(seq) FROM outbox)
ORDER BY last_seq
"""
_SELECT_ROWS = """
SELECT seq, event_id, ref_id, body, digest FROM outbox WHERE seq BETWEEN ? AND ? ORDER BY seq
"""
# An event about `{ref}` that its reader `{node}` has not taken, and that is kept for it.
UNREAD_SQL = """
SELECT 1 FROM outbox o LEFT JOIN recipient r ON r.node_id = o.to_node
WHERE o.ref_id = {ref} AND o.to_node = {node}
AND o.seq > coalesce(max(r.acked_seq, r.cut_seq, r.skip_seq), 0)
"""
_SELECT_DIGESTS = "SELECT digest FROM outbox WHERE seq BETWEEN ? AND ? ORDER BY seq"
_SELECT_FIRST_SEQ_TO = "SELECT min(seq) FROM outbox WHERE event_id = ? AND to_node = ?"
# The seq under which `{event}` was appended first.
FIRST_SEQ_SQL = "(SELECT min(seq) FROM outbox o WHERE o.event_id = {event})"
_SELECT_SENT_WITHIN = """
SELECT 1 FROM outbox WHERE event_id = ? AND to_node = ? AND seq > ? AND seq <= ? LIMIT 1
"""
_SELECT_NEXT_FOR = f"SELECT min(seq) FROM outbox WHERE to_node IN (?, '{EVERYBODY}') AND seq > ?"
_SELECT_SIGNED_AT = "SELECT signed_at FROM head WHERE last_seq >= ? ORDER BY last_seq LIMIT 1"
_SELECT_BODIES = "SELECT body FROM outbox WHERE event_id = ? AND kind <> ? ORDER BY seq"
_SELECT_REPLIES = f"""
SELECT DISTINCT event_id FROM outbox WHERE ref_id = ? AND kind = '{EventKind.REPLY}' LIMIT ?
"""
_SELECT_JOURNEY = """
SELECT body FROM outbox WHERE event_id = ?1 UNION ALL SELECT body FROM outbox WHERE ref_id = ?1
LIMIT ?2
"""
_SELECT_KIND = "SELECT kind, ref_id FROM outbox WHERE event_id = ? LIMIT 1"
_SELECT_HELLO_HEAD = """
SELECT max((SELECT coalesce(max(last_seq), 0) FROM head), max(first_seq) - 1) FROM incarnation
"""


# -- how far it reaches


def last_seq(tx: Tx) -> int:
    """The last event with a signed head; 0 if nothing was ever sent."""
    ((seq,),) = tx.fetch_all("SELECT coalesce(max(last_seq), 0) FROM head")
    return int(seq)


def last_known_seq(tx: Tx) -> int:
    """The last event with a signed head, of this incarnation or of those before it."""
    ((seq,),) = tx.fetch_all(_SELECT_HELLO_HEAD)
    return int(seq)


def last_seq_before(tx: Tx, at: int) -> int | None:
    """The last event that was signed at `at` or earlier."""
    row = tx.fetch_one("SELECT max(last_seq) FROM head WHERE signed_at <= ?", (at,))
    return None if row is None else row[0]


def highest_seq(tx: Tx) -> int:
    """The last event that has not been pruned; 0 if there is none."""
    ((seq,),) = tx.fetch_all("SELECT coalesce(max(seq), 0) FROM outbox")
    return int(seq)


def next_seq_for(tx: Tx, reader: str, after: int) -> int | None:
    """The first event after `after` that is for a reader."""
    ((seq,),) = tx.fetch_all(_SELECT_NEXT_FOR, (reader, after))
    return None if seq is None else int(seq)


def signed_at(tx: Tx, seq: int) -> int:
    """When the group with this event was signed."""
    ((at,),) = tx.fetch_all(_SELECT_SIGNED_AT, (seq,))
    return int(at)


def oldest_seq(tx: Tx) -> int | None:
    """The oldest event that has not been pruned."""
    ((seq,),) = tx.fetch_all("SELECT min(seq) FROM outbox")
    return None if seq is None else int(seq)


# -- events and their groups


def events_for(tx: Tx, reader: str, after: int, upto: int, limit: int) -> list[Row]:
    """(seq, body) of the events in (after, upto] that are for a reader."""
    return tx.fetch_all(_SELECT_EVENTS_FOR, (reader, after, upto, limit))


def all_events(tx: Tx, after: int, upto: int, limit: int) -> list[Row]:
    """(seq, body, receiver) of all events in (after, upto]."""
    return tx.fetch_all(_SELECT_EVENTS, (after, upto, limit))


def events_about(tx: Tx, event_id: bytes, kinds: Collection[str], limit: int) -> list[Row]:
    """(seq, receiver, body) of an event and of those of these kinds that refer to it."""
    names = ", ".join(f"'{kind}'" for kind in kinds)
    return tx.fetch_all(_SELECT_ABOUT.format(kinds=names), (event_id, limit))


def first_seq_to(tx: Tx, event_id: bytes, node: str) -> int | None:
    """The seq under which an event was first appended for a node."""
    ((seq,),) = tx.fetch_all(_SELECT_FIRST_SEQ_TO, (event_id, node))
    return None if seq is None else int(seq)


def was_sent_within(tx: Tx, event_id: bytes, node: str, after: int, upto: int) -> bool:
    """Whether an event was appended for a node in (after, upto]."""
    return tx.fetch_one(_SELECT_SENT_WITHIN, (event_id, node, after, upto)) is not None


def bodies_of(tx: Tx, event_id: bytes) -> list[bytes]:
    """The event and its further attempts, as they were appended."""
    return [row[0] for row in tx.fetch_all(_SELECT_BODIES, (event_id, EventKind.ACK))]


def replies_to(tx: Tx, event_id: bytes, limit: int) -> list[bytes]:
    """The events by which this gateway replied to an event."""
    return [row[0] for row in tx.fetch_all(_SELECT_REPLIES, (event_id, limit))]


def journey_bodies(tx: Tx, event_id: bytes, limit: int) -> list[bytes]:
    """An event and all events of this outbox that refer to it."""
    return [row[0] for row in tx.fetch_all(_SELECT_JOURNEY, (event_id, limit))]


def kind_and_ref(tx: Tx, event_id: bytes) -> tuple[str, bytes | None] | None:
    """The kind of an event and the event that it refers to; None if it is not in the outbox."""
    row = tx.fetch_one(_SELECT_KIND, (event_id,))
    return None if row is None else (row[0], row[1])


def has_event(tx: Tx, event_id: bytes) -> bool:
    return kind_and_ref(tx, event_id) is not None


def is_referred_to(tx: Tx, event_id: bytes) -> bool:
    """Whether some event of this outbox refers to an event."""
    return tx.fetch_one("SELECT 1 FROM outbox WHERE ref_id = ? LIMIT 1", (event_id,)) is not None


def digests_between(tx: Tx, first: int, last: int) -> list[bytes]:
    """The digests of the events from `first` to `last`; fewer if some were pruned."""
    return [row[0] for row in tx.fetch_all(_SELECT_DIGESTS, (first, last))]


def heads_between(tx: Tx, after: int, upto: int) -> list[Row]:
    """(first, last, chain, signature) of the groups that end in (after, upto]."""
    return tx.fetch_all(_SELECT_HEADS, (after, upto))


def group_of(tx: Tx, seq: int) -> Row | None:
    """(first, last, chain, signature) of the group with this event."""
    return tx.fetch_one(_SELECT_GROUP, (seq,))


def starts_of_whole_groups(tx: Tx, after: int, limit: int) -> list[int]:
    """The first events of the next groups after `after` of which nothing was pruned."""
    return [row[0] for row in tx.fetch_all(_SELECT_WHOLE_GROUPS, (after, limit))]


def chain_at(tx: Tx, last: int) -> bytes | None:
    """The chain at the end of the group that ends with `last`; None if its head was pruned."""
    row = tx.fetch_one("SELECT chain FROM head WHERE last_seq = ?", (last,))
    return None if row is None else row[0]


def signed_groups(tx: Tx, after: int, before: int) -> Iterator[Row]:
    """(first, last, chain, signature, time) of the groups that end between these events.

    The latest head stays when its rows are pruned, so heads without rows are left out.
    """
    return tx.iterate_rows(_SELECT_SIGNED_GROUPS, (after, before))


def rows_between(tx: Tx, first: int, last: int) -> Iterator[Row]:
    """(seq, event id, the event it refers to, body, digest) of the events from first to last."""
    return tx.iterate_rows(_SELECT_ROWS, (first, last))
