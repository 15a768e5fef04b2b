"""The audit log of actions a person took by hand."""

from gatepost.journal.transaction import Tx


def record_audit_entry(tx: Tx, actor: str, action: str, subject: str, detail: str = "") -> None:
    tx.execute(
        "INSERT INTO audit (at, actor, action, subject, detail) VALUES (?, ?, ?, ?, ?)",
        (tx.now, actor, action, subject, detail),
    )
