"""Sessions of connected nodes, so that a revocation can list the connections to close.

They are stored in the journal because it orders everything: a connection is admitted either before
a revocation, which then lists it, or after it, and is refused.
"""

from gatepost.journal.transaction import Tx


def open_node_session(tx: Tx, id: str, node_id: str) -> None:
    tx.execute("INSERT INTO node_session (id, node_id) VALUES (?, ?)", (id, node_id))


def close_node_session(tx: Tx, id: str) -> None:
    tx.execute("DELETE FROM node_session WHERE id = ?", (id,))


def close_all_node_sessions(tx: Tx) -> None:
    """Delete all sessions. At start no node is connected yet."""
    tx.execute("DELETE FROM node_session")


def end_node_sessions(tx: Tx, node_id: str) -> list[str]:
    """Delete the sessions of a node; return their ids, to close the sockets."""
    ended = tx.fetch_all("SELECT id FROM node_session WHERE node_id = ? ORDER BY id", (node_id,))
    tx.execute("DELETE FROM node_session WHERE node_id = ?", (node_id,))
    return [row[0] for row in ended]
