"""The incarnations of this journal, and the first seq of each."""

from gatepost.journal.transaction import Tx

_ADD = "INSERT OR IGNORE INTO incarnation (id, first_seq) VALUES (?, ?)"
_SELECT = "SELECT id, first_seq FROM incarnation ORDER BY first_seq"
_SELECT_FIRST_SEQ = "SELECT first_seq FROM incarnation WHERE id = ?"


def load_incarnations(tx: Tx) -> list[tuple[str, int]]:
    """The incarnations of our own outbox, oldest first."""
    return [(row[0], row[1]) for row in tx.fetch_all(_SELECT)]


def first_seq_of(tx: Tx, incarnation: str) -> int:
    row = tx.fetch_one(_SELECT_FIRST_SEQ, (incarnation,))
    return int(row[0]) if row else 1


def add_first_incarnation(tx: Tx, incarnation: str) -> None:
    """Note the incarnation of a new journal; nothing happens if it is known."""
    tx.execute(_ADD, (incarnation, 1))


def add_restored_incarnation(tx: Tx, incarnation: str, first_seq: int) -> None:
    # An incarnation without events leaves no trace.
    tx.execute("DELETE FROM incarnation WHERE first_seq = ?", (first_seq,))
    tx.execute("INSERT INTO incarnation (id, first_seq) VALUES (?, ?)", (incarnation, first_seq))
