"""The agents this gateway answers for."""

from gatepost.errors import UnknownAgent
from gatepost.journal.audit import audit
from gatepost.journal.tx import Tx
from gatepost.wire import Agent


class Agents:
    """Mail can be sent to an agent once it is registered; a client does that as it connects."""

    def register(self, tx: Tx, id: str, type: str = "external") -> Agent:
        tx.run(
            """INSERT INTO agent VALUES (?, ?, ?, ?)
               ON CONFLICT (id) DO UPDATE SET seen_at = excluded.seen_at""",
            (id, type, tx.now, tx.now),
        )
        return self.get(tx, id)

    def get(self, tx: Tx, id: str) -> Agent:
        row = tx.one("SELECT * FROM agent WHERE id = ?", (id,))
        if row is None:
            raise UnknownAgent(
                f"no agent {id!r} on this gateway; start it, or run `gatepost agent add {id}`"
            )
        return Agent(*row)

    def known(self, tx: Tx, id: str) -> bool:
        return tx.one("SELECT 1 FROM agent WHERE id = ?", (id,)) is not None

    def list(self, tx: Tx) -> list[Agent]:
        return [Agent(*row) for row in tx.rows("SELECT * FROM agent ORDER BY id")]

    def remove(self, tx: Tx, id: str, actor: str) -> None:
        """Nothing can be sent to it from now on. Its mail is the caller's to purge first."""
        self.get(tx, id)
        tx.run("DELETE FROM agent WHERE id = ?", (id,))
        audit(tx, actor, "agent.remove", id, "")
