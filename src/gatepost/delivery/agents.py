"""The agents this gateway answers for."""

from gatepost.errors import UnknownAgent
from gatepost.journal.audit import audit
from gatepost.journal.tx import Row, Tx
from gatepost.wire import Agent

_REGISTER = """
INSERT INTO agent (id, type, created_at, seen_at, standby) VALUES (?1, ?2, ?3, ?3, ?4)
ON CONFLICT (id) DO UPDATE SET seen_at = excluded.seen_at, standby = coalesce(?5, standby)
"""


class Agents:
    """Mail can be sent to an agent once it is registered; a client does that as it connects."""

    def register(
        self, tx: Tx, id: str, type: str = "external", standby: bool | None = None
    ) -> Agent:
        """`standby` hosts an agent that lives elsewhere; who comes again stays what it was."""
        tx.run(_REGISTER, (id, type, tx.now, bool(standby), standby))
        return self.get(tx, id)

    def get(self, tx: Tx, id: str) -> Agent:
        row = tx.one("SELECT * FROM agent WHERE id = ?", (id,))
        if row is None:
            raise UnknownAgent(
                f"no agent {id!r} on this gateway; start it, or run `gatepost agent add {id}`"
            )
        return _agent(row)

    def known(self, tx: Tx, id: str) -> bool:
        return tx.one("SELECT 1 FROM agent WHERE id = ?", (id,)) is not None

    def list(self, tx: Tx) -> list[Agent]:
        return [_agent(row) for row in tx.rows("SELECT * FROM agent ORDER BY id")]

    def remove(self, tx: Tx, id: str, actor: str) -> None:
        """Nothing can be sent to it from now on. Its mail is the caller's to purge first."""
        self.get(tx, id)
        tx.run("DELETE FROM agent WHERE id = ?", (id,))
        audit(tx, actor, "agent.remove", id, "")


def _agent(row: Row) -> Agent:
    id, type, created_at, seen_at, standby = row
    return Agent(id, type, created_at, seen_at, bool(standby))
