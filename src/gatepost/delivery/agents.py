"""The agents this gateway answers for."""

from collections.abc import Iterable

import msgspec

from gatepost.errors import TooManyAgents, UnknownAgent
from gatepost.events import Order
from gatepost.events.reserved_names import require_agent_name
from gatepost.journal.audit import record_audit_entry
from gatepost.journal.transaction import Row, Tx
from gatepost.mailbox.lookup import IS_ORDERED_SQL
from gatepost.wire.gateway_views import AgentInfo
from gatepost.wire.operations import AgentRole, StatedSkill

MAX_AGENTS = 10_000

_REGISTER = """
INSERT INTO agent (id, type, created_at, registered_at, seen_at, standby, role, takes_skills,
    skills)
VALUES (?1, ?2, ?3, ?3, ?3, ?4, ?6, coalesce(?7, 0), ?8)
ON CONFLICT (id) DO UPDATE SET registered_at = excluded.registered_at, seen_at = excluded.seen_at,
    standby = coalesce(?5, standby), role = coalesce(?6, role),
    takes_skills = coalesce(?7, takes_skills), skills = coalesce(?8, skills)
"""
_SELECT_AGENT = f"""
SELECT id, type, created_at, seen_at, standby, role, {IS_ORDERED_SQL.format(mailbox="agent.id")}
FROM agent
"""
# The agents of this gateway that take the skills of others, as rows of `id`.
SKILL_TAKERS_SQL = "(SELECT id FROM agent WHERE takes_skills AND NOT standby)"
_SELECT_HERE = "SELECT id, takes_skills FROM agent WHERE NOT standby ORDER BY id"
_decode_skills = msgspec.json.Decoder(tuple[StatedSkill, ...]).decode
_SAVE_ACTIVITY = "UPDATE agent SET seen_at = ?1 WHERE id = ?2 AND seen_at < ?1"


class Agents:
    """Mail can be sent to an agent once it is registered; a client does that as it connects."""

    def __init__(self, max_agents: int = MAX_AGENTS) -> None:
        self.max_agents = max_agents
        # The agents that the hub runs. The hub takes their tasks directly, without a mailbox.
        self.hub_run: frozenset[str] = frozenset()
        # The registered ids, loaded on first use and again after each change.
        self._registered: set[str] | None = None
        self._changing: Tx | None = None
        self.has_changed = False
        self._active: set[str] = set()

    def register(
        self,
        tx: Tx,
        id: str,
        type: str = "external",
        standby: bool | None = None,
        role: AgentRole | None = None,
        takes_skills: bool | None = None,
        executor_skills: tuple[StatedSkill, ...] | None = None,
    ) -> AgentInfo:
        """Register an agent. `standby` means that it lives elsewhere.

        Registered again, `standby`, `role`, `takes_skills` and `executor_skills` change only if
        they are given.
        """
        require_agent_name(id)
        if not self.is_registered(tx, id):
            self._require_capacity(tx)
        skills = None if executor_skills is None else msgspec.json.encode(executor_skills)
        row = (id, type, tx.now, bool(standby), standby, role, takes_skills, skills)
        tx.execute(_REGISTER, row)
        self.forget_registered(tx)
        return self.get(tx, id)

    def _require_capacity(self, tx: Tx) -> None:
        if (count := count_agents(tx)) >= self.max_agents:
            raise TooManyAgents(
                f"this gateway answers for {count} agents, its maximum; remove unused ones with"
                " `gatepost agent remove`, or raise limits.max_agents"
            )

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
        """Load the registered ids again, because `tx` changed them and may be rolled back."""
        self._registered, self._changing, self.has_changed = None, tx, True

    def find_executor_skills(self, tx: Tx, id: str) -> tuple[StatedSkill, ...] | None:
        """The executor skills that an agent stated as it registered; None if it never did."""
        row = tx.fetch_one("SELECT skills FROM agent WHERE id = ?", (id,))
        return None if row is None or row[0] is None else _decode_skills(row[0])

    def is_standby(self, tx: Tx, id: str) -> bool:
        return tx.fetch_one("SELECT 1 FROM agent WHERE id = ? AND standby", (id,)) is not None

    def registered_at(self, tx: Tx, id: str) -> int:
        """When an agent last registered; 0 if it is unknown."""
        row = tx.fetch_one("SELECT registered_at FROM agent WHERE id = ?", (id,))
        return 0 if row is None else int(row[0])

    def list(self, tx: Tx) -> list[AgentInfo]:
        return [_agent_from_row(row) for row in tx.fetch_all(f"{_SELECT_AGENT} ORDER BY id")]

    def remove(self, tx: Tx, id: str, actor: str) -> None:
        """Remove an agent, so that it cannot receive messages. Purge its mailbox first."""
        self.get(tx, id)
        tx.execute("DELETE FROM agent WHERE id = ?", (id,))
        self.forget_registered(tx)
        record_audit_entry(tx, actor, "agent.remove", id, "")

    # -- signs of life

    def note_activity(self, *ids: str) -> None:
        """Remember in memory that these agents did something. Any thread may call it."""
        self._active.update(ids)

    @property
    def has_activity(self) -> bool:
        return bool(self._active)

    def save_activity(self, tx: Tx, waiting: Iterable[str] = ()) -> None:
        """Write down which agents were active since the last call, or wait for mail now."""
        active, self._active = self._active, set()
        tx.execute_many(_SAVE_ACTIVITY, [(tx.now, id) for id in sorted({*active, *waiting})])
        self.has_changed |= bool(active)


def count_agents(tx: Tx) -> int:
    ((count,),) = tx.fetch_all("SELECT count(*) FROM agent")
    return int(count)


def agents_here(tx: Tx) -> dict[str, bool]:
    """The agents that live here, and whether each takes the skills of others."""
    return {row[0]: bool(row[1]) for row in tx.fetch_all(_SELECT_HERE)}


def _agent_from_row(row: Row) -> AgentInfo:
    id, type, created_at, seen_at, standby, role, ordered = row
    order: Order = "none" if ordered == 0 else "fifo"
    return AgentInfo(id, type, created_at, seen_at, bool(standby), role=role, order=order)
