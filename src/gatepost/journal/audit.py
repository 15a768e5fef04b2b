"""The audit log of actions a person took by hand."""

from gatepost.journal.transaction import Row, Tx


def record_audit_entry(tx: Tx, actor: str, action: str, subject: str, detail: str = "") -> None:
    tx.execute(
        "INSERT INTO audit (at, actor, action, subject, detail) VALUES (?, ?, ?, ?, ?)",
        (tx.now, actor, action, subject, detail),
    )


def list_audit_entries(tx: Tx, limit: int) -> list[Row]:
    """(at, actor, action, subject, detail), newest first."""
    query = "SELECT at, actor, action, subject, detail FROM audit ORDER BY id DESC LIMIT ?"
    return tx.fetch_all(query, (limit,))
