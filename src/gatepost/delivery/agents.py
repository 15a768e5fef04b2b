"""The agents this gateway answers for."""

from gatepost.errors import UnknownAgent
from gatepost.journal.audit import record_audit_entry
from gatepost.journal.transaction import Row, Tx
from gatepost.wire import AgentInfo

_REGISTER = """
INSERT INTO agent (id, type, created_at, seen_at, standby) VALUES (?1, ?2, ?3, ?3, ?4)
ON CONFLICT (id) DO UPDATE SET seen_at = excluded.seen_at, standby = coalesce(?5, standby)
"""


class Agents:
    """Mail can be sent to an agent once it is registered; a client does that as it connects."""

    def __init__(self) -> None:
        # Who is registered, once the writer asked for it; read again after any change.
        self._known: set[str] | None = None
        self._changing: Tx | None = None
        self.news = False

    def register(
        self, tx: Tx, id: str, type: str = "external", standby: bool | None = None
    ) -> AgentInfo:
        """`standby` hosts an agent that lives elsewhere; who comes again stays what it was."""
        tx.execute(_REGISTER, (id, type, tx.now, bool(standby), standby))
        self.changed(tx)
        return self.get(tx, id)

    def get(self, tx: Tx, id: str) -> AgentInfo:
        row = tx.fetch_one("SELECT * FROM agent WHERE id = ?", (id,))
        if row is None:
            raise UnknownAgent(
                f"no agent {id!r} on this gateway; start it, or run `gatepost agent add {id}`"
            )
        return _agent(row)

    def known(self, tx: Tx, id: str) -> bool:
        """For the writer's thread only."""
        if tx is self._changing:
            return tx.fetch_one("SELECT 1 FROM agent WHERE id = ?", (id,)) is not None
        if self._known is None:
            self._known = {row[0] for row in tx.fetch_all("SELECT id FROM agent")}
        return id in self._known

    def changed(self, tx: Tx | None = None) -> None:
        """Somebody came or went; what `tx` did may still be undone."""
        self._known, self._changing, self.news = None, tx, True

    def stands_by(self, tx: Tx, id: str) -> bool:
        return tx.fetch_one("SELECT 1 FROM agent WHERE id = ? AND standby", (id,)) is not None

    def list(self, tx: Tx) -> list[AgentInfo]:
        return [_agent(row) for row in tx.fetch_all("SELECT * FROM agent ORDER BY id")]

    def remove(self, tx: Tx, id: str, actor: str) -> None:
        """Nothing can be sent to it from now on. Its mail is the caller's to purge first."""
        self.get(tx, id)
        tx.execute("DELETE FROM agent WHERE id = ?", (id,))
        self.changed(tx)
        record_audit_entry(tx, actor, "agent.remove", id, "")


def _agent(row: Row) -> AgentInfo:
    id, type, created_at, seen_at, standby = row
    return AgentInfo(id, type, created_at, seen_at, bool(standby))
