"""The agents this gateway answers for."""

from gatepost.errors import UnknownAgent
from gatepost.journal.audit import record_audit_entry
from gatepost.journal.transaction import Row, Tx
from gatepost.wire import AgentInfo

_REGISTER = """
INSERT INTO agent (id, type, created_at, seen_at, standby) VALUES (?1, ?2, ?3, ?3, ?4)
ON CONFLICT (id) DO UPDATE SET seen_at = excluded.seen_at, standby = coalesce(?5, standby)
"""
_SELECT_AGENT = "SELECT id, type, created_at, seen_at, standby FROM agent"


class Agents:
    """Mail can be sent to an agent once it is registered; a client does that as it connects."""

    def __init__(self) -> None:
        # The registered ids, once the writer asked for them; read again after any change.
        self._registered: set[str] | None = None
        self._changing: Tx | None = None
        self.has_changed = False

    def register(
        self, tx: Tx, id: str, type: str = "external", standby: bool | None = None
    ) -> AgentInfo:
        """Register an agent. `standby` means that it lives elsewhere; None keeps what it was."""
        tx.execute(_REGISTER, (id, type, tx.now, bool(standby), standby))
        self.forget_registered(tx)
        return self.get(tx, id)

    def get(self, tx: Tx, id: str) -> AgentInfo:
        row = tx.fetch_one(f"{_SELECT_AGENT} WHERE id = ?", (id,))
        if row is None:
            raise UnknownAgent(
                f"no agent {id!r} on this gateway; start it, or run `gatepost agent add {id}`"
            )
        return _agent_from_row(row)

    def is_registered(self, tx: Tx, id: str) -> bool:
        """For the writer's thread only."""
        if tx is self._changing:
            return tx.fetch_one("SELECT 1 FROM agent WHERE id = ?", (id,)) is not None
        if self._registered is None:
            self._registered = {row[0] for row in tx.fetch_all("SELECT id FROM agent")}
        return id in self._registered

    def forget_registered(self, tx: Tx | None = None) -> None:
        """Read the registered ids again. `tx`, which changed them, may still be undone."""
        self._registered, self._changing, self.has_changed = None, tx, True

    def is_standby(self, tx: Tx, id: str) -> bool:
        return tx.fetch_one("SELECT 1 FROM agent WHERE id = ? AND standby", (id,)) is not None

    def list(self, tx: Tx) -> list[AgentInfo]:
        return [_agent_from_row(row) for row in tx.fetch_all(f"{_SELECT_AGENT} ORDER BY id")]

    def remove(self, tx: Tx, id: str, actor: str) -> None:
        """Nothing can be sent to it from now on. Its mail is the caller's to purge first."""
        self.get(tx, id)
        tx.execute("DELETE FROM agent WHERE id = ?", (id,))
        self.forget_registered(tx)
        record_audit_entry(tx, actor, "agent.remove", id, "")


def _agent_from_row(row: Row) -> AgentInfo:
    id, type, created_at, seen_at, standby = row
    return AgentInfo(id, type, created_at, seen_at, bool(standby))
