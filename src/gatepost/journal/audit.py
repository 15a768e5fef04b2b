"""The audit log of actions a person took by hand."""

from gatepost.journal.tx import Tx


def audit(tx: Tx, actor: str, action: str, subject: str, detail: str = "") -> None:
    tx.run(
        "INSERT INTO audit (at, actor, action, subject, detail) VALUES (?, ?, ?, ?, ?)",
        (tx.now, actor, action, subject, detail),
    )
