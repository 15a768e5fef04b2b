"""Queries on the outbox and notes of how far it was read, for those who serve, archive or prove it.

`journal/outbox.py` writes the outbox and its heads; nothing else does.
"""

from collections.abc import Collection, Iterator

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
_SELECT_HELLO_HEAD = """
SELECT max((SELECT coalesce(max(last_seq), 0) FROM head), max(first_seq) - 1) FROM incarnation
"""
_NOTE_SENT = """
INSERT INTO recipient (node_id, last_seq, sent_seq) VALUES (?1, 0, ?2)
ON CONFLICT (node_id) DO UPDATE SET sent_seq = max(sent_seq, ?2)
"""
_NOTE_SENT_TO_ALL = """
UPDATE recipient SET sent_seq = min(last_seq, ?1) WHERE sent_seq < min(last_seq, ?1)
"""
_NOTE_TAKEN = "UPDATE recipient SET acked_seq = max(acked_seq, ?), seen_at = ? WHERE node_id = ?"
# A reader with another incarnation than the one we know is dealt with when it links to us.
_NOTE_READING = """
UPDATE recipient SET acked_seq = max(acked_seq, min(last_seq, ?1)), seen_at = ?2, incarnation = ?4
WHERE node_id = ?3 AND coalesce(incarnation, ?4) = ?4
"""
_SELECT_READERS = "SELECT node_id, last_seq, acked_seq FROM recipient WHERE node_id <> ?"


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


# -- recipients


def note_sent(tx: Tx, reader: str, upto: int) -> None:
    tx.execute(_NOTE_SENT, (reader, upto))


def note_sent_to_all(tx: Tx, upto: int) -> None:
    """A relay may pass the outbox on to any recipient, so all of them may have been sent it."""
    tx.execute(_NOTE_SENT_TO_ALL, (upto,))


def note_taken(tx: Tx, reader: str, upto: int) -> None:
    tx.execute(_NOTE_TAKEN, (upto, tx.now, reader))


def note_reading(tx: Tx, reader: str, incarnation: str, upto: int) -> None:
    """A reader behind a relay has signed that this incarnation of it is that far."""
    tx.execute(_NOTE_READING, (upto, tx.now, reader, incarnation))


def cut_of(tx: Tx, reader: str) -> tuple[int, int]:
    """Where a reader was cut off, and how far its lost journal may have read."""
    ((cut, skip),) = tx.fetch_all(
        "SELECT cut_seq, skip_seq FROM recipient WHERE node_id = ?", (reader,)
    )
    return cut, skip


def reader_positions(tx: Tx) -> dict[str, tuple[int, int]]:
    """Reader → the last event for it, and the last one that it has taken."""
    return {row[0]: (row[1], row[2]) for row in tx.fetch_all(_SELECT_READERS, (EVERYBODY,))}
