"""The readers of the outbox: what was sent to each, what it has taken, and where it was cut off.

A reader has a row from the first event for it on. Its positions only rise:

- `last_seq`: the last event for it
- `sent_seq`: the last event that it may have been sent
- `acked_seq`: it has taken every event through this one
- `cut_seq`: events through this one are not kept for it any longer
- `skip_seq`: its lost journal may have dealt with events through this one; never above `cut_seq`
"""

from gatepost.journal.outbox import EVERYBODY
from gatepost.journal.transaction import Tx

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
_SELECT_SENT = "SELECT incarnation, sent_seq FROM recipient WHERE node_id = ?"
_NOTE_INCARNATION = """
INSERT INTO recipient (node_id, last_seq, incarnation, seen_at) VALUES (?1, 0, ?2, ?3)
ON CONFLICT (node_id) DO UPDATE SET incarnation = ?2, seen_at = ?3
"""
_SELECT_CUT = "SELECT cut_seq, skip_seq FROM recipient WHERE node_id = ?"
_CUT_OFF = """
INSERT INTO recipient (node_id, last_seq, cut_seq) VALUES (?1, 0, ?2)
ON CONFLICT (node_id) DO UPDATE SET cut_seq = max(cut_seq, ?2)
"""
_SKIP = """
UPDATE recipient SET cut_seq = max(cut_seq, ?1), skip_seq = max(skip_seq, ?1) WHERE node_id = ?2
"""
_ASSUME_ALL_SENT = "UPDATE recipient SET sent_seq = max(sent_seq, last_seq)"
_SELECT_NEEDS = "SELECT node_id, max(acked_seq, cut_seq), seen_at FROM recipient"


def note_sent(tx: Tx, reader: str, upto: int) -> None:
    tx.execute(_NOTE_SENT, (reader, upto))


def note_sent_to_all(tx: Tx, upto: int) -> None:
    """A relay may pass the outbox on to any recipient, so all of them may have been sent it."""
    tx.execute(_NOTE_SENT_TO_ALL, (upto,))


def note_taken(tx: Tx, reader: str, upto: int) -> None:
    tx.execute(_NOTE_TAKEN, (upto, tx.now, reader))


def note_reading(tx: Tx, reader: str, incarnation: str, upto: int) -> None:
    """Note the position that a reader behind a relay has signed, with its incarnation."""
    tx.execute(_NOTE_READING, (upto, tx.now, reader, incarnation))


def cut_of(tx: Tx, reader: str) -> tuple[int, int]:
    """Where a reader was cut off, and how far its lost journal may have read."""
    ((cut, skip),) = tx.fetch_all(_SELECT_CUT, (reader,))
    return cut, skip


def reader_positions(tx: Tx) -> dict[str, tuple[int, int]]:
    """Reader → the last event for it, and the last one that it has taken."""
    return {row[0]: (row[1], row[2]) for row in tx.fetch_all(_SELECT_READERS, (EVERYBODY,))}


def sent_through(tx: Tx, reader: str) -> tuple[str | None, int] | None:
    """The incarnation of a reader, if it is known, and the last event it may have been sent."""
    row = tx.fetch_one(_SELECT_SENT, (reader,))
    return None if row is None else (row[0], row[1])


def note_incarnation(tx: Tx, reader: str, incarnation: str) -> None:
    tx.execute(_NOTE_INCARNATION, (reader, incarnation, tx.now))


def skip_through(tx: Tx, reader: str, seq: int) -> None:
    """The lost journal of a reader may have dealt with these events: its new one skips them."""
    tx.execute(_SKIP, (seq, reader))


def cut_off(tx: Tx, reader: str, seq: int | None) -> None:
    """Keep the events through `seq` for this reader no longer."""
    tx.execute(_CUT_OFF, (reader, seq))


def assume_all_sent(tx: Tx) -> None:
    """After a restore: each reader may have been sent every event that was for it."""
    tx.execute(_ASSUME_ALL_SENT)


def reader_needs(tx: Tx) -> dict[str, tuple[int, int]]:
    """Reader → the seq through which it needs nothing, and when it was last seen."""
    return {row[0]: (row[1], row[2]) for row in tx.fetch_all(_SELECT_NEEDS)}
