"""Facts about this journal: small values by name, such as the node id and the incarnation."""

from collections.abc import Mapping
from typing import Any

from gatepost.journal.transaction import Tx

_SELECT = "SELECT value FROM fact WHERE name = ?"
_SAVE = "INSERT OR REPLACE INTO fact (name, value) VALUES (?, ?)"
_ADD = "INSERT OR IGNORE INTO fact (name, value) VALUES (?, ?)"
# As a value in the statements of others; 0 if this journal was never restored.
RESTORED_AT_SQL = "coalesce((SELECT value FROM fact WHERE name = 'restored_at'), 0)"


def load_facts(tx: Tx) -> dict[str, Any]:
    return dict(tx.fetch_all("SELECT name, value FROM fact"))


def find_fact(tx: Tx, name: str) -> Any:
    """The value of a fact; None if it is not known."""
    row = tx.fetch_one(_SELECT, (name,))
    return None if row is None else row[0]


def save_fact(tx: Tx, name: str, value: str | bytes | int) -> None:
    tx.execute(_SAVE, (name, value))


def add_facts(tx: Tx, facts: Mapping[str, str | bytes]) -> None:
    """Save these facts, except those that are known."""
    tx.execute_many(_ADD, facts.items())


def was_restored(tx: Tx) -> bool:
    """Whether this journal came back from a backup at some time."""
    return find_fact(tx, "restored_at") is not None
